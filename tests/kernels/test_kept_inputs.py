"""Kept columns that are made again in the backward pass: the weight gradients of those that are taken before."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadytune import SteadytuneError
from steadytune.kernels import activation, kept_inputs
from steadytune.kernels.activation import gelu
from steadytune.kernels.kept_gradients import Kept, KeptGradients
from steadytune.kernels.mixout_columns import Layer, column_linears
from steadytune.kernels.mixout_masks import draw, new_rule
from steadytune.rng import new_counter

LOW, COLUMNS = torch.bfloat16, 96


class Mixed:
    """Layers of some heights that read the same tensor, with their kept gradients."""

    def __init__(self, *heights):
        torch.manual_seed(len(heights))
        self.weights = [nn.Parameter(torch.randn(height, COLUMNS)) for height in heights]
        self.biases = [nn.Parameter(torch.randn(height)) for height in heights]
        self.columns = [draw(new_counter(key), new_rule(COLUMNS, 0.7)) for key in range(len(heights))]
        self.kept = KeptGradients(
            [Kept(w, b, c, 2.0) for w, b, c in zip(self.weights, self.biases, self.columns, strict=True)]
        )
        self.parameters = [*self.weights, *self.biases]

    def __call__(self, x, given):
        layers = [
            Layer(w, b, w.detach() + 0.1, c, self.kept.of[w])
            for w, b, c in zip(self.weights, self.biases, self.columns, strict=True)
        ]
        with torch.autocast("cpu", dtype=LOW):
            return torch.cat(column_linears(x, layers, 0.7, 2.0, True, given), -1)

    def found(self):
        self.kept.finish_()
        return [self.kept.of[w].values.clone() for w in self.weights] + [b.grad.clone() for b in self.biases]


def of_gelu(h, gamma, beta):
    return gelu((h * gamma + beta).to(LOW))


def inputs():
    torch.manual_seed(0)
    return [each.requires_grad_() for each in (torch.randn(4, 5, COLUMNS), torch.randn(COLUMNS), torch.randn(COLUMNS))]


@pytest.fixture
def again(monkeypatch):
    """The layers whose columns were made again."""
    made = []
    monkeypatch.setattr(
        activation, "multiply_", lambda wanted, kept: made.extend(wanted) or kept_inputs.multiply_(wanted, kept)
    )
    return made


@pytest.mark.parametrize("heights", [(7,), (8, 5, 8)])
def test_the_bits_of_those_that_are_taken_in_the_forward_pass(heights, again):
    found = []
    for strips in (True, False):
        mixed, start = Mixed(*heights), inputs()
        for chunk in range(2):
            mixed.kept.begin_(first=chunk == 0)
            z, handed = of_gelu(*start)
            y = mixed(z, handed._replace(source=None) if strips else handed)
            (y.float().square().sum() + (z.float() * 0.5).square().sum()).backward()  # z is read twice
        found.append([*(each.grad for each in start), *mixed.found()])
        assert len(again) == (0 if strips else 2 * len(heights))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert one.any()


def test_nothing_of_the_input_is_kept_besides():
    def kept_bytes(strips):
        mixed, start, seen = Mixed(8, 5, 8), inputs(), {}
        z, handed = of_gelu(*start)
        handed = handed._replace(source=None) if strips else handed

        def keep(t):
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            mixed(z, handed)
        return sum(seen.values())

    taken = 3 * 20 * len(draw(new_counter(0), new_rule(COLUMNS, 0.7)).kept) * 2  # bytes: 3 layers, 20 rows
    assert kept_bytes(strips=True) - kept_bytes(strips=False) == taken


def test_where_the_source_has_no_backward_pass_of_its_own(again):
    mixed, (h, gamma, beta) = Mixed(7), inputs()
    found = []
    for frozen in (False, True):
        own = [each.detach().requires_grad_(not frozen) for each in (h, gamma, beta)]
        z, handed = of_gelu(*own)
        mixed.kept.begin_(first=True)
        mixed(z, handed).float().square().sum().backward()
        found.append(mixed.found())
    assert len(again) == 1, "a frozen body: the columns are taken in the forward pass"
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_backward_pass_that_ends_before_the_source_is_refused():
    mixed, start = Mixed(7), inputs()
    mixed.kept.begin_(first=True)
    z, handed = of_gelu(*start)
    torch.autograd.grad(mixed(z, handed).float().sum(), mixed.weights, allow_unused=True)
    with pytest.raises(SteadytuneError, match="ended before it came to the layer before"):
        mixed.kept.finish_()


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant):
    found = []
    for saving in (False, True):
        mixed, (h, gamma, beta) = Mixed(8, 5), inputs()
        mixed.kept.begin_(first=True)

        def body(h, mixed=mixed, gamma=gamma, beta=beta):
            z, handed = of_gelu(h, gamma, beta)
            return mixed(z, handed).float()

        y = checkpoint(body, h, use_reentrant=reentrant) if saving else body(h)
        y.square().sum().backward()
        found.append([h.grad, gamma.grad, *mixed.found()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
