"""What is known about architectures: data, no code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

EMBEDDINGS, POOLER, HEAD = "embeddings", "pooler", "head"
Part = str | int  # a block is its number, 1..N from the bottom
LAST = "the last block of the stack it belongs to"


@dataclass(frozen=True)
class Family:
    """How an architecture differs from the rules below."""

    places: dict[str, Part] = field(default_factory=dict)  # by name inside the base model
    poolers: tuple[tuple[str, str], ...] = (  # outside it: the pooler, and the projection it feeds. Both, or no pooler.
        ("classifier.dense", "classifier.out_proj"),  # RoBERTa, XLM-R, CamemBERT, MPNet
        ("pre_classifier", "classifier"),  # DistilBERT
        ("dense", "classifier"),  # EuroBERT
        ("head", "classifier"),  # ModernBERT, whose masked-language model has a `head` too, but feeds a `decoder`
    )
    group: str = ""  # the list of blocks inside an item of the stack, where layers share blocks
    one_input: bool = True  # query, key and value read the same tensor


PLAIN = Family()
FAMILIES: dict[str, Family] = {
    "albert": Family(group="albert_layers"),
    "deberta": Family(places={"encoder.LayerNorm": EMBEDDINGS}),  # the norm of the relative positions
    "deberta-v2": Family(places={"encoder.LayerNorm": EMBEDDINGS, "encoder.conv": 1}),  # the conv runs beside block 1
    "electra": Family(poolers=()),
    "mobilebert": Family(one_input=False),  # its value reads around the bottleneck
    "lfm2": Family(places={"embedding_norm": LAST}),  # in spite of its name
    "t5gemma": Family(places={"encoder.norm": LAST, "decoder.norm": LAST}),  # registered before the blocks
    # Nothing special: these follow the rules, and the tests hold them to it.
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert", "mpnet"], PLAIN),
    **dict.fromkeys(["modernbert", "xlnet", "bart", "mbart", "marian", "pegasus", "t5", "mt5"], PLAIN),
    **dict.fromkeys(["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "opt"], PLAIN),
    **dict.fromkeys(["vit", "deit", "beit"], PLAIN),
}

NAMES = [  # of what hangs beside the stack: registered where, called what, is which part. The first match counts.
    ("anywhere", r"pool", POOLER),
    ("anywhere", r"(?:final|post|last)_?(?:layer_?)?norm|(?:norm|ln)_f$|ln_post|ln_out", LAST),
    ("anywhere", r"hc_head|unembed|project_out", LAST),
    ("anywhere", r"emb|^wte$|^wpe$|^shared$|token|^pos(?!t)|patch|relative_|rel_pos|prompt", EMBEDDINGS),
    ("anywhere", r"project_in|per_layer|altup", EMBEDDINGS),
    ("parameter", r"^cls$|^pe$", EMBEDDINGS),
    ("anywhere", r"(?:^|_)head|classif|^score$|^cls$|qa_out|logit|^lm_|predict|(?:output|text|visual)_proj", HEAD),
    ("before", r"conv|stem|feature|input|norm|^ln", EMBEDDINGS),
    ("after", r"norm|^ln", LAST),
    ("after, in a model of your own", r"^fc|^out|linear|dense|proj|^decoder$", HEAD),
]  # fmt: skip
# The Linear of a block that consumes the feed-forward activation (LoRA's A matrix reads the same one).
FEED_FORWARD_OUT = re.compile(
    r"\.(?<!attention\.)(?<!attn\.)(?:output\.dense|ffn\.lin2|ffn_output|mlp\.c_proj|down_proj|wo|fc2|ff\.layer_2|mlp\.Wo|linear2"
    r"|dense_4h_to_h|fc_out|output_dense|feed_forward\.output|pwconv2|w2|w_out|linear_2)(?:\.lora_A\.\w+)?$"
)
QKV = [
    tuple(form.format(name) for name in names)
    for names in (("query", "key", "value"), ("q", "k", "v"))
    for form in ("{}", "{}_proj", "{}_lin", "to_{}", "w{}")
]
CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn", re.IGNORECASE)  # there the query reads another input
