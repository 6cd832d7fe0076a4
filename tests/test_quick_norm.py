"""Quick layer norms in whole models, on a CPU in plain torch: same numbers, the right low copy, and no trace left."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from quick_helpers import (
    assert_runs_as_the_plain_layer,
    autocast,
    counted,
    errors,
    gradients,
    on_the_cpu,
    with_and_without_checkpoints,
)
from steadytune.engine import quick_norm
from steadytune.engine.quick_norm import QuickNorm, quick_norms, quicken_norms_, unquicken_norms_
from steadytune.kernels import norm
from steadytune.kernels.handed_on import SharedCast
from steadytune.kernels.norm import WIDEST
from tiny import TINY, batch


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The calls that went the quick way."""
    on_the_cpu(monkeypatch, norm)
    return counted(monkeypatch, quick_norm, norm.quick_norm)


def pair(produced=None):
    """A quick norm and its plain twin, with weights that are not those of the start."""
    twin = nn.LayerNorm(5)
    for each in twin.parameters():
        nn.init.normal_(each)
    layer = copy.deepcopy(twin)
    assert quicken_norms_(layer, torch.bfloat16, produced) == 1
    return layer, twin


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "bart", "vit"])
def test_gradients_of_models(name, calls):
    torch.manual_seed(1)
    model = TINY[name]()
    inputs, keys = batch(name), list(model.state_dict())
    _, exact = gradients(model, inputs, torch.enable_grad())
    plain_loss, plain = gradients(model, inputs, autocast())
    expected = sum(type(module) is nn.LayerNorm for module in model.modules())
    assert quicken_norms_(model, torch.bfloat16, SharedCast()) == expected == len(list(quick_norms(model))) > 4
    loss, found = gradients(model, inputs, autocast())
    assert len(calls) >= expected
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(loss, plain_loss, atol=5e-3, rtol=5e-3)
    assert errors(found, exact).mean() < 1.2 * errors(plain, exact).mean()
    unquicken_norms_(model)
    assert not list(quick_norms(model))
    assert not [key for module in model.modules() for key in vars(module) if key.startswith("quick")]
    again_loss, again = gradients(model, inputs, autocast())
    assert torch.equal(again_loss, plain_loss)
    assert all(torch.equal(again[each], plain[each]) for each in plain)


def test_the_low_copy_is_that_of_the_very_output():
    produced = SharedCast()
    layer, _ = pair(produced)
    x = torch.randn(2, 3, 5, requires_grad=True)
    with autocast():
        z = layer(x)
    low = produced.get(z, torch.bfloat16).rows
    assert torch.equal(low, z.detach().bfloat16().view(6, 5))
    assert not low.requires_grad
    assert produced.get(z, torch.float16) is None
    assert produced.get(z.view(2, 3, 5), torch.bfloat16) is None, "another tensor, for all one can tell"
    with torch.no_grad():
        z.add_(1.0)
    assert produced.get(z, torch.bfloat16) is None, "it has changed"
    with torch.no_grad(), autocast():
        z = layer(x)
        assert produced.get(z, torch.bfloat16) is not None
    del z, low
    assert produced._held is None, "it is held no longer than its source"


def test_nothing_is_quick_where_nothing_can_be_gained(monkeypatch):
    model = TINY["bert"]()
    assert quicken_norms_(model, torch.float32) == 0
    assert quicken_norms_(TINY["bert"]().double()) == 0
    assert quicken_norms_(nn.Linear(3, 3)) == 0
    assert quicken_norms_(nn.LayerNorm(3, elementwise_affine=False)) == 0, "nobody says where it is"
    monkeypatch.setattr(norm, "DEVICES", {"cuda"})
    assert quicken_norms_(model) == 0
    assert not list(quick_norms(model))
    assert not norm.is_served("cuda"), "a CUDA device without Triton"


class Other(nn.LayerNorm):
    pass


def test_only_norms_that_nobody_has_changed():
    norms = {
        "plain": nn.LayerNorm(4),
        "unbiased": nn.LayerNorm(4, bias=False),
        "bare": nn.LayerNorm(4, elementwise_affine=False),
        "widest": nn.LayerNorm(WIDEST),
        "too wide": nn.LayerNorm(WIDEST + 1),
        "two dimensions": nn.LayerNorm((3, 4)),
        "in float64": nn.LayerNorm(4).double(),
        "other": Other(4),
        "patched": nn.LayerNorm(4),
        "computed": parametrizations.weight_norm(nn.LayerNorm(4)),
        "root mean square": nn.RMSNorm(4),
    }
    norms["patched"].forward = lambda x: x
    model = nn.ModuleDict(norms)
    classes = {name: type(module) for name, module in model.named_modules()}
    assert quicken_norms_(model) == 4
    changed = [name for name, module in model.named_modules() if type(module) is not classes[name]]
    assert changed == ["plain", "unbiased", "bare", "widest"]
    assert {name for name, _ in quick_norms(model)} == set(changed)
    model.train()
    x = torch.randn(3, 4, requires_grad=True)
    for name in changed[:3]:
        with autocast():
            z = model[name](x)
        torch.testing.assert_close(z, nn.functional.layer_norm(x, [4]))
        z.sum().backward()
        assert all(p.grad is not None for p in model[name].parameters())


def test_where_the_plain_layer_runs(calls):
    layer, twin = pair()
    x = torch.randn(2, 5)
    more = {"a pickle": lambda each: autocast()(pickle.loads(pickle.dumps(each)))(x)}
    assert_runs_as_the_plain_layer(layer, twin, x, calls, more)
    with torch.no_grad(), autocast():
        torch.testing.assert_close(layer(x), twin(x))
    assert len(calls) == 1


def test_what_the_plain_layer_refuses_is_refused():
    layer, twin = pair()
    for wrong in (torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 4), torch.randn(())):
        for each in (layer, twin):
            with autocast(), pytest.raises(RuntimeError):
                each(wrong)


def test_weights_that_are_exchanged_afterwards(calls):
    layer, _ = pair()
    x, other = torch.randn(2, 5), torch.randn(5)
    expected = nn.functional.layer_norm(x, [5], other, layer.bias)
    with autocast():
        found = torch.func.functional_call(layer, {"weight": other}, (x,))
    torch.testing.assert_close(found, expected)
    layer.weight = nn.Parameter(other)
    with autocast():
        torch.testing.assert_close(layer(x), expected)
    assert len(calls) == 2
    layer.double()
    with autocast(), pytest.raises(RuntimeError):
        layer(x)
    assert len(calls) == 2


@pytest.mark.parametrize("frozen", [[], ["weight"], ["bias"], ["weight", "bias"]])
def test_frozen_weights_and_low_inputs(frozen, calls):
    layer, twin = pair()
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
        getattr(twin, name).requires_grad_(False)
    for fed in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(2, 4, 5).to(fed).requires_grad_()
        g, found = torch.randn(2, 4, 5), []
        for each, given in ((layer, x), (twin, x.float())):  # which is what CUDA's autocast does, and the CPU's not
            each.zero_grad()
            x.grad = None
            with autocast():
                z = each(given)
            assert z.dtype == torch.float32
            z.backward(g)
            found.append([z.detach(), x.grad, *(p.grad for p in each.parameters() if p.requires_grad)])
        for one, other in zip(*found, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other)
    assert len(calls) == 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant, calls):
    body = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Dropout(0.3), nn.Linear(7, 6))
    quicken_norms_(body, torch.bfloat16, SharedCast())
    both = list(with_and_without_checkpoints(body, torch.randn(3, 6), reentrant))
    assert len(calls) == 3
    for one, other in both:
        assert torch.equal(one, other)


def test_hooks_copies_and_training(calls):
    """Twenty steps are those of plain autocast, as near as rounding lets them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.ReLU(inplace=True), nn.Linear(12, 3))
    twin, seen, x, labels = copy.deepcopy(model), [], torch.randn(16, 8), torch.arange(16) % 3
    start = [p.detach().clone() for p in model.parameters()]
    model[1].register_forward_hook(lambda *_: seen.append("forward"))
    model[1].weight.register_hook(lambda g: seen.append("backward"))
    assert quicken_norms_(model, torch.bfloat16, SharedCast()) == 1
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        for _ in range(20):
            with autocast():
                loss = nn.functional.cross_entropy(each(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert seen == ["forward", "backward"] * 20
    assert len(calls) == 20
    for one, other, before in zip(model.parameters(), twin.parameters(), start):
        assert (one - other).norm() < 0.05 * (other - before).norm()
    copied = copy.deepcopy(model)
    assert isinstance(copied[1], QuickNorm)
    assert copied[1].quick_dtype is None
    assert copied[1].quick_produced is None
    assert quicken_norms_(copied) == 1
    assert copied[1].quick_dtype == torch.bfloat16
