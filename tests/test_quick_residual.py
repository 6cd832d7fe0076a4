"""Residual connections that end in a norm, on a CPU in plain torch: the bits of sum and norm one after the other."""

# ruff: noqa: RET504 (a forward to the letter)

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from transformers.models.bert.modeling_bert import BertOutput

from quick_helpers import autocast, gradients, on_the_cpu
from steadytune.engine import quick_norm
from steadytune.engine.quick import quicken_, unquicken_
from steadytune.engine.quick_norm import quicken_norms_, unquicken_norms_
from steadytune.engine.quick_residual import quick_residuals, quicken_residuals_, unquicken_residuals_
from steadytune.kernels import linear, norm
from steadytune.kernels.handed_on import SharedCast
from tiny import TINY, batch


@pytest.fixture(autouse=True)
def sums(monkeypatch):
    """The residuals of all calls of a quick norm; None where there is none."""
    for module in (linear, norm):
        on_the_cpu(monkeypatch, module)
    made, compute = [], norm.quick_norm

    def counted(x, gamma, beta, eps, dtype, residual=None):
        made.append(residual)
        return compute(x, gamma, beta, eps, dtype, residual)

    monkeypatch.setattr(quick_norm, "quick_norm", counted)
    return made


@pytest.mark.parametrize(
    ("name", "count", "summed"),
    [
        ("bert", 8, 8),
        ("roberta", 8, 8),
        ("deberta-v2", 8, 8),
        ("electra", 8, 7),  # its first block is given what a linear layer makes: a sum in a low type
        ("vit", 0, 0),
        ("gpt2", 0, 0),
    ],
)
def test_models(name, count, summed, sums):
    torch.manual_seed(1)
    model = TINY[name]()
    classes, keys, found = [type(module) for module in model.modules()], list(model.state_dict()), []
    inputs = batch(name)
    for fuses in (False, True):
        quicken_norms_(model, torch.bfloat16, SharedCast())
        if fuses:
            assert quicken_residuals_(model) == count == len(list(quick_residuals(model)))
        sums.clear()
        found.append(gradients(model, inputs, autocast()))
        assert sum(each is not None for each in sums) == (summed if fuses else 0)
        assert list(model.state_dict()) == keys
        unquicken_residuals_(model)
        unquicken_norms_(model)
    (plain_loss, plain), (loss, made) = found
    assert torch.equal(loss, plain_loss)
    assert all(torch.equal(made[each], plain[each]) for each in plain)
    assert [type(module) for module in model.modules()] == classes
    assert not [key for module in model.modules() for key in vars(module) if key.startswith("quick")]


def test_with_linear_layers_that_take_the_other_door():
    """What comes back from linear layers and from the sum is added in the norm: in the order of autograd or not, to the
    bit, since two numbers have one sum."""
    torch.manual_seed(1)
    model, found = TINY["bert"](), []
    for fuses in (False, True):
        casts = quicken_(model, torch.bfloat16)
        if not fuses:
            unquicken_residuals_(model)
        casts.refresh_()
        found.append(gradients(model, batch("bert"), autocast()))
        unquicken_(model)
    (plain_loss, plain), (loss, made) = found
    assert torch.equal(loss, plain_loss)
    assert all(torch.equal(made[each], plain[each]) for each in plain)


class Rewritten(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dense(hidden_states) + 2 * input_tensor)


class Inherited(BertOutput):
    pass


def doubled(forward):
    @functools.wraps(forward)
    def wrapper(self, *inputs):
        return 2 * forward(self, *inputs)

    return wrapper


class Decorated(BertOutput):
    """Its source says just that, but for what is written above it."""

    @doubled
    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.LayerNorm(hidden_states + input_tensor)
        return hidden_states


def test_only_modules_that_say_just_that():
    config = TINY["bert"]().config
    modules = nn.ModuleDict(
        {
            "plain": BertOutput(config),
            "inherited": Inherited(config),
            "rewritten": Rewritten(config),
            "decorated": Decorated(config),
            "patched": BertOutput(config),
            "another norm": BertOutput(config),
        }
    )
    modules["patched"].forward = lambda *inputs: inputs[0]
    modules["another norm"].LayerNorm = nn.RMSNorm(config.hidden_size)
    assert quicken_residuals_(modules) == 0, "no norm is quick yet"
    quicken_norms_(modules)
    assert quicken_residuals_(modules) == 2
    assert quicken_residuals_(modules) == 0, "they are already"
    assert [module is modules["plain"] or module is modules["inherited"] for module in quick_residuals(modules)]
    assert isinstance(modules["inherited"], Inherited)
    unquicken_residuals_(modules)
    assert type(modules["plain"]) is BertOutput
    assert type(modules["inherited"]) is Inherited


def test_copies_pickles_hooks_and_norms_that_are_not_quick(sums):
    config = TINY["bert"]().config
    module, seen = BertOutput(config).train(), []
    module.dropout.p = 0.0
    h, r = torch.randn(2, 3, config.intermediate_size), torch.randn(2, 3, config.hidden_size)
    with autocast():
        expected = module(h, r)
    module.LayerNorm.register_forward_hook(lambda *_: seen.append("norm"))
    quicken_norms_(module)
    assert quicken_residuals_(module) == 1
    with autocast():
        torch.testing.assert_close(module(h, r), expected)
    assert len(sums) == len(seen) == 1
    assert sums[0] is r
    module.LayerNorm._forward_hooks.clear()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin) is BertOutput
        with autocast():
            torch.testing.assert_close(twin(h, r), expected)
    assert len(sums) == 1
    torch.testing.assert_close(module(h, r), expected, atol=0.05, rtol=0.05)  # without autocast: the plain norm
    with autocast():
        torch.testing.assert_close(module(h, r[:1]), module(h, r[:1].expand_as(r)))  # torch spreads; a norm need not
    assert [each is None for each in sums[1:]] == [True, False]
    unquicken_norms_(module)
    with autocast():
        torch.testing.assert_close(module(h, r), expected)
