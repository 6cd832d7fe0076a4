"""Tiny random models of every architecture that `layers/` promises, and a batch for each. No hub, no download.

`TINY[name]()` builds a classifier with 3 labels, random from torch's global generator: seed it to repeat it.
`batch(name)` is what its forward takes, labels included: `TINY["bert"]()(**batch("bert")).loss`. The perceptron has no
loss of its own: its forward takes `batch("mlp")["input"]` only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

LABELS, VOCABULARY, PAD, BOS, EOS = 3, 64, 1, 0, 2
IDS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
BERT = {
    **IDS,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}
SEQ2SEQ = {
    **IDS,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 4,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 40,
    "decoder_start_token_id": EOS,
    "forced_eos_token_id": None,
}
T5 = {**IDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_decoder_layers": 4, "num_heads": 2}
GPT = {**IDS, "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 40}
VIT = {
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}

# Each family: the prefix of its classes in transformers, and what makes it small.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", BERT),
    "roberta": ("Roberta", BERT),
    "xlm-roberta": ("XLMRoberta", BERT),
    "distilbert": (
        "DistilBert",
        {**IDS, "dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 40},
    ),
    "albert": ("Albert", {**BERT, "embedding_size": 8, "num_hidden_groups": 2}),
    "electra": ("Electra", {**BERT, "embedding_size": 8}),  # as electra-small: with embeddings_project
    "deberta-v2": (  # as DeBERTa-v3, with the convolution of v2-xlarge
        "DebertaV2",
        {
            **BERT,
            "type_vocab_size": 0,
            "relative_attention": True,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "conv_kernel_size": 3,
        },
    ),
    "mpnet": ("MPNet", {key: value for key, value in BERT.items() if key != "type_vocab_size"}),
    "modernbert": (
        "ModernBert",
        {**BERT, "cls_token_id": BOS, "sep_token_id": EOS, "global_attn_every_n_layers": 2, "local_attention": 8},
    ),
    "xlnet": ("XLNet", {**IDS, "d_model": 16, "n_layer": 4, "n_head": 2, "d_inner": 32}),
    "bart": ("Bart", SEQ2SEQ),
    "t5": ("T5", {**T5, "decoder_start_token_id": PAD}),
    "gpt2": ("GPT2", GPT),
    "llama": ("Llama", {**BERT, "num_key_value_heads": 1}),
    "vit": ("ViT", VIT),
}


def tiny(family: str, head: str, **changes: Any) -> nn.Module:
    """A tiny model of a family with any head that it has: `tiny("bert", "ForMaskedLM")`, `tiny("bert", "Model")`."""
    prefix, settings = CONFIGS[family]
    return build(prefix, head, {**settings, **changes})


def build(prefix: str, head: str, settings: dict[str, Any]) -> nn.Module:
    config = getattr(transformers, f"{prefix}Config")(**{"num_labels": LABELS, **settings})
    model: nn.Module = getattr(transformers, f"{prefix}{head}")(config)
    return model


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, LABELS),
    )


TINY: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(tiny, name, "ForSequenceClassification") for name in CONFIGS if name != "vit"},
    "vit": partial(tiny, "vit", "ForImageClassification"),
    "mlp": _perceptron,
}


def batch(name: str, rows: int = 4) -> dict[str, Tensor]:
    """The same small batch each time: rows of two lengths, padded on the right, one end token in each."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % LABELS
    if name == "mlp":
        return {"input": torch.randn(rows, 8, generator=random), "labels": labels}
    if name == "vit":
        return {"pixel_values": torch.randn(rows, 3, 8, 8, generator=random), "labels": labels}
    ids = torch.randint(EOS + 1, VOCABULARY, (rows, 10), generator=random)
    lengths = torch.tensor([10 if row % 2 == 0 else 7 for row in range(rows)])
    places = torch.arange(10).expand(rows, 10)
    ids = ids.masked_fill(places == lengths[:, None] - 1, EOS).masked_fill(places >= lengths[:, None], PAD)
    ids[:, 0] = BOS
    return {"input_ids": ids, "attention_mask": (places < lengths[:, None]).long(), "labels": labels}
