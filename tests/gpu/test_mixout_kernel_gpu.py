"""Mixout's kernels on a real device: the bits of the CPU, float64 references, no wait for the device, CUDA graphs.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpu_helpers import captured, poison_memory, run_without_waiting
from steadytune import Mixout, Streams, apply_
from steadytune.kernels import mixout_columns, products
from steadytune.kernels.mixout_columns import (
    Layer,
    column_linear,
    column_linears,
    expand,
    expand_torch,
    mix_,
    take,
    take_torch,
)
from steadytune.kernels.mixout_masks import (
    draw,
    draw_all_,
    draw_next_,
    draw_torch,
    has_kernels,
    new_rule,
    new_table,
    overflows,
    overflows_torch,
)
from steadytune.kernels.mixout_table import MixTable
from steadytune.methods.mask_pool import MaskPool, use_kept_columns_
from steadytune.methods.mixed_layers import mixed_layers
from steadytune.rng import new_counter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}  # of a relative error
SHAPES = [(31, 1, 17), (68, 65, 131), (513, 1024, 96), (300, 4096, 257)]  # positions, in, out


@pytest.fixture(autouse=True)
def poisoned_memory():
    """What the allocator hands out next holds NaN, so that an element nobody writes shows."""
    assert has_kernels("cuda", torch.float32), "Triton is not installed: nothing here would run a kernel"
    assert not torch.backends.cuda.matmul.allow_tf32
    poison_memory()


def error(found, expected):
    found = found.detach().double().cpu()
    assert torch.isfinite(found).all()
    return float((found - expected.cpu()).norm() / (expected.norm().cpu() + 1e-9))


def fresh_key():
    return int(torch.randint(0, 2**62, ()))


@pytest.mark.parametrize(("p", "rank"), [(0.7, 0), (0.9, 63), (1e-11, 1)])
@pytest.mark.parametrize("columns", [1, 5, 1024, 1025, 4096, 16384])
def test_draws_are_those_of_the_cpu(columns, p, rank):
    state, rule = new_counter(fresh_key()), new_rule(columns, p, rank << 26)
    state[2] = 2**33 + 7
    expected, there = draw_torch(state, rule), state.cuda()
    found = [draw(there, rule)]
    next_, used = draw_next_(there, rule)
    for place, kept in [*found, next_]:
        assert torch.equal(place.cpu(), expected.place)
        assert torch.equal(kept.cpu(), expected.kept)
    assert torch.equal(used.cpu(), state)
    assert there.tolist() == [*state.tolist()[:2], 2**33 + 8]


def test_all_layers_at_once_and_what_does_not_fit():
    sizes = [(1024, 0.7), (4096, 0.7), (5, 0.5), (768, 0.9)] * 36
    rules = [new_rule(*size) for size in sizes]
    rules[0] = rules[0]._replace(capacity=300)
    states = torch.stack([new_counter(fresh_key()) for _ in rules])
    states[:, 2] = torch.arange(len(rules))
    expected = [draw_torch(state, rule) for state, rule in zip(states, rules)]
    there, table = states.cuda(), new_table(rules, torch.device("cuda"))
    missing = overflows(there, table, 50, 2)
    assert torch.equal(missing.cpu(), overflows_torch(states, new_table(rules, torch.device("cpu")), 50, 2))
    assert 0 < missing.sum() < 50
    places = torch.full((sum(rule.columns for rule in rules),), -9, dtype=torch.int32, device="cuda")
    kept = torch.full((sum(rule.capacity for rule in rules),), -9, dtype=torch.int32, device="cuda")
    draw_all_(there, table, places, kept)
    assert torch.equal(places.cpu(), torch.cat([each.place for each in expected]))
    assert torch.equal(kept.cpu(), torch.cat([each.kept for each in expected]))
    assert torch.equal(there.cpu(), states + torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("low", TYPES)
@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_passes(shape, given, low):
    (positions, columns, out), p = shape, 0.7
    drawn = draw(new_counter(fresh_key()).cuda(), new_rule(columns, p))
    place, kept = drawn
    sizes = ((out, columns), (out, columns), (out,), (positions, columns))
    w, u, b, x = (torch.randn(*size, device="cuda").to(given) for size in sizes)
    mixed, low_bias = (torch.full(size, torch.nan, dtype=low, device="cuda") for size in ((out, columns), (out,)))
    mix_(mixed, low_bias, w, u, place, b, p)
    exact = torch.lerp(u.double(), w.double(), (place >= 0).double() / (1 - p))
    assert mixed.dtype == low
    torch.testing.assert_close(mixed, exact.to(low))
    assert torch.equal(mixed[:, place < 0], u[:, place < 0].to(low))
    assert torch.equal(low_bias, b.to(low))
    lists = torch.stack([kept, draw(new_counter(fresh_key()).cuda(), new_rule(columns, p)).kept, kept])
    for some in (list(lists), [kept], [kept, kept.clone()]):
        (cast, taken), (low_x, expected) = take(x, some, low), take_torch(x, some, low)
        assert torch.equal(cast, low_x)
        assert all(torch.equal(one, two) for one, two in zip(taken, expected, strict=True))
    for kept_only, width in ((True, len(kept)), (False, columns)):
        splits = (1, 4) if given == low == torch.float32 else (1,)  # compiling takes longer than all the rest
        for size in ((count, out, width) if count > 1 else (out, width) for count in splits):
            part = torch.randn(*size, device="cuda").to(low)
            arguments = (part, drawn, 1 / (1 - p), kept_only, given, given if kept_only else None)
            found = expand(*arguments)
            torch.testing.assert_close(found, expand_torch(*arguments))
            assert (found[0][:, place < 0] == 0).all()


@pytest.mark.parametrize("other", ["as it is", "remade", "split"])
@pytest.mark.parametrize("kept_only", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_against_float64(shape, dtype, kept_only, other, monkeypatch):
    """Under autocast for the low types, as training runs; the weights are float32."""
    monkeypatch.setattr(mixout_columns, "REMAKE_ROWS", 0 if other == "remade" else 10**9)
    monkeypatch.setattr(products, "SPLIT_TILES", 10**6 if other == "split" else 0)
    monkeypatch.setattr(products, "SPLIT_TOKENS", 1)
    (positions, columns, out), p = shape, 0.7
    kept = draw(new_counter(fresh_key()).cuda(), new_rule(columns, p))
    sizes = ((positions, columns), (out, columns), (out,))
    tensors = [torch.randn(*size, device="cuda", requires_grad=True) for size in sizes]
    target = torch.randn(out, columns, device="cuda")
    exact = [each.detach().double().requires_grad_() for each in tensors]
    scale = (kept.place >= 0).double() / (1 - p)
    expected = functional.linear(exact[0], torch.lerp(target.double(), exact[1], scale), exact[2])
    with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        found = column_linear(*tensors, target, kept, p, 1 / (1 - p), kept_only)
    assert found.dtype == dtype
    assert error(found, expected.detach()) < TOLERANCE[dtype]
    g = torch.randn_like(found)
    grads = torch.autograd.grad(found, tensors, g)
    for one, other in zip(grads, torch.autograd.grad(expected, exact, g.double()), strict=True):
        assert one.dtype == torch.float32
        assert error(one, other) < TOLERANCE[dtype]
    assert (grads[1][:, kept.place < 0] == 0).all()


def test_a_mask_that_does_not_fit_is_never_cut():
    rule = new_rule(640, 0.5)._replace(capacity=64)
    columns = draw(new_counter(fresh_key()).cuda(), rule)
    x, w, u = (torch.randn(*size, device="cuda") for size in ((9, 640), (8, 640), (8, 640)))
    for kept_only in (True, False):
        weight, bias = w.clone().requires_grad_(), torch.zeros(8, device="cuda", requires_grad=True)
        column_linear(x, weight, bias, u, columns, 0.5, 2.0, kept_only).sum().backward()
        over = columns.place >= 64
        assert over.any()
        assert weight.grad[:, over].isnan().all() == kept_only
        assert torch.isfinite(weight.grad[:, ~over]).all()
        assert bias.grad.isnan().all() if kept_only else (bias.grad == 9).all()


@pytest.mark.parametrize("remade", [False, True])
def test_layers_that_read_the_same_tensor_also_in_a_graph(remade, monkeypatch):
    """One product for all of them; against each alone."""
    monkeypatch.setattr(mixout_columns, "REMAKE_ROWS", 0 if remade else 10**9)
    x = torch.randn(70, 130, device="cuda", requires_grad=True)
    masks = [draw(new_counter(fresh_key()).cuda(), new_rule(130, 0.7)) for _ in range(3)]
    weights = [torch.randn(rows, 130, device="cuda", requires_grad=True) for rows in (32, 64, 32)]
    biases = [torch.randn(len(w), device="cuda", requires_grad=True) for w in weights]
    layers = [Layer(w, b, w.detach() + 1, mask) for w, b, mask in zip(weights, biases, masks)]

    def run(together):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            if together:
                outs = list(column_linears(x, layers, 0.7, 1 / 0.3, True))
            else:
                outs = [column_linear(x, *layer[:4], 0.7, 1 / 0.3, True) for layer in layers]
        return [*outs, *torch.autograd.grad(torch.cat(outs, 1).float().square().sum(), [x, *weights, *biases])]

    def compare(found):
        poison_memory()
        for one, other in zip(found, run(False), strict=True):
            assert torch.isfinite(one).all()
            assert (one.double() - other.double()).norm() < 1e-2 * other.double().norm()

    compare(run_without_waiting(lambda: run(True)))
    graph, found = captured(lambda: run(True))
    with torch.no_grad():
        x.normal_()
    graph.replay()
    compare(found)


@pytest.mark.parametrize("low", TYPES)
@pytest.mark.parametrize("aligned", [False, True])
def test_all_weights_in_one_launch_also_in_a_graph(aligned, low):
    sizes = [(1024, 1024), (48, 1024), (40, 4112)] if aligned else [(3, 5), (7, 5), (33, 600)]
    layers = []
    for number, (out, columns) in enumerate(sizes):
        w, u, bias = (torch.randn(*size, device="cuda") for size in ((out, columns), (out, columns), (out,)))
        drawn = draw(new_counter(fresh_key()).cuda(), new_rule(columns, 0.7))
        layers.append(Layer(w, None if number == 2 else bias, u, drawn))
    table = MixTable([layers[:2], layers[2:]], 0.7, low)
    assert table.aligned == aligned

    def check():
        for layer, made in zip(layers, [*table.alone[0], *table.alone[1]], strict=True):
            place = layer.columns.place
            exact = torch.lerp(layer.target.double(), layer.weight.double(), (place >= 0).double() / 0.3)
            torch.testing.assert_close(made.weight, exact.to(low))
            assert torch.equal(made.weight[:, place < 0], layer.target[:, place < 0].to(low))
            assert made.bias is None or torch.equal(made.bias, layer.bias.to(low))

    table.memory.fill_(torch.nan)
    run_without_waiting(table.mix_)
    check()
    graph, _ = captured(table.mix_)
    for layer in layers:
        layer.weight.normal_()
    table.memory.fill_(torch.nan)
    graph.replay()
    check()


class Tiny(nn.Module):
    """A few layers of each kind, of odd sizes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 65)
        self.body = nn.Sequential(nn.Linear(65, 131), nn.GELU(), nn.Linear(131, 65), nn.LayerNorm(65))
        self.head = nn.Linear(65, 3)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)).mean(1))


def training(settings, pooled, low=None):
    torch.manual_seed(0)
    model = Tiny()
    apply_(model, Mixout(p=0.7, **settings), streams=Streams(noise=3))
    model.cuda().train()
    pool = MaskPool(model, low) if pooled else None
    use_kept_columns_(model, pooled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # its steps are as close as the gradients are
    tokens = torch.randint(0, 50, (8, 13), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    labels = torch.arange(8, device="cuda") % 3

    def step():
        optimizer.zero_grad(set_to_none=True)
        if pool:
            pool.draw_()
            pool.mix_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()

    return model, step


@pytest.mark.parametrize(
    ("settings", "pooled", "low"),
    [
        ({"layers": "all"}, True, torch.bfloat16),
        ({"layers": "all"}, True, None),
        ({"layers": "all"}, False, None),
        ({"layers": "all", "mask": "element"}, False, None),
        ({"layers": "all", "distribution": "gaussian"}, False, None),
        ({"layers": "linear", "distribution": "variational"}, False, None),
    ],
)
def test_nothing_waits_for_the_device_and_a_graph_draws_new_masks(settings, pooled, low):
    """Seven steps, four of them replayed from a graph, are seven eager steps on a model that nobody captured."""
    model, step = training(settings, pooled, low)
    twin, plain = training(settings, False)
    start = [p.detach().clone() for p in twin.parameters()]
    for _ in range(7):
        plain()
    run_without_waiting(step, before=2)
    graph, _ = captured(step)
    for _ in range(4):
        graph.replay()
    for (name, one), (_, other) in zip(mixed_layers(model), mixed_layers(twin), strict=True):
        assert one.mix_state.tolist() == other.mix_state.tolist(), name
        assert len(one.mix_calls) == 0
    for (name, one), other, before in zip(model.named_parameters(), twin.parameters(), start, strict=True):
        assert torch.isfinite(one).all()
        assert (one - other).norm() < 0.05 * (other - before).norm() + 1e-6, name


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_with_and_without_a_pool(reentrant):
    from torch.utils.checkpoint import checkpoint

    found = {}
    for kind in ("plain", "saving", "saving, pooled"):
        torch.manual_seed(0)
        model = Tiny()
        apply_(model, Mixout(p=0.7, layers="linear"), streams=Streams(noise=3))
        with torch.no_grad():
            for _, layer in mixed_layers(model):
                layer.weight.add_(0.1)
        model.cuda().train()
        if kind.endswith("pooled"):
            MaskPool(model).draw_()
        x = torch.randn(4, 5, 65, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).requires_grad_()
        out = model.body(x) if kind == "plain" else checkpoint(model.body, x, use_reentrant=reentrant)
        out.square().sum().backward()
        found[kind] = [x.grad, *(p.grad for p in model.body.parameters())]
    for kind in ("saving", "saving, pooled"):
        for one, other in zip(found[kind], found["plain"], strict=True):
            torch.testing.assert_close(one, other)


def test_a_copy_of_a_pooled_model_goes_on_alike():
    model, step = training({"layers": "all"}, True)
    step()
    twin = copy.deepcopy(model)
    twin(torch.zeros(1, 3, dtype=torch.long, device="cuda"))
    assert {layer.calls() for _, layer in mixed_layers(twin)} == {2}
    assert {layer.calls() for _, layer in mixed_layers(model)} == {1}
