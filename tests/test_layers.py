"""Each architecture name by name; every parameter in exactly one part; and what cannot be placed is refused by name."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from steadytune.errors import SteadytuneError
from steadytune.layers import EMBEDDINGS, HEAD, POOLER, Layers, Part, find_layers
from tiny import BERT, IDS, SEQ2SEQ, T5, TINY, VIT, batch, build, tiny


def flat(names: str) -> set[str]:
    return set(names.split())


def tops(layers: Layers, part: Part) -> set[str]:
    return set(layers.modules(part))


def fed(layers: Layers) -> set[str]:
    return {name for name, _ in layers.model.named_modules() if name and layers.fed_by_activation(name)}


def assert_complete(layers: Layers) -> None:
    """Every parameter in exactly one part, tied ones at their lowest place, and each part's tops hold what it lists."""
    placed = [id(parameter) for part in layers.parts() for parameter in layers.parameters(part).values()]
    assert len(placed) == len(set(placed))
    assert set(placed) == {id(parameter) for parameter in layers.model.parameters()}
    for part in layers.parts():
        for name in layers.parameters(part):
            assert layers.part(name) == part
            held = any(name.startswith(f"{top}.") for top in layers.modules(part))
            assert held or name.count(".") <= 1, name  # a bare nn.Parameter, as XLNet's mask_emb
        for name in layers.modules(part):
            assert layers.part(name) == part


# --- the named architectures, with their classification heads ---------------------------------------------------------

# family: blocks, embeddings, pooler, head, what the last block has beside itself, its feed-forward output
CLASSIFIERS: dict[str, tuple[int, str, str, str, str, str]] = {
    "bert": (4, "bert.embeddings", "bert.pooler", "classifier", "", "bert.encoder.layer.{}.output.dense"),
    "roberta": (
        4,
        "roberta.embeddings",
        "classifier.dense",
        "classifier.out_proj",
        "",
        "roberta.encoder.layer.{}.output.dense",
    ),
    "xlm-roberta": (
        4,
        "roberta.embeddings",
        "classifier.dense",
        "classifier.out_proj",
        "",
        "roberta.encoder.layer.{}.output.dense",
    ),
    "distilbert": (
        4,
        "distilbert.embeddings",
        "pre_classifier",
        "classifier",
        "",
        "distilbert.transformer.layer.{}.ffn.lin2",
    ),
    "albert": (
        2,
        "albert.embeddings albert.encoder.embedding_hidden_mapping_in",
        "albert.pooler",
        "classifier",
        "",
        "albert.encoder.albert_layer_groups.{}.albert_layers.0.ffn_output",
    ),
    "electra": (
        4,
        "electra.embeddings electra.embeddings_project",
        "",
        "classifier",
        "",
        "electra.encoder.layer.{}.output.dense",
    ),
    "deberta-v2": (
        4,
        "deberta.embeddings deberta.encoder.rel_embeddings deberta.encoder.LayerNorm",
        "pooler",
        "classifier",
        "",
        "deberta.encoder.layer.{}.output.dense",
    ),
    "mpnet": (
        4,
        "mpnet.embeddings mpnet.encoder.relative_attention_bias",
        "classifier.dense",
        "classifier.out_proj",
        "",
        "mpnet.encoder.layer.{}.output.dense",
    ),
    "modernbert": (4, "model.embeddings", "head", "classifier", "model.final_norm", "model.layers.{}.mlp.Wo"),
    "xlnet": (
        4,
        "transformer.word_embedding",
        "",
        "sequence_summary logits_proj",
        "",
        "transformer.layer.{}.ff.layer_2",
    ),
    "bart": (
        7,
        "model.shared model.encoder.embed_tokens model.encoder.embed_positions model.encoder.layernorm_embedding "
        "model.decoder.embed_tokens model.decoder.embed_positions model.decoder.layernorm_embedding",
        "",
        "classification_head",
        "",
        "model.(encoder|decoder).layers.{}.fc2",
    ),
    "t5": (
        7,
        "transformer.shared transformer.encoder.embed_tokens transformer.decoder.embed_tokens",
        "",
        "classification_head",
        "transformer.decoder.final_layer_norm",
        "transformer.(encoder|decoder).block.{}.layer.(1|2).DenseReluDense.wo",
    ),
    "gpt2": (4, "transformer.wte transformer.wpe", "", "score", "transformer.ln_f", "transformer.h.{}.mlp.c_proj"),
    "llama": (4, "model.embed_tokens", "", "score", "model.norm", "model.layers.{}.mlp.down_proj"),
    "vit": (4, "vit.embeddings", "", "classifier", "vit.layernorm", "vit.layers.{}.mlp.fc2"),
    "mlp": (2, "", "", "6", "", "(4|6)"),
}


def feed_forward_outputs(model: nn.Module, pattern: str) -> set[str]:
    wanted = re.compile(pattern.replace(".", r"\.").replace("{}", r"\d+"))
    return {name for name, _ in model.named_modules() if wanted.fullmatch(name)}


@pytest.mark.parametrize("name", TINY)
def test_classifiers_name_by_name(name: str) -> None:
    count, embeddings, pooler, head, norm, output = CLASSIFIERS[name]
    model = TINY[name]()
    layers = find_layers(model)
    assert layers.family == ("sequential" if name == "mlp" else name)
    assert layers.count == count
    assert tops(layers, EMBEDDINGS) == flat(embeddings)
    assert tops(layers, POOLER) == flat(pooler)
    assert tops(layers, HEAD) == flat(head)
    assert flat(norm) <= tops(layers, count)
    assert len(tops(layers, count)) == 1 + len(flat(norm))
    ends: list[tuple[str, Part]] = [(embeddings, EMBEDDINGS), (pooler, POOLER), (head, HEAD)]
    there = [part for names, part in ends if names]
    assert set(layers.parts()) == {*there, *range(1, count + 1)}
    assert layers.parts() == sorted(layers.parts(), key=lambda part: (layers.depth(part), part == HEAD))
    assert len(feed_forward_outputs(model, output)) == count
    assert fed(layers) == feed_forward_outputs(model, output)
    assert_complete(layers)


def test_every_classifier_has_a_valid_batch() -> None:
    for name, builder in TINY.items():
        torch.manual_seed(0)
        model, inputs = builder(), batch(name)
        logits = model(inputs["input"]) if name == "mlp" else model(**inputs).logits
        assert logits.shape == (4, 3)
        torch.manual_seed(0)
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), builder().parameters()))


def test_depth_counts_from_the_embeddings() -> None:
    layers = find_layers(TINY["bert"]())
    assert [layers.depth(part) for part in layers.parts()] == [0, 1, 2, 3, 4, 5, 5]
    for wrong in (0, 5, True, "block 1", None):
        with pytest.raises(SteadytuneError, match="blocks 1 to 4"):
            layers.depth(wrong)  # type: ignore[arg-type]
        with pytest.raises(SteadytuneError, match="no part"):
            layers.parameters(wrong)  # type: ignore[arg-type]


def test_blocks_are_numbered_from_the_bottom() -> None:
    bert, bart, albert = (find_layers(TINY[name]()) for name in ("bert", "bart", "albert"))
    assert [tops(bert, block) for block in (1, 4)] == [{"bert.encoder.layer.0"}, {"bert.encoder.layer.3"}]
    assert [tops(bart, block) for block in (1, 3, 4, 7)] == [
        {"model.encoder.layers.0"},
        {"model.encoder.layers.2"},
        {"model.decoder.layers.0"},
        {"model.decoder.layers.3"},
    ]
    assert tops(albert, 2) == {"albert.encoder.albert_layer_groups.1.albert_layers.0"}
    grouped = find_layers(tiny("albert", "ForSequenceClassification", inner_group_num=2))
    assert grouped.count == 4
    assert grouped.part("albert.encoder.albert_layer_groups.1.albert_layers.1.ffn.weight") == 4


def test_one_block_is_a_stack_too() -> None:
    bert = find_layers(tiny("bert", "ForSequenceClassification", num_hidden_layers=1))
    assert (bert.count, tops(bert, 1)) == (1, {"bert.encoder.layer.0"})
    t5 = find_layers(tiny("t5", "ForSequenceClassification", num_layers=1, num_decoder_layers=1))
    assert (t5.count, t5.top_blocks(1)) == (2, [2])


def test_norms_after_a_stack_belong_to_its_last_block() -> None:
    t5 = find_layers(TINY["t5"]())
    assert t5.part("transformer.encoder.final_layer_norm.weight") == 3
    assert t5.part("transformer.decoder.final_layer_norm.weight") == 7
    assert t5.part("transformer.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight") == 1
    assert find_layers(TINY["deberta-v2"]()).part("deberta.encoder.conv.conv.weight") == 1
    assert find_layers(TINY["xlnet"]()).part("transformer.mask_emb") == EMBEDDINGS
    assert find_layers(TINY["xlnet"]()).part("transformer.layer.3.rel_attn.seg_embed") == 4
    assert find_layers(TINY["vit"]()).part("vit.embeddings.cls_token") == EMBEDDINGS


def test_part_of_a_module_or_a_wrong_name() -> None:
    layers = find_layers(TINY["roberta"]())
    assert layers.part("classifier") == HEAD  # though its `dense` is the pooler
    assert layers.part("classifier.dropout") == HEAD
    albert = find_layers(TINY["albert"]())
    assert albert.part("albert.encoder.albert_layer_groups.1") == 2
    assert layers.part("classifier.dense.bias") == POOLER
    assert layers.part("roberta.encoder.layer.2.attention.self") == 3
    assert layers.part("roberta.embeddings.position_ids") == EMBEDDINGS  # a buffer
    with pytest.raises(SteadytuneError, match=r"no parameter or module 'classifier.dens'.*'classifier.dense'"):
        layers.part("classifier.dens")
    with pytest.raises(SteadytuneError, match="no parameter or module"):
        layers.part("roberta.encoder.layer.0.nothing")
    with pytest.raises(SteadytuneError, match="no parameter or module"):
        layers.fed_by_activation("roberta.encoder.layer.9.output.dense")
    for several in ("", "roberta", "roberta.encoder", "roberta.encoder.layer"):
        with pytest.raises(SteadytuneError, match="spans several parts"):
            layers.part(several)
        assert not layers.fed_by_activation(several)


def test_a_module_added_later_goes_with_what_holds_it() -> None:
    model = TINY["bert"]()
    layers = find_layers(model)
    model.get_submodule("bert.encoder.layer.1.output").adapter = nn.Linear(16, 16)
    assert layers.part("bert.encoder.layer.1.output.adapter.weight") == 2
    assert_complete(layers)


# --- top blocks -------------------------------------------------------------------------------------------------------


def test_top_blocks() -> None:
    bert = find_layers(TINY["bert"]())
    assert bert.top_blocks(0) == []
    assert bert.top_blocks(2) == [3, 4]
    assert bert.top_blocks(4) == [1, 2, 3, 4]
    with pytest.raises(SteadytuneError, match=r"top 5 blocks of BertForSequenceClassification: there are 4\."):
        bert.top_blocks(5)
    with pytest.raises(SteadytuneError, match="Ask for 0 to 4"):
        bert.top_blocks(-1)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_top_blocks_of_an_encoder_decoder_are_the_decoders(name: str) -> None:
    layers = find_layers(TINY[name]())
    assert layers.top_blocks(4) == [4, 5, 6, 7]
    with pytest.raises(SteadytuneError, match="there are 4 in its decoder"):
        layers.top_blocks(5)


def test_top_blocks_of_albert_says_that_layers_share_them() -> None:
    layers = find_layers(TINY["albert"]())
    assert layers.top_blocks(1) == [2]
    with pytest.raises(SteadytuneError, match=r"there are 2 \(its 4 layers share blocks\)"):
        layers.top_blocks(3)


# --- other heads ------------------------------------------------------------------------------------------------------

# family, class: pooler, head (tied weights and all)
HEADS: list[tuple[str, str, str, str]] = [
    ("bert", "Model", "pooler", ""),
    ("bert", "ForMaskedLM", "", "cls"),
    ("bert", "ForPreTraining", "bert.pooler", "cls"),
    ("bert", "LMHeadModel", "", "cls"),
    ("bert", "ForNextSentencePrediction", "bert.pooler", "cls"),
    ("bert", "ForTokenClassification", "", "classifier"),
    ("bert", "ForQuestionAnswering", "", "qa_outputs"),
    ("bert", "ForMultipleChoice", "bert.pooler", "classifier"),
    ("roberta", "Model", "pooler", ""),
    ("roberta", "ForMaskedLM", "", "lm_head"),
    ("roberta", "ForCausalLM", "", "lm_head"),
    ("roberta", "ForTokenClassification", "", "classifier"),
    ("roberta", "ForQuestionAnswering", "", "qa_outputs"),
    ("roberta", "ForMultipleChoice", "roberta.pooler", "classifier"),
    ("xlm-roberta", "Model", "pooler", ""),
    ("xlm-roberta", "ForTokenClassification", "", "classifier"),
    ("distilbert", "Model", "", ""),
    ("distilbert", "ForMaskedLM", "", "vocab_transform vocab_layer_norm vocab_projector"),
    ("distilbert", "ForTokenClassification", "", "classifier"),
    ("distilbert", "ForQuestionAnswering", "", "qa_outputs"),
    ("distilbert", "ForMultipleChoice", "pre_classifier", "classifier"),
    ("albert", "Model", "pooler", ""),
    ("albert", "ForMaskedLM", "", "predictions"),
    ("albert", "ForPreTraining", "albert.pooler", "predictions sop_classifier"),
    ("electra", "Model", "", ""),
    ("electra", "ForPreTraining", "", "discriminator_predictions"),
    ("electra", "ForMaskedLM", "", "generator_predictions generator_lm_head"),
    ("electra", "ForTokenClassification", "", "classifier"),
    ("electra", "ForMultipleChoice", "", "sequence_summary classifier"),
    ("deberta-v2", "Model", "", ""),
    ("deberta-v2", "ForMaskedLM", "", "cls"),
    ("deberta-v2", "ForTokenClassification", "", "classifier"),
    ("deberta-v2", "ForMultipleChoice", "pooler", "classifier"),
    ("mpnet", "Model", "pooler", ""),
    ("mpnet", "ForMaskedLM", "", "lm_head"),
    ("mpnet", "ForQuestionAnswering", "", "qa_outputs"),
    ("modernbert", "Model", "", ""),
    ("modernbert", "ForMaskedLM", "", "head decoder"),  # this `head` is the pretrained masked-language head
    ("modernbert", "ForTokenClassification", "head", "classifier"),
    ("xlnet", "Model", "", ""),
    ("xlnet", "LMHeadModel", "", "lm_loss"),
    ("xlnet", "ForTokenClassification", "", "classifier"),
    ("xlnet", "ForQuestionAnsweringSimple", "", "qa_outputs"),
    ("bart", "Model", "", ""),
    ("bart", "ForConditionalGeneration", "", "lm_head"),
    ("bart", "ForQuestionAnswering", "", "qa_outputs"),
    ("bart", "ForCausalLM", "", "lm_head"),
    ("t5", "Model", "", ""),
    ("t5", "EncoderModel", "", ""),
    ("t5", "ForConditionalGeneration", "", "lm_head"),
    ("t5", "ForQuestionAnswering", "", "qa_outputs"),
    ("t5", "ForTokenClassification", "", "classifier"),
    ("gpt2", "Model", "", ""),
    ("gpt2", "LMHeadModel", "", "lm_head"),
    ("gpt2", "DoubleHeadsModel", "", "lm_head multiple_choice_head"),
    ("gpt2", "ForTokenClassification", "", "classifier"),
    ("llama", "Model", "", ""),
    ("llama", "ForCausalLM", "", "lm_head"),
    ("llama", "ForQuestionAnswering", "", "qa_outputs"),
    ("llama", "ForTokenClassification", "", "score"),
    ("vit", "Model", "pooler", ""),
    ("vit", "ForMaskedImageModeling", "", "decoder"),
]


@pytest.mark.parametrize(("family", "head", "pooler", "names"), HEADS, ids=lambda value: str(value).replace(" ", "+"))
def test_other_heads(family: str, head: str, pooler: str, names: str) -> None:
    changes = {"ForMaskedImageModeling": {"encoder_stride": 4}, "ForQuestionAnswering": {"num_labels": 2}}.get(head, {})
    layers = find_layers(tiny(family, head, **changes))
    alone = head in ("EncoderModel", "ForCausalLM", "ForTokenClassification")  # half of an encoder-decoder
    blocks = {"albert": 2, "bart": 4 if alone else 7, "t5": 3 if alone else 7}.get(family, 4)
    assert layers.family == family
    assert layers.count == blocks
    assert layers.top_blocks(1) == [blocks]
    assert tops(layers, POOLER) == flat(pooler)
    assert tops(layers, HEAD) == flat(names)
    assert len(fed(layers)) == blocks
    assert_complete(layers)


def test_a_tied_weight_is_listed_once_and_lowest() -> None:
    layers = find_layers(tiny("gpt2", "LMHeadModel"))
    assert "transformer.wte.weight" in layers.parameters(EMBEDDINGS)
    assert layers.parameters(HEAD) == {}  # all of it is the embedding
    assert layers.parts()[-1] == HEAD
    assert layers.part("lm_head") == layers.part("lm_head.weight") == HEAD
    masked = find_layers(tiny("bert", "ForMaskedLM"))
    assert "cls.predictions.decoder.weight" not in masked.parameters(HEAD)
    assert "cls.predictions.bias" in masked.parameters(HEAD)
    untied = find_layers(tiny("llama", "ForCausalLM", tie_word_embeddings=False))
    assert set(untied.parameters(HEAD)) == {"lm_head.weight"}

    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 9, bias=False)
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32) for _ in range(2))
            self.embed = nn.Embedding(9, 16)
            self.embed.weight = self.head.weight

    assert set(find_layers(HeadFirst()).parameters(EMBEDDINGS)) == {"embed.weight"}


# --- relatives, found by the same rules -------------------------------------------------------------------------------

LLAMA = {**BERT, "num_key_value_heads": 1, "head_dim": 8}
CLIP = {**VIT, "projection_dim": 8}
RELATIVES: list[tuple[str, str, dict[str, Any], int, str, str, str]] = [
    # class, settings, blocks, pooler, head, beside the last block
    ("Camembert", "ForSequenceClassification", BERT, 4, "classifier.dense", "classifier.out_proj", ""),
    (
        "XLMRobertaXL",
        "ForSequenceClassification",
        BERT,
        4,
        "classifier.dense",
        "classifier.out_proj",
        "roberta.encoder.LayerNorm",
    ),
    ("Deberta", "ForSequenceClassification", {**BERT, "relative_attention": True}, 4, "pooler", "classifier", ""),
    ("Mistral", "ForSequenceClassification", LLAMA, 4, "", "score", "model.norm"),
    ("Qwen2", "ForCausalLM", LLAMA, 4, "", "lm_head", "model.norm"),
    ("Qwen3", "ForCausalLM", LLAMA, 4, "", "lm_head", "model.norm"),
    ("Gemma", "ForSequenceClassification", LLAMA, 4, "", "score", "model.norm"),
    ("Gemma2", "ForCausalLM", LLAMA, 4, "", "lm_head", "model.norm"),
    ("Phi", "ForCausalLM", {**BERT, "num_key_value_heads": 2}, 4, "", "lm_head", "model.final_layernorm"),
    ("Phi3", "ForCausalLM", LLAMA, 4, "", "lm_head", "model.norm"),
    ("GPTNeoX", "ForCausalLM", BERT, 4, "", "lm_head", "gpt_neox.final_layer_norm"),
    (
        "OPT",
        "ForCausalLM",
        {
            **IDS,
            "hidden_size": 16,
            "word_embed_proj_dim": 8,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "max_position_embeddings": 40,
        },
        4,
        "",
        "lm_head",
        "model.decoder.final_layer_norm model.decoder.project_out",
    ),
    ("MBart", "ForConditionalGeneration", SEQ2SEQ, 7, "", "lm_head", "model.decoder.layer_norm"),
    ("MBart", "ForSequenceClassification", SEQ2SEQ, 7, "", "classification_head", "model.decoder.layer_norm"),
    ("Marian", "MTModel", SEQ2SEQ, 7, "", "lm_head", ""),
    ("Pegasus", "ForConditionalGeneration", SEQ2SEQ, 7, "", "lm_head", "model.decoder.layer_norm"),
    ("MT5", "ForConditionalGeneration", T5, 7, "", "lm_head", "decoder.final_layer_norm"),
    (
        "Whisper",
        "ForConditionalGeneration",
        {**SEQ2SEQ, "num_mel_bins": 8},
        7,
        "",
        "proj_out",
        "model.decoder.layer_norm",
    ),
    ("DeiT", "ForImageClassification", VIT, 4, "", "classifier", "deit.layernorm"),
    ("Beit", "ForImageClassification", VIT, 4, "beit.pooler", "classifier", ""),
    ("CLIPVision", "Model", CLIP, 4, "", "", "post_layernorm"),
    ("Dinov2", "ForImageClassification", VIT, 4, "", "classifier", "dinov2.layernorm"),
    ("Ernie", "ForSequenceClassification", BERT, 4, "ernie.pooler", "classifier", ""),
]


@pytest.mark.parametrize(
    ("prefix", "head", "settings", "count", "pooler", "names", "norm"),
    RELATIVES,
    ids=[f"{row[0]}{row[1]}" for row in RELATIVES],
)
def test_relatives(
    prefix: str, head: str, settings: dict[str, Any], count: int, pooler: str, names: str, norm: str
) -> None:
    layers = find_layers(build(prefix, head, settings))
    assert layers.count == count
    assert tops(layers, POOLER) == flat(pooler)
    assert tops(layers, HEAD) == flat(names)
    assert len(tops(layers, count)) == 1 + len(flat(norm))
    assert flat(norm) <= tops(layers, count)
    assert layers.parts()[0] == EMBEDDINGS
    assert len(fed(layers)) == count
    assert_complete(layers)


# --- wrappers ---------------------------------------------------------------------------------------------------------


class Wrapper(nn.Module):
    """As DistributedDataParallel: the model is its only child, `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("wrap", [Wrapper, torch.compile, lambda model: Wrapper(torch.compile(model))])
def test_wrappers_only_prefix_the_names(name: str, wrap: Any) -> None:
    model = TINY[name]()
    wrapped = wrap(model)
    prefix = next(full for full, module in wrapped.named_modules() if module is model) + "."
    bare, seen = find_layers(model), find_layers(wrapped)
    assert (seen.family, seen.count, seen.parts()) == (bare.family, bare.count, bare.parts())
    for part in bare.parts():
        assert [*seen.parameters(part)] == [prefix + full for full in bare.parameters(part)]
        assert [*seen.modules(part)] == [prefix + full for full in bare.modules(part)]
    assert fed(seen) == {prefix + full for full in fed(bare)}
    assert seen.same_input() == [tuple(prefix + full for full in group) for group in bare.same_input()]


def test_single_blocks_may_be_wrapped() -> None:
    model = TINY["llama"]()
    blocks = model.get_submodule("model.layers")
    blocks[1] = torch.compile(blocks[1])
    layers = find_layers(model)
    assert layers.count == 4
    assert layers.part("model.layers.1._orig_mod.mlp.up_proj.weight") == 2
    assert layers.fed_by_activation("model.layers.1._orig_mod.mlp.down_proj")
    assert_complete(layers)


def test_peft_lora_inside_blocks() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value", "output.dense"])
    model = peft.get_peft_model(TINY["roberta"](), settings)
    layers = find_layers(model)
    root, block = "base_model.model.", "base_model.model.roberta.encoder.layer.1."
    assert (layers.family, layers.count) == ("roberta", 4)
    assert tops(layers, 2) == {block[:-1]}
    assert layers.part(f"{block}attention.self.query.lora_A.default.weight") == 2
    assert layers.part(f"{block}attention.self.query.base_layer.weight") == 2
    # The classifier is trained as a copy; the pooler inside it is still the pooler, in both.
    assert layers.part(f"{root}classifier.modules_to_save.default.dense.weight") == POOLER
    assert layers.part(f"{root}classifier.original_module.dense.weight") == POOLER
    assert layers.part(f"{root}classifier.modules_to_save.default.out_proj.weight") == HEAD
    outputs = {f"{block}output.dense{end}" for end in ("", ".base_layer", ".lora_A.default")}
    assert {name for name in fed(layers) if name.startswith(block)} == outputs
    names = [f"{block}attention.self.{name}" for name in ("query.base_layer", "key", "value.base_layer")]
    assert layers.same_input()[1] == tuple(names)
    assert_complete(layers)


def test_peft_prompts_are_embeddings() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    layers = find_layers(peft.get_peft_model(TINY["bert"](), settings))
    assert layers.part("prompt_encoder.default.embedding.weight") == EMBEDDINGS
    assert layers.part("base_model.bert.pooler.dense.weight") == POOLER
    assert_complete(layers)


def test_on_the_meta_device() -> None:
    for name in TINY:
        with torch.device("meta"):
            model = TINY[name]()
        there = find_layers(TINY[name]())
        layers = find_layers(model)
        assert [(part, [*layers.parameters(part)]) for part in layers.parts()] == [
            (part, [*there.parameters(part)]) for part in there.parts()
        ]


def test_the_model_is_not_touched() -> None:
    model = TINY["bert"]()
    before = copy.deepcopy(model.state_dict())
    find_layers(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


# --- inside a block, against what really flows ------------------------------------------------------------------------


def run(name: str, model: nn.Module) -> None:
    inputs = batch(name)
    with torch.no_grad():
        model.eval()(**({"input": inputs["input"]} if name == "mlp" else inputs))


@pytest.mark.parametrize("name", [name for name in TINY if name != "mlp"])
def test_fed_by_activation_is_what_the_activation_feeds(name: str) -> None:
    """Make each activation of block 1 give NaN: the Linears of that block which then read NaN are the ones."""
    model = TINY[name]()
    layers = find_layers(model)
    read: dict[str, bool] = {}
    for full, module in model.named_modules():
        in_block = any(f"{full}.".startswith(f"{top}.") for top in layers.modules(1))
        if in_block and re.search(r"\.activations?$", type(module).__module__):
            module.register_forward_hook(lambda _, __, output: output * float("nan"))
        elif isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":

            def note(_: nn.Module, given: tuple[torch.Tensor, ...], full: str = full) -> None:
                read.setdefault(full, bool(given[0].isnan().any()))

            module.register_forward_pre_hook(note)
    run(name, model)
    assert {full for full, nan in read.items() if nan and layers.part(full) == 1} == {
        full for full in fed(layers) if layers.part(full) == 1
    }


@pytest.mark.parametrize("name", TINY)
def test_same_input_is_one_tensor(name: str) -> None:
    model = TINY[name]()
    layers = find_layers(model)
    given: dict[str, int] = {}
    kept = []  # alive, so that no address is used twice
    for full, module in model.named_modules():
        if isinstance(module, nn.Linear):

            def note(_: nn.Module, inputs: tuple[torch.Tensor, ...], full: str = full) -> None:
                kept.append(inputs[0])
                given.setdefault(full, id(inputs[0]))

            module.register_forward_pre_hook(note)
    run(name, model)
    groups = layers.same_input()
    for group in groups:
        assert len({given[full] for full in group}) == 1, group
    # Nobody was forgotten: in the attention of one block, whoever reads the same tensor is in one group.
    attention = [full for full in given if re.search(r"(?i)attn|attention", full)]
    for full in attention:
        mates = {
            other for other in attention if given[other] == given[full] and layers.part(other) == layers.part(full)
        }
        assert len(mates) == 1 or any(mates == set(group) for group in groups), mates


def test_same_input_names() -> None:
    groups = find_layers(TINY["bert"]()).same_input()
    attention = "bert.encoder.layer.0.attention.self."
    assert groups[0] == (f"{attention}query", f"{attention}key", f"{attention}value")
    assert len(groups) == 4
    bart = find_layers(TINY["bart"]()).same_input()
    cross = "model.decoder.layers.3.encoder_attn."
    assert bart[-1] == (f"{cross}k_proj", f"{cross}v_proj")
    assert len(bart) == 3 + 2 * 4
    t5 = find_layers(TINY["t5"]()).same_input()
    assert tuple(f"transformer.decoder.block.0.layer.1.EncDecAttention.{name}" for name in "kv") in t5
    for fused in ("gpt2", "modernbert", "xlnet", "mlp"):
        assert find_layers(TINY[fused]()).same_input() == []
    cross_bert = find_layers(tiny("bert", "LMHeadModel", is_decoder=True, add_cross_attention=True))
    assert ("bert.encoder.layer.0.crossattention.self.key", "bert.encoder.layer.0.crossattention.self.value") in (
        cross_bert.same_input()
    )
    assert "bert.encoder.layer.0.crossattention.output.dense" not in fed(cross_bert)


# --- models of your own -----------------------------------------------------------------------------------------------


def modules(**children: nn.Module) -> nn.Module:
    model = nn.Module()
    for name, child in children.items():
        model.add_module(name, child)
    return model


def encoder(count: int = 3, norm: bool = False) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, count, norm=nn.LayerNorm(16) if norm else None, enable_nested_tensor=False)


def test_generic_torch_transformer() -> None:
    model = modules(
        embedding=nn.Embedding(9, 16), encoder=encoder(norm=True), dropout=nn.Dropout(), fc=nn.Linear(16, 3)
    )
    model.pos = nn.Parameter(torch.zeros(1, 5, 16))
    layers = find_layers(model)
    assert (layers.family, layers.count) == ("generic", 3)
    assert set(layers.parameters(EMBEDDINGS)) == {"pos", "embedding.weight"}
    assert tops(layers, 3) == {"encoder.layers.2", "encoder.norm"}
    assert tops(layers, HEAD) == {"fc"}
    assert fed(layers) == {f"encoder.layers.{i}.linear2" for i in range(3)}
    assert_complete(layers)


def test_generic_in_a_sequential() -> None:
    model = nn.Sequential(
        nn.Embedding(9, 16), nn.Linear(16, 16), encoder(), nn.LayerNorm(16), nn.Flatten(), nn.Linear(16, 3)
    )
    layers = find_layers(model)
    assert (layers.count, tops(layers, EMBEDDINGS), tops(layers, HEAD)) == (3, {"0", "1"}, {"5"})
    assert tops(layers, 3) == {"2.layers.2", "3"}
    assert_complete(layers)


def test_generic_encoder_decoder() -> None:
    layers = find_layers(nn.Transformer(16, 2, 2, 3, 32))
    assert layers.count == 5
    assert layers.top_blocks(3) == [3, 4, 5]
    assert tops(layers, 2) == {"encoder.layers.1", "encoder.norm"}
    assert_complete(layers)


def test_generic_sequential_of_blocks_as_timm() -> None:
    blocks = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32) for _ in range(3)))
    model = modules(patch_embed=nn.Conv2d(3, 16, 4), blocks=blocks, norm=nn.LayerNorm(16), head=nn.Linear(16, 3))
    model.cls_token = nn.Parameter(torch.zeros(1, 1, 16))
    layers = find_layers(model)
    assert (layers.count, tops(layers, EMBEDDINGS), tops(layers, HEAD)) == (3, {"patch_embed"}, {"head"})
    assert tops(layers, 3) == {"blocks.2", "norm"}
    assert_complete(layers)


def test_generic_feed_forward_as_a_sequential_in_the_block() -> None:
    def block() -> nn.Module:
        ffn = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(), nn.Linear(32, 16))
        return modules(attention=nn.MultiheadAttention(16, 2), ffn=ffn)

    model = modules(embed=nn.Embedding(9, 16), layers=nn.ModuleList(block() for _ in range(2)), head=nn.Linear(16, 3))
    assert fed(find_layers(model)) == {"layers.0.ffn.3", "layers.1.ffn.3"}


def test_one_block_used_several_times_is_one_block() -> None:
    block = nn.TransformerEncoderLayer(16, 2, 32)
    layers = find_layers(modules(embed=nn.Embedding(9, 16), layers=nn.ModuleList([block] * 4), head=nn.Linear(16, 3)))
    assert layers.count == 1
    assert layers.part("layers.3.linear1.weight") == 1
    assert tops(layers, 1) == {"layers.0"}
    assert_complete(layers)


def test_your_own_head_on_a_hugging_face_model() -> None:
    out = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    layers = find_layers(
        modules(backbone=tiny("bert", "Model"), attention_pool=nn.Linear(16, 1), norm=nn.LayerNorm(16), out=out)
    )
    assert layers.family == "bert"
    assert tops(layers, POOLER) == {"backbone.pooler", "attention_pool"}
    assert tops(layers, HEAD) == {"norm", "out"}
    assert_complete(layers)


def test_encoder_decoder_of_two_models() -> None:
    import transformers

    settings = {key: value for key, value in BERT.items() if key not in ("bos_token_id", "eos_token_id")}
    one, other = transformers.BertConfig(**settings), transformers.BertConfig(**settings)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(one, other)
    layers = find_layers(transformers.EncoderDecoderModel(config))
    assert (layers.count, layers.top_blocks(1)) == (8, [8])
    assert layers.part("decoder.bert.encoder.layer.0.output.dense.weight") == 5
    assert tops(layers, HEAD) == {"decoder.cls"}
    assert_complete(layers)


def test_perceptrons() -> None:
    def layer(size: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, size), nn.BatchNorm1d(size), nn.ReLU())

    nested = nn.Sequential(layer(4), nn.Sequential(layer(4), nn.Dropout()), nn.Linear(4, 2), nn.LogSoftmax(-1))
    layers = find_layers(nested)
    assert (layers.family, layers.count, layers.parts()) == ("sequential", 2, [1, 2, HEAD])
    assert (tops(layers, 2), tops(layers, HEAD)) == ({"1.0.0", "1.0.1"}, {"2"})
    assert [layers.part(name) for name in ("0.2", "1.1", "3")] == [1, 2, HEAD]
    assert fed(layers) == {"1.0.0", "2"}
    assert_complete(layers)

    held = find_layers(modules(flatten=nn.Flatten(), net=nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))))
    assert (held.count, held.part("net.0"), held.part("net.2"), fed(held)) == (1, 1, HEAD, {"net.2"})

    features = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU())
    convolutional = find_layers(modules(features=features, pool=nn.AvgPool2d(2), classifier=nn.Linear(4, 2)))
    assert (convolutional.count, tops(convolutional, HEAD), fed(convolutional)) == (2, {"classifier"}, {"classifier"})

    text = find_layers(
        nn.Sequential(nn.EmbeddingBag(9, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    )
    assert text.parts() == [EMBEDDINGS, 1, HEAD]
    assert set(text.parameters(EMBEDDINGS)) == {"0.weight", "1.weight", "1.bias"}

    assert find_layers(nn.Linear(4, 2)).parts() == [HEAD]
    assert find_layers(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))).parts() == [HEAD]


# --- refused ----------------------------------------------------------------------------------------------------------


def test_refuses_what_has_no_telling_name() -> None:
    model = modules(embed=nn.Embedding(9, 16), encoder=encoder(), mystery=nn.Linear(16, 16), head=nn.Linear(16, 3))
    model.alpha = nn.Parameter(torch.zeros(1))
    with pytest.raises(SteadytuneError) as refused:
        find_layers(model)
    assert str(refused.value) == (
        "Cannot place 3 of 42 parameters of Module beside the blocks in 'encoder.layers': alpha, mystery.weight, "
        "mystery.bias. Give their modules telling names (embeddings, norm, pooler, head), or add Module to "
        "steadytune.layers."
    )


@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(3, 4),
        nn.Conv2d(3, 3, 1),
        modules(fc1=nn.Linear(2, 3), fc2=nn.Linear(3, 2)),  # in which order, and with which activation between?
        modules(left=nn.Sequential(nn.Linear(2, 3)), right=nn.Sequential(nn.Linear(2, 3))),
        nn.ModuleList([nn.Linear(2, 2), nn.LSTM(2, 2)]),
    ],
    ids=["lstm", "conv", "fc1-fc2", "left-right", "unequal"],
)
def test_refuses_what_has_no_blocks(model: nn.Module) -> None:
    with pytest.raises(SteadytuneError, match=f"{type(model).__name__}: .*no ModuleList of equal blocks") as refused:
        find_layers(model)
    assert next(name for name, _ in model.named_parameters()) in str(refused.value)


def test_refuses_two_towers() -> None:
    twins = modules(query=tiny("bert", "Model"), document=tiny("bert", "Model"))
    with pytest.raises(SteadytuneError, match=r"'query.encoder.layer': document\.embeddings"):
        find_layers(twins)
    towers = {"text_config": {**BERT, "max_position_embeddings": 8}, "vision_config": CLIP, "projection_dim": 8}
    with pytest.raises(SteadytuneError, match="CLIPModel beside the blocks in"):
        find_layers(build("CLIP", "Model", towers))


def test_refuses_a_model_without_parameters() -> None:
    with pytest.raises(SteadytuneError, match="has no parameters"):
        find_layers(nn.Sequential(nn.Dropout()))


def test_says_so_where_the_feed_forward_output_is_unknown() -> None:
    blocks = nn.ModuleList(modules(one=nn.Linear(16, 32), two=nn.Linear(32, 16)) for _ in range(2))
    layers = find_layers(modules(embed=nn.Embedding(9, 16), blocks=blocks, head=nn.Linear(16, 3)))
    with pytest.raises(SteadytuneError, match="Cannot tell which Linear of block 2 of Module"):
        layers.fed_by_activation("blocks.1.two")
    assert not layers.fed_by_activation("head")
