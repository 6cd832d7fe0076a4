"""The device path of mixed linear layers and the pool of masks, on the CPU in plain torch; tests/gpu has the kernels.

Every result is compared with the plain path of the CPU: same masks, same counters, same gradients.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AlbertConfig, AlbertForSequenceClassification, BertConfig, BertForSequenceClassification

from steadytune import Mixout, SteadytuneError, Streams, apply_, remove_
from steadytune.kernels.mixout_columns import column_linears
from steadytune.methods import mixed_layers as layers_module
from steadytune.methods.mask_pool import MaskPool, use_kept_columns_
from steadytune.methods.mixed_layers import mixed_layers

SIZES = {"vocab_size": 60, "hidden_size": 30, "num_attention_heads": 2, "intermediate_size": 70}


def mixed(cls=BertForSequenceClassification, config=BertConfig, **settings):
    torch.manual_seed(0)
    model = cls(config(num_hidden_layers=2, max_position_embeddings=32, **SIZES))
    apply_(model, Mixout(p=0.6, layers="linear", **settings), streams=Streams(noise=3))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model.train()


def gradients(model):
    generator = torch.Generator().manual_seed(1)
    model.zero_grad()
    tokens = torch.randint(1, 60, (4, 7), generator=generator)
    model(input_ids=tokens, labels=torch.arange(4) % 2).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def counters(model):
    return {name: layer.calls() for name, layer in mixed_layers(model)}


def set_calls_(model, calls):
    for _, layer in mixed_layers(model):
        layer.set_calls_(calls)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture
def device_path(monkeypatch):
    """Layers take on the CPU the way that they take on a CUDA device."""

    def turn(on=True):
        monkeypatch.setattr(layers_module, "COLUMN_DEVICES", {"cpu"} if on else set())

    turn()
    return turn


@pytest.mark.parametrize("settings", [{}, {"gradient": "paper"}, {"share_qkv": True}])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("kept_only", [False, True])
def test_three_steps_are_those_of_the_plain_path(device_path, kept_only, pooled, settings):
    model, plain = mixed(**settings), mixed(**settings)
    use_kept_columns_(model, kept_only)
    pool = MaskPool(model) if pooled else None
    for _ in range(3):
        device_path(True)
        if pool:
            pool.draw_()
        found = gradients(model)
        device_path(False)
        assert_same(found, gradients(plain))
    assert counters(model) == counters(plain)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_repeats_the_mask(device_path, reentrant, pooled):
    plain, saving = mixed(), mixed()
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    saving.enable_input_require_grads()
    pool = MaskPool(saving) if pooled else None
    for _ in range(2):
        if pool:
            pool.draw_()
        assert_same(gradients(saving), gradients(plain))
    assert counters(saving) == counters(plain)


def test_nothing_is_remembered_that_no_checkpoint_can_ask_for(device_path):
    layer = next(layer for _, layer in mixed_layers(mixed()))
    x = torch.randn(3, 30)
    layer(x).sum().backward()
    assert len(layer.mix_calls) == 0
    checkpoint(layer, x.requires_grad_(), use_reentrant=False).sum().backward()
    assert len(layer.mix_calls) == 1


def test_a_second_forward_on_one_draw_is_refused_unless_asked_for(device_path):
    model, plain = mixed(), mixed()
    pool = MaskPool(model)
    pool.draw_()
    first = gradients(model)
    with pytest.raises(SteadytuneError, match="MixedLinear runs more than once on one draw"):
        gradients(model)
    pool.reuse_()
    second = gradients(model)  # the next chunk of the same batch
    assert_same(first, gradients(plain))
    set_calls_(plain, 0)
    assert_same(second, gradients(plain))
    pool.clear_()
    assert_same(gradients(model), gradients(plain))
    assert counters(model) == counters(plain)


def test_masks_drawn_again_before_the_backward_pass_are_noticed(device_path):
    model = mixed()
    pool = MaskPool(model)
    pool.draw_()
    loss = model(input_ids=torch.ones(2, 3, dtype=torch.long), labels=torch.tensor([0, 1])).loss
    pool.draw_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_counters_stay_where_others_know_them(device_path):
    model = mixed()
    known = [layer.mix_state for _, layer in mixed_layers(model)]  # taken before the pool is made
    pool = MaskPool(model)
    pool.draw_()
    first = gradients(model)
    for counter in known:
        counter[2] = 0
    pool.draw_()
    assert_same(gradients(model), first)
    assert set(pool.calls().values()) == {1}
    pool.states[:, 2] = 0
    pool.draw_()
    assert_same(gradients(model), first)


def test_a_model_that_was_moved_or_unmixed_needs_a_new_pool(device_path):
    model = mixed()
    pool = MaskPool(model)
    pool.draw_()
    model._apply(lambda tensor: tensor.clone())  # what .to(device) does
    with pytest.raises(SteadytuneError, match="moved or unmixed"):
        pool.draw_()
    plain = mixed()
    set_calls_(plain, 1)
    assert_same(gradients(model), gradients(plain))  # draws for itself, and goes on where the pool was
    MaskPool(model).draw_()
    remove_(model)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("mix")]


def test_a_copy_is_independent_of_the_pool(device_path):
    model = mixed()
    pool = MaskPool(model)
    pool.draw_()
    twin = copy.deepcopy(model)
    gradients(twin)
    gradients(twin)
    assert set(counters(twin).values()) == {3}
    assert set(counters(model).values()) == {1}


def test_a_forecast_is_what_happens(device_path):
    model = mixed()
    pool = MaskPool(model)
    pool._table.rows[:, 3] = 33  # narrow lists, so that some masks do not fit
    forecast = pool.forecast(30, start=2)
    seen = []
    pool = MaskPool(model)
    for _ in range(32):
        pool.draw_()
        seen.append(any(int((layer.mix_drawn.place >= 0).sum()) >= 33 for layer in pool.layers.values()))
    assert forecast.tolist() == seen[2:]
    assert 0 < sum(seen) < 32


def test_which_models_and_losses_a_pool_is_for(device_path):
    model = mixed()
    pool = MaskPool(model)
    before = pool.calls()
    gradients(model)
    assert pool.why_not(before, pool.calls()) is None
    gradients(model)
    assert "draws 2 masks in a step" in pool.why_not(before, pool.calls())
    shared = mixed(AlbertForSequenceClassification, lambda **sizes: AlbertConfig(embedding_size=16, **sizes))
    pool = MaskPool(shared)
    before = pool.calls()
    gradients(shared)
    assert "draws 2 masks" in pool.why_not(before, pool.calls())
    pool.draw_()
    with pytest.raises(SteadytuneError, match="more than once"):
        gradients(shared)


def test_a_pool_needs_a_layer_that_it_can_draw_for():
    model = mixed(mask="element")
    with pytest.raises(SteadytuneError, match="no linear layer with a Bernoulli mask by neuron"):
        MaskPool(model)


def test_attention_that_reads_the_mixed_weight_itself(device_path):
    def attention():
        torch.manual_seed(0)
        model = nn.Sequential(nn.MultiheadAttention(8, 2, batch_first=True))
        apply_(model, Mixout(p=0.5, layers="all"), streams=Streams(noise=1))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)
        return model.train()

    model, plain, x = attention(), attention(), torch.randn(2, 5, 8)
    pool = MaskPool(model)
    for _ in range(2):
        pool.draw_()
        torch.testing.assert_close(model[0](x, x, x)[0], plain[0](x, x, x)[0])
    assert counters(model) == counters(plain)


def test_compiled_layers_take_the_pools_masks(device_path):
    model, plain = mixed(), mixed()
    pool = MaskPool(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    tokens = torch.ones(2, 3, dtype=torch.long)
    for _ in range(2):
        pool.draw_()
        torch.testing.assert_close(compiled(input_ids=tokens).logits, plain(input_ids=tokens).logits)
    assert counters(model) == counters(plain)


@pytest.mark.parametrize("kept_only", [False, True])
def test_query_key_and_value_are_computed_together(kept_only, device_path, monkeypatch):
    model, plain = mixed(), mixed()
    pool = MaskPool(model)
    use_kept_columns_(model, kept_only)
    layers = dict(mixed_layers(model))
    block = "bert.encoder.layer.{}.attention.self.{}"
    groups = [[layers[block.format(i, name)] for name in ("query", "key", "value")] for i in (0, 1)]
    for group in groups:
        assert len({id(layer.mix_jointly) for layer in group}) == 1
        assert list(group[0].mix_jointly.layers) == group
    assert layers["bert.encoder.layer.0.output.dense"].mix_jointly is None
    found = []
    monkeypatch.setattr(
        layers_module, "column_linears", lambda x, all_, *rest: found.append(len(all_)) or real(x, all_, *rest)
    )
    real = column_linears
    pool.draw_()
    assert_same(gradients(model), gradients(plain))
    assert [count for count in found if count > 1] == [3, 3]
    assert counters(model) == counters(plain)
    assert all(group[0].mix_jointly._held is None for group in groups)
    pool.draw_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = gradients(model)
    assert [count for count in found if count > 1] == [3] * 4
    for name, grad in gradients(plain).items():
        assert (low[name] - grad).norm() <= 0.1 * grad.norm() + 1e-3, name
    twin = copy.deepcopy(model)
    assert all(layer.mix_jointly is None for _, layer in mixed_layers(twin))
    remove_(model)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith("mix")]


def test_a_model_of_unknown_parts_does_without(device_path):
    model = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)})
    apply_(model, Mixout(p=0.5, layers="all"), streams=Streams(noise=1))
    MaskPool(model).draw_()
    assert all(layer.mix_jointly is None for _, layer in mixed_layers(model))


def test_layers_that_get_other_tensors_than_expected_compute_alone(device_path):
    model, plain = mixed(), mixed()
    pool, attention = MaskPool(model), model.bert.encoder.layer[0].attention.self
    pool.draw_()
    x, y = torch.randn(2, 3, 30), torch.randn(2, 3, 30)
    for one, other in ((attention, plain.bert.encoder.layer[0].attention.self),):
        for name, given in (("query", x), ("key", y), ("value", x)):
            torch.testing.assert_close(getattr(one, name)(given), getattr(other, name)(given))
    with pytest.raises(SteadytuneError, match="more than once"):
        attention.value(x)


def test_layers_that_are_mixed_differently_compute_alone(device_path):
    model, plain = mixed(), mixed()
    pool = MaskPool(model)
    use_kept_columns_(model, True)
    for each in (model, plain):
        each.bert.encoder.layer[0].attention.self.key.mix.gradient = "paper"
        each.bert.encoder.layer[1].attention.self.value.eval()
    pool.draw_()
    assert_same(gradients(model), gradients(plain))


# --- weights mixed by the pool ------------------------------------------------------------------------------------


@pytest.fixture
def mixes(monkeypatch):
    """How many layers were given weights that lay ready, call by call."""
    found = []

    def counted(x, layers, *rest):
        found.append(len(layers) if rest[-1] is not None else 0)
        return column_linears(x, layers, *rest)

    monkeypatch.setattr(layers_module, "column_linears", counted)
    return found


@pytest.mark.parametrize("kept_only", [False, True])
def test_weights_that_the_pool_mixes_give_the_same_bits(kept_only, device_path, mixes):
    """Also in the next chunk, after a change of the weights and a new draw, and without a bias."""
    made = []
    for low in (None, torch.bfloat16):
        model = mixed()
        model.bert.encoder.layer[0].output.dense.bias = None
        pool = MaskPool(model, low)
        use_kept_columns_(model, kept_only)
        made.append([])
        for _ in range(2):
            pool.draw_()
            pool.mix_()
            for _ in range(2):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    made[-1].append(gradients(model))
                pool.reuse_()
            with torch.no_grad():
                for each in model.parameters():
                    each.mul_(1.1)
        made[-1].append(counters(model))
    half = len(mixes) // 2
    assert not any(mixes[:half])
    assert all(mixes[half:])
    for one, other in zip(*made, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)


def test_what_does_not_lie_ready_is_mixed_at_the_call(device_path, mixes):
    model, plain = mixed(), mixed()
    pool = MaskPool(model, torch.bfloat16)
    pool.draw_()
    pool.mix_()
    gradients(model)  # float32 without autocast: another type
    assert not any(mixes)
    mixes.clear()
    pool.draw_()
    pool.mix_()
    weight = model.bert.encoder.layer[0].attention.self.key.weight
    with torch.no_grad():
        weight.mul_(2.0)  # after the draw
        plain.bert.encoder.layer[0].attention.self.key.weight.mul_(2.0)
    set_calls_(plain, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(model)
        assert mixes.count(0) == 1  # of one group of three
        expected = gradients(plain)
    for name in found:
        assert (found[name] - expected[name]).norm() <= 0.05 * expected[name].norm() + 1e-3, name
    model.double()
    assert all(layer.mix_made is None for _, layer in mixed_layers(model))


def test_without_the_pools_masks_nothing_lies_ready(device_path, mixes):
    model, plain = mixed(), mixed()
    pool = MaskPool(model, torch.bfloat16)
    pool.draw_()
    pool.mix_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients(model)
        assert all(mixes)
        mixes.clear()
        pool.clear_()  # every call draws for itself now
        found = gradients(model)
        assert not any(mixes)
        set_calls_(plain, 1)
        expected = gradients(plain)
    assert counters(model) == counters(plain)
    for name in found:
        assert (found[name] - expected[name]).norm() <= 0.05 * expected[name].norm() + 1e-3, name


def test_weights_mixed_again_before_the_backward_pass_are_noticed(device_path):
    model = mixed()
    pool = MaskPool(model, torch.bfloat16)
    pool.draw_()
    pool.mix_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=torch.ones(2, 3, dtype=torch.long), labels=torch.tensor([0, 1])).loss
    pool.mix_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_that_got_other_memory_are_noticed(device_path):
    model = mixed()
    pool = MaskPool(model, torch.bfloat16)
    pool.draw_()
    pool.mix_()
    weight = model.bert.encoder.layer[0].attention.self.key.weight
    weight.data = weight.data.clone()
    with pytest.raises(SteadytuneError, match="other memory"):
        pool.mix_()


def test_what_cannot_be_in_the_table_stays_out(device_path, mixes):
    """Another p, another type, a weight that two layers share."""
    model = mixed()
    first, second = (model.bert.encoder.layer[i].output.dense for i in (0, 1))
    self_0, self_1 = (model.bert.encoder.layer[i].attention.self for i in (0, 1))
    second.weight = first.weight
    self_0.key.mix.p = 0.2
    self_1.value.mix.target = self_1.value.mix.target.double()
    MaskPool(model, torch.bfloat16)
    out = {first, second, self_0.key, self_1.value}
    assert {layer for _, layer in mixed_layers(model) if layer.mix_made is None} == out
    assert all(layer.mix_jointly.made is None for layer in (self_0.query, self_1.query))
