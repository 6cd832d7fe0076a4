"""Quick GELUs, on a CPU in plain torch: the bits of the plain ones, and nothing but them is changed."""

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from quick_helpers import assert_runs_as_the_plain_layer, autocast, counted, gradients, on_the_cpu
from steadytune import Mixout, apply_, remove_
from steadytune.engine import quick_activation
from steadytune.engine.quick import quicken_, unquicken_
from steadytune.engine.quick_activation import quicken_activations_, unquicken_activations_
from steadytune.kernels import linear, norm
from steadytune.kernels.activation import gelu
from steadytune.kernels.handed_on import SharedCast
from tiny import TINY, batch

LOW = torch.bfloat16


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    for module in (linear, norm):
        on_the_cpu(monkeypatch, module)
    return counted(monkeypatch, quick_activation, gelu)


@pytest.mark.parametrize("name", ["bert", "vit", "bart"])
def test_models(name, calls):
    torch.manual_seed(1)
    model = TINY[name]()
    classes = [type(module) for module in model.modules()]
    plain_loss, plain = gradients(model, batch(name), autocast())
    count = quicken_activations_(model, LOW, SharedCast())
    assert count == sum(getattr(module, "act", None) is nn.functional.gelu for module in model.modules()) > 1
    loss, found = gradients(model, batch(name), autocast())
    assert len(calls) == count
    assert torch.equal(loss, plain_loss)
    assert all(torch.equal(found[each], plain[each]) for each in plain)
    unquicken_activations_(model)
    assert [type(module) for module in model.modules()] == classes
    assert not [key for module in model.modules() for key in vars(module) if key.startswith("quick")]


def test_only_in_front_of_mixed_layers():
    model = TINY["bert"]().train()
    quick = quick_activation._Quick
    quicken_(model, LOW)
    assert not any(isinstance(module, quick) for module in model.modules())
    unquicken_(model)
    apply_(model, Mixout(p=0.5))
    quicken_(model, LOW)
    assert sum(isinstance(module, quick) for module in model.modules()) == model.config.num_hidden_layers
    unquicken_(model)
    remove_(model)
    assert not any(isinstance(module, quick) for module in model.modules())


def test_which_activations_are_taken():
    names = ("gelu", "gelu_python", "gelu_new", "gelu_fast", "relu", "silu", "tanh")
    modules = nn.ModuleDict({name: ACT2FN[name] for name in names})
    modules.update({"torch": nn.GELU(), "approximate": nn.GELU("tanh"), "patched": nn.GELU()})
    modules["patched"].forward = torch.relu
    before = {name: type(module) for name, module in modules.items()}
    assert quicken_activations_(modules, LOW, SharedCast()) == 2
    assert [name for name, module in modules.items() if type(module) is not before[name]] == ["gelu", "torch"]


@pytest.mark.parametrize("plain", [nn.GELU, lambda: ACT2FN["gelu"]])
def test_where_the_plain_layer_runs(plain, calls):
    layer, twin, produced = plain().train(), plain().train(), SharedCast()
    assert quicken_activations_(layer, LOW, produced) == 1
    x = torch.randn(3, 5).to(LOW).requires_grad_()
    more = {"no gradient": lambda each: autocast()(each)(x.detach()), "one row": lambda each: autocast()(each)(x[0])}
    more["float32"] = lambda each: autocast()(each)(x.float())
    assert_runs_as_the_plain_layer(layer, twin, x, calls, more)
    with autocast():
        a = layer(x)
    assert len(calls) == 1
    assert torch.equal(produced.get(a, LOW).rows, a)
