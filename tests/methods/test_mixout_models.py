"""Mixout inside real architectures and everything that training does to a model (T1, D4-D7)."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from steadytune import Mixout, Streams, apply_, mixout_, remove_
from steadytune.methods.dropout import dropout_sites
from steadytune.methods.mixed_layers import MixedLinear, mixed_layers
from two_processes import launch


def bert(layers=2, cls=BertForSequenceClassification, **config):
    torch.manual_seed(0)
    return cls(
        BertConfig(
            vocab_size=60,
            hidden_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=32,
            **config,
        )
    )


def batch(rows=4):
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(1, 60, (rows, 7), generator=generator),
        "attention_mask": torch.ones(rows, 7, dtype=torch.long),
        "labels": torch.arange(rows) % 2,
    }


def moved_(model, amount=0.05):
    """Away from the targets, so that masks show in the outputs."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(amount * torch.randn(p.shape, generator=generator))
    return model


def mixed_bert(p=0.7, layers=2, noise=3, **settings):
    model = bert(layers)
    apply_(model, Mixout(p=p, **settings), streams=Streams(noise=noise))
    return moved_(model).train()


def gradients(model, rows=4):
    model.zero_grad()
    model(**batch(rows)).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_equal_gradients(a, b, exact=True):
    assert a.keys() == b.keys()
    for name in a:
        if exact:
            assert torch.equal(a[name], b[name]), name
        else:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


# --- which layers -----------------------------------------------------------------------------------------------------


def test_paper_selection_skips_head_embeddings_and_the_linear_fed_by_the_activation():
    names = mixout_(bert(), 0.7)
    blocks = [
        f"bert.encoder.layer.{i}.{part}"
        for i in range(2)
        for part in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
        )
    ]
    assert names == [*blocks, "bert.pooler.dense"]


def test_linear_is_every_linear_layer_and_all_takes_the_embeddings_too():
    linear = {name for name, m in bert().named_modules() if isinstance(m, nn.Linear)}
    embeddings = {name for name, m in bert().named_modules() if isinstance(m, nn.Embedding)}
    assert set(mixout_(bert(), 0.7, layers="linear")) == linear
    assert set(mixout_(bert(), 0.7, layers="all")) == linear | embeddings


def test_patterns():
    assert mixout_(bert(), 0.7, layers="*.query, *.pooler.dense") == [
        "bert.encoder.layer.0.attention.self.query",
        "bert.encoder.layer.1.attention.self.query",
        "bert.pooler.dense",
    ]


def test_the_head_is_mixed_toward_its_own_random_start():
    model = bert()
    start = model.classifier.weight.detach().clone()
    assert "classifier" in mixout_(model, 0.7, head="mixout")
    assert torch.equal(model.classifier.target, start)


def test_the_head_may_have_dropout_instead():
    model = bert()
    mixout_(model, 0.7, head="dropout")
    rates = {name: getattr(module, attribute) for module, attribute, name in dropout_sites(model)}
    assert rates.pop("dropout.p") == 0.7
    assert set(rates.values()) == {0.0}


def test_masks_are_shared_between_query_key_and_value_only_where_asked():
    for shared in (False, True):
        attention = mixed_bert(share_qkv=shared).bert.encoder.layer[0].attention.self
        masks = [layer.scale() for layer in (attention.query, attention.key, attention.value)]
        assert torch.equal(masks[0], masks[1]) == shared
        assert torch.equal(masks[0], masks[2]) == shared


# --- what stays as it was ---------------------------------------------------------------------------------------------


def test_replaces_dropout_and_remove_restores_everything():
    model = bert(hidden_dropout_prob=0.13, attention_probs_dropout_prob=0.17)
    rates = [getattr(module, attribute) for module, attribute, _ in dropout_sites(model)]
    classes = [type(m) for m in model.modules()]
    attributes = [sorted(vars(m)) for m in model.modules()]
    buffers = [name for name, _ in model.named_buffers()]
    apply_(model, Mixout(p=0.7))
    assert {getattr(module, attribute) for module, attribute, _ in dropout_sites(model)} == {0.0}
    remove_(model)
    assert [getattr(module, attribute) for module, attribute, _ in dropout_sites(model)] == rates
    assert [type(m) for m in model.modules()] == classes
    assert [sorted(vars(m)) for m in model.modules()] == attributes
    assert [name for name, _ in model.named_buffers()] == buffers


def test_p_zero_leaves_the_model_alone_dropout_included():
    model, plain = bert(), bert()
    apply_(model, Mixout(p=0.0))
    torch.manual_seed(5)
    a = gradients(model.train())
    torch.manual_seed(5)
    assert_equal_gradients(a, gradients(plain.train()))


def test_keys_stay_plain_and_a_saved_model_loads_without_us(tmp_path):
    model = bert()
    keys = list(model.state_dict())
    apply_(model, Mixout(p=0.7))
    moved_(model)
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = {k: v for k, v in batch().items() if k != "labels"}
    assert torch.equal(loaded(**inputs).logits, model.eval()(**inputs).logits)


def test_the_global_generator_is_not_touched():
    state = torch.get_rng_state()
    model = mixed_bert()
    torch.set_rng_state(state)
    gradients(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_tied_weights_stay_tied():
    model = bert(cls=BertForMaskedLM)
    names = mixout_(model, 0.7, layers="linear")
    assert "cls.predictions.decoder" in names
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    moved_(model).train()
    out = model(input_ids=batch()["input_ids"], labels=batch()["input_ids"])
    out.loss.backward()
    model.tie_weights()
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert isinstance(model.cls.predictions.decoder, MixedLinear)


def test_gpt2_conv1d():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    names = mixout_(model, 0.5)
    assert names == [
        f"transformer.h.{i}.{part}" for i in range(2) for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")
    ]
    layer = model.transformer.h[0].attn.c_attn
    with torch.no_grad():
        layer.weight.add_(1.0)
    rows = (layer.mixed_weight(layer.weight) - layer.target).detach().round(decimals=3)
    assert all(len(row.unique()) == 1 for row in rows)  # weight is [in, out]: a neuron's weights are a row
    assert set(rows[:, 0].tolist()) == {0.0, 2.0}
    ids = batch()["input_ids"]
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert model.lm_head.weight is model.transformer.wte.weight


def test_lora_is_mixed_as_its_merged_weight():
    """Mixing W + s B A toward the frozen W with mask M is mixing A toward 0 with the same mask."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(bert(), peft.LoraConfig(target_modules=["query", "dense"], r=4, lora_dropout=0.1))
    names = mixout_(model, 0.5)
    assert names
    assert all(name.endswith("lora_A.default") for name in names)
    assert not any("output.dense" in name and "attention" not in name for name in names)
    moved_(model)
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    frozen, a, b, scaling = (
        layer.base_layer.weight,
        layer.lora_A.default,
        layer.lora_B.default,
        layer.scaling["default"],
    )
    x = torch.randn(3, 16)
    noise = a.mix.noise(tuple(a.mix_state.tolist()), torch.arange(16))
    merged = frozen + scaling * b.weight @ a.weight
    mixed = torch.lerp(frozen, merged, noise)
    torch.testing.assert_close(layer.train()(x), nn.functional.linear(x, mixed, layer.base_layer.bias))
    model.train()(**batch()).loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if p.requires_grad and "lora_A" in n)


# --- what training does -----------------------------------------------------------------------------------------------


def test_gradients_equal_those_of_the_dense_form():
    """Against autograd through torch.lerp, over a whole model."""
    fast, dense = mixed_bert(), mixed_bert()
    for _, layer in mixed_layers(dense):
        layer.forward = lambda x, mixed=layer: nn.functional.linear(x, mixed.mixed_weight(mixed.weight), mixed.bias)
    assert_equal_gradients(gradients(fast), gradients(dense), exact=False)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_replays_the_mask(reentrant):
    plain, saving = mixed_bert(), mixed_bert()
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    saving.enable_input_require_grads()
    for _ in range(3):
        assert_equal_gradients(gradients(plain), gradients(saving))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_with_two_forwards_before_one_backward(reentrant):
    """R-Drop over a mixed model: each recomputation must see the mask of its own forward."""
    plain, saving = mixed_bert(), mixed_bert()
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    saving.enable_input_require_grads()
    grads = []
    for model in (plain, saving):
        model.zero_grad()
        first, second = model(**batch()), model(**batch())
        (first.loss * second.loss).backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert_equal_gradients(*grads)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_of_a_segment_that_uses_a_layer_several_times(reentrant):
    """ALBERT's way: one layer, many uses, each with its own mask, in one checkpointed segment."""

    def run(checkpointed):
        torch.manual_seed(0)
        layer = nn.Linear(8, 8)
        mixout_(nn.Sequential(layer), 0.5, layers="all", streams=Streams(noise=1))
        moved_(layer, 0.5).train()
        x = torch.randn(2, 8, requires_grad=True)

        def segment(x):
            return torch.tanh(layer(torch.tanh(layer(torch.tanh(layer(x))))))

        for _ in range(2):  # two segments
            x = torch.utils.checkpoint.checkpoint(segment, x, use_reentrant=reentrant) if checkpointed else segment(x)
        x.sum().backward()
        return layer.weight.grad

    torch.testing.assert_close(run(True), run(False))  # summed in another order


def test_a_forward_inside_backward_that_repeats_nothing_is_refused():
    layer = nn.Linear(4, 4)
    mixout_(nn.Sequential(layer), 0.5, layers="all")
    x = torch.randn(2, 4, requires_grad=True)
    x.register_hook(lambda grad: layer(grad))
    with pytest.raises(ValueError, match="its mask is unknown"):
        (x * 2).sum().backward()


def test_a_mixed_model_can_be_pickled_whole(tmp_path):
    model = mixed_bert()
    gradients(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert_equal_gradients(gradients(model), gradients(loaded))


def test_gradient_accumulation_adds_up():
    model, again = mixed_bert(), mixed_bert()
    model.zero_grad()
    for _ in range(3):
        (model(**batch()).loss / 3).backward()
    total = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    parts = [gradients(again) for _ in range(3)]
    assert_equal_gradients(total, {n: sum(part[n] for part in parts) / 3 for n in parts[0]}, exact=False)


def test_bf16_autocast():
    model, reference = mixed_bert(), mixed_bert()
    for _, layer in mixed_layers(reference):
        layer.forward = lambda x, mixed=layer: nn.functional.linear(x, mixed.mixed_weight(mixed.weight), mixed.bias)
    grads = []
    for m in (model, reference):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(**batch())
        assert out.logits.dtype == torch.bfloat16
        out.loss.backward()
        grads.append({n: p.grad for n, p in m.named_parameters() if p.grad is not None})
    for name, grad in grads[0].items():
        assert grad.dtype == torch.float32
        error = (grad - grads[1][name]).norm() / (grads[1][name].norm() + 1e-12)
        assert error < 2e-2, name


def test_deepcopy_draws_the_same_and_is_independent():
    model = mixed_bert()
    gradients(model)
    other = copy.deepcopy(model)
    layer, copied = (m.bert.encoder.layer[0].attention.self.query for m in (model, other))
    assert copied.target.data_ptr() != layer.target.data_ptr()
    assert_equal_gradients(gradients(model), gradients(other))
    remove_(other)
    assert isinstance(layer, MixedLinear)


def test_to_moves_the_target():
    model = mixed_bert().to(torch.float64)
    layer = model.bert.encoder.layer[0].attention.self.query
    assert layer.target.dtype == torch.float64
    assert layer.mix_state.dtype == torch.int64
    gradients(model)
    moved_to_meta = copy.deepcopy(layer).to("meta")
    assert moved_to_meta.target.device.type == "meta"


def test_streams_decide_the_masks():
    assert_equal_gradients(gradients(mixed_bert(noise=3)), gradients(mixed_bert(noise=3)))
    a, b = gradients(mixed_bert(noise=3)), gradients(mixed_bert(noise=4))
    assert not torch.equal(a["bert.pooler.dense.weight"], b["bert.pooler.dense.weight"])


def test_manual_seed_decides_the_masks_where_no_streams_are_given():
    def grads(seed):
        model = bert()
        torch.manual_seed(seed)
        apply_(model, Mixout(p=0.7))
        return gradients(moved_(model).train())

    assert_equal_gradients(grads(1), grads(1))
    assert not torch.equal(grads(1)["bert.pooler.dense.weight"], grads(2)["bert.pooler.dense.weight"])


def test_layers_draw_different_masks():
    attention = mixed_bert().bert.encoder.layer[0].attention.self
    assert not torch.equal(attention.query.scale(), attention.key.scale())


@pytest.mark.parametrize("settings", [{}, {"mask": "element"}, {"distribution": "gaussian"}])
def test_compile_fullgraph(settings):
    eager, other = mixed_bert(**settings), mixed_bert(**settings)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for _ in range(3):  # the counter moves on inside the graph: no recompilation, other masks
        compiled.zero_grad()
        compiled(**batch()).loss.backward()
        grads = {n: p.grad for n, p in other.named_parameters() if p.grad is not None}
        assert_equal_gradients(gradients(eager), grads, exact=False)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return launch(Path(__file__).with_name("mixout_ranks.py"), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("masks", ["same", "own"])
def test_two_ranks_equal_one_process_on_the_same_global_batch(ranks, masks):
    state, parallel = ranks[0][masks]
    single = bert()
    torch.manual_seed(100)  # rank 0's seed: DDP gives its counters to all
    apply_(single, Mixout(p=0.7))
    moved_(single).train()
    gradients(single, 8)
    grads = gradients(single, 8)
    assert torch.equal(single.bert.pooler.dense.mix_state, state)
    same = all(torch.allclose(grads[n], g, rtol=1e-4, atol=1e-6) for n, g in parallel.items())
    assert same == (masks == "same")
