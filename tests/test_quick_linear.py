"""Quick linear layers in whole models, on a CPU in plain torch: same numbers, never stale ones, and no trace left.

On a CPU the forward of a quick layer has the bits of the plain layer under autocast, so a stale cast would show.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from quick_helpers import (
    assert_runs_as_the_plain_layer,
    autocast,
    counted,
    errors,
    gradients,
    on_the_cpu,
    with_and_without_checkpoints,
)
from steadytune import Mixout, apply_
from steadytune.engine import quick_linear
from steadytune.engine.quick_linear import QuickLinear, WeightCasts, quick_layers, quicken_linears_, unquicken_linears_
from steadytune.errors import SteadytuneError
from steadytune.kernels import linear
from tiny import TINY, batch, tiny


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The calls that went the quick way."""
    on_the_cpu(monkeypatch, linear)
    return counted(monkeypatch, quick_linear, linear.quick_linear, linear.quick_linears)


def pair():
    """A quick layer, its casts, and its plain twin."""
    layer = nn.Linear(5, 3)
    layer.weight = nn.Parameter(torch.randn(3, 5))  # never changed, as another one that somebody puts in its place
    twin = copy.deepcopy(layer)
    casts = quicken_linears_(layer)
    assert casts is not None
    casts.refresh_()
    return layer, casts, twin


def products(model):
    """How many there are in a forward pass: one for layers that read the same tensor."""
    return len({layer.quick_together or layer for _, layer in quick_layers(model)})


@pytest.mark.parametrize("name", ["bert", "albert", "deberta-v2", "mpnet", "bart", "t5", "llama", "vit"])
def test_gradients_of_models(name, calls):
    torch.manual_seed(1)
    model = TINY[name]()
    inputs, keys = batch(name), list(model.state_dict())
    _, exact = gradients(model, inputs, torch.enable_grad())
    plain_loss, plain = gradients(model, inputs, autocast())
    casts = quicken_linears_(model)
    casts.refresh_()
    loss, found = gradients(model, inputs, autocast())
    assert len(calls) >= products(model) > 3
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(loss, plain_loss, atol=1e-3, rtol=1e-3)
    assert errors(found, exact).mean() < 1.2 * errors(plain, exact).mean()
    unquicken_linears_(model)
    assert not list(quick_layers(model))
    assert not [key for module in model.modules() for key in vars(module) if key.startswith("quick")]
    again_loss, again = gradients(model, inputs, autocast())
    assert torch.equal(again_loss, plain_loss)
    assert all(torch.equal(again[each], plain[each]) for each in plain)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_nothing_is_quick_where_nothing_can_be_gained(monkeypatch):
    model = TINY["mlp"]()
    assert quicken_linears_(model, torch.float32) is None
    assert quicken_linears_(TINY["mlp"]().double()) is None
    assert quicken_linears_(nn.LayerNorm(3)) is None
    assert quicken_linears_(nn.Linear(0, 0)) is None
    monkeypatch.setattr(linear, "DEVICES", {"cuda"})
    assert quicken_linears_(model) is None
    assert type(model[0]) is nn.Linear
    assert not linear.is_served("cuda"), "a CUDA device without Triton"
    with pytest.raises(SteadytuneError, match="no quick layers"):
        WeightCasts(model)


class Doubled(nn.Linear):
    pass


def test_only_layers_that_nobody_has_changed():
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("plain", "pruned", "computed", "patched", "mixed")})
    model["other"] = Doubled(4, 4)
    model["attention"] = nn.MultiheadAttention(4, 2)  # reads the weight of its out_proj instead of calling it
    prune.random_unstructured(model["pruned"], "weight", 0.5)
    parametrizations.orthogonal(model["computed"])
    model["patched"].forward = lambda x: x
    apply_(model, Mixout(p=0.5, layers="mixed"))
    classes = {name: type(module) for name, module in model.named_modules()}
    assert quicken_linears_(model) is not None
    changed = [name for name, module in model.named_modules() if type(module) is not classes[name]]
    assert changed == ["plain"]


def test_layers_that_read_the_same_tensor_are_one_product(calls):
    model, inputs = TINY["bert"](), batch("bert")
    quicken_linears_(model).refresh_()
    together = [name.rsplit(".", 1)[1] for name, layer in quick_layers(model) if layer.quick_together is not None]
    assert together == ["query", "key", "value"] * 4
    gradients(model, inputs, autocast())
    assert len(calls) == products(model) == len(list(quick_layers(model))) - 2 * 4


def three():
    """Query, key and value of a tiny BERT, quick; and their plain twins."""
    model = TINY["bert"]().train()
    twin = copy.deepcopy(model)
    quicken_linears_(model).refresh_()
    return [
        [getattr(each.bert.encoder.layer[0].attention.self, name) for name in ("query", "key", "value")]
        for each in (model, twin)
    ]


@pytest.mark.parametrize(
    "case", ["same", "order", "other", "changed", "no grad", "eval", "stale", "twice", "first alone", "gone"]
)
def test_an_output_is_taken_by_the_layer_that_is_given_the_same_tensor(case, calls):
    (query, key, value), plain = three()
    x = torch.randn(2, 3, query.in_features)
    given = [x, x, x]
    order = [0, 1, 2]
    if case == "order":
        order = [1, 0, 2]
    elif case == "other":
        given = [x, x + 1, x]
    elif case == "eval":
        key.eval()
    elif case == "stale":
        with torch.no_grad():
            for each in (key, plain[1]):
                each.weight.add_(1.0)
    elif case == "twice":
        order = [0, 1, 1, 2]
    elif case == "first alone":
        order = [0]
    expected_calls = {"same": 1, "order": 2, "other": 2, "changed": 3, "no grad": 1, "eval": 2, "stale": 2}
    expected_calls |= {"twice": 2, "first alone": 1, "gone": 2}
    with torch.no_grad() if case == "no grad" else torch.enable_grad(), autocast():
        for number in order:
            if case == "changed" and number:
                x.add_(1.0)
            if case == "gone" and number == 1:
                given[1] = x.clone()  # at the address of a tensor that died, say
            ours, theirs = (each[number](given[number]) for each in ((query, key, value), plain))
            assert torch.equal(ours, theirs), number
            assert ours.requires_grad == theirs.requires_grad
    assert len(calls) == expected_calls[case]


def test_what_comes_behind_a_layer_may_write_over_its_output():
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(inplace=True))
    twin = copy.deepcopy(model)
    quicken_linears_(model).refresh_()
    (query, key, _), plain = three()
    inputs = [torch.randn(2, 4, each.in_features) for each in (model[0], query, key)]
    found = []
    for layers in ([model, query, key], [twin, *plain[:2]]):
        with autocast():
            outs = [layers[0](inputs[0]), layers[1](inputs[1]).mul_(2.0), layers[2](inputs[1]).relu_()]
        sum(out.float().square().sum() for out in outs).backward()
        found.append([*outs, *(p.grad for layer in layers for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)


def test_outputs_do_not_outlive_their_tensor(calls):
    (query, *_), _ = three()
    x = torch.randn(2, 3, query.in_features)
    with autocast():
        query(x)
    held = query.quick_together
    count = len(held.of(x))
    calls.clear()
    del x
    assert (count, held._held) == (2, None)


@pytest.mark.parametrize("change", ["in place", "step", "other memory", "other parameter", "other bias", "clear"])
def test_a_changed_weight_is_never_read_from_its_old_cast(change, calls):
    layer, casts, twin = pair()
    for each in (layer, twin):
        if change == "in place":
            nn.init.normal_(each.weight)
        elif change == "step":
            each.weight.grad = torch.ones_like(each.weight)
            torch.optim.SGD(each.parameters(), lr=1.0).step()
        elif change == "other memory":
            each.weight.data = each.weight.data + 1
        elif change == "other parameter":
            each.weight = nn.Parameter(each.weight.detach() + 1)
        elif change == "other bias":
            each.bias = None
    if change == "clear":
        casts.clear_()
    else:
        twin.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5)
    with autocast():
        assert torch.equal(layer(x), twin(x))
    assert not calls
    if change in ("in place", "step", "clear"):
        casts.refresh_()
        with autocast():
            assert torch.equal(layer(x), twin(x))
        assert len(calls) == 1
    elif change == "other memory":
        with pytest.raises(SteadytuneError, match="was moved"):
            casts.refresh_()
        quicken_linears_(layer).refresh_()
        with autocast():
            assert torch.equal(layer(x), twin(x))
        assert len(calls) == 1


def test_where_the_plain_layer_runs(calls):
    layer, _, twin = pair()
    x = torch.randn(2, 5)
    other = {"weight": torch.ones(3, 5)}
    more = {"other weights": lambda each: torch.func.functional_call(each, other, (x,))}
    assert_runs_as_the_plain_layer(layer, twin, x, calls, more)
    with torch.no_grad(), autocast():
        assert torch.equal(layer(x), twin(x))
    assert len(calls) == 1


def test_double_input_is_refused_as_by_the_plain_layer():
    layer, _, twin = pair()
    for each in (layer, twin):
        with autocast(), pytest.raises(RuntimeError, match="dtype"):
            each(torch.randn(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("frozen", [[], ["weight"], ["bias"], ["weight", "bias"]])
def test_frozen_weights_and_low_inputs(frozen, dtype, calls):
    layer, twin = (nn.Linear(5, 3) for _ in range(2))
    twin.load_state_dict(layer.state_dict())
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
        getattr(twin, name).requires_grad_(False)
    quicken_linears_(layer, dtype).refresh_()
    for fed in (torch.float32, dtype):
        x = torch.randn(2, 4, 5).to(fed).requires_grad_()
        g, found = torch.randn(2, 4, 3).to(dtype), []
        for each in (layer, twin):
            each.zero_grad()
            x.grad = None
            with autocast(dtype):
                each(x).backward(g)
            found.append([x.grad, *(p.grad for p in each.parameters() if p.requires_grad)])
        for one, other in zip(*found, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
    assert len(calls) == 2


def test_tied_weights_are_cast_once():
    model = tiny("bert", "ForMaskedLM")
    inputs = batch("bert")
    inputs["labels"] = inputs["input_ids"]
    _, plain = gradients(model, inputs, autocast())
    casts = quicken_linears_(model)
    casts.refresh_()
    embedding = model.get_input_embeddings().weight
    decoder = model.get_output_embeddings()
    assert decoder.quick_weight.source is embedding
    sources = [copy.source for copy in casts._copies]
    assert len({id(source) for source in sources}) == len(sources)
    _, found = gradients(model, inputs, autocast())
    name = next(name for name, p in model.named_parameters() if p is embedding)
    assert (found[name] - plain[name]).norm() < 0.02 * plain[name].norm()


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant, calls):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Dropout(0.3), nn.Linear(7, 6))
    quicken_linears_(body).refresh_()
    both = list(with_and_without_checkpoints(body, torch.randn(3, 6), reentrant))
    assert len(calls) >= 5
    for one, other in both:
        assert torch.equal(one, other)


def test_a_refresh_before_the_backward_pass_is_refused():
    layer, casts, _ = pair()
    with autocast():
        y = layer(torch.randn(2, 5, requires_grad=True))
    casts.refresh_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_hooks_copies_and_training(calls):
    """Twenty steps are those of plain autocast, as near as rounding lets them."""
    torch.manual_seed(0)
    model = TINY["mlp"]()
    model[3].p = 0.0
    twin, seen, data = copy.deepcopy(model), [], batch("mlp")
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[0].weight.register_hook(lambda g: seen.append("backward"))
    start = [p.detach().clone() for p in model.parameters()]
    casts = quicken_linears_(model)
    for each, refreshed in ((model, casts), (twin, None)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        for _ in range(20):
            if refreshed is not None:
                refreshed.refresh_()
            with autocast():
                loss = nn.functional.cross_entropy(each(data["input"]), data["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert seen == ["forward", "backward"] * 20
    assert len(calls) == 60
    for one, other, before in zip(model.parameters(), twin.parameters(), start):
        assert (one - other).norm() < 0.05 * (other - before).norm()
    copied = copy.deepcopy(model)
    assert isinstance(copied[0], QuickLinear)
    assert copied[0].quick_weight is None
    assert quicken_linears_(copied) is not None
    assert copied[0].quick_weight.source is copied[0].weight
