"""Steps of AdamW through its kernel, decays merged in, and what a CUDA graph needs; in Triton's interpreter."""

import copy
import os
from unittest import mock

import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from steadytune import AdamW, PretrainedDecay, WeightDecay, apply_  # noqa: E402
from steadytune.errors import SteadytuneError  # noqa: E402
from steadytune.kernels import adamw as kernel  # noqa: E402
from steadytune.kernels import adamw_triton  # noqa: E402
from steadytune.kernels.adamw_tables import Tables  # noqa: E402
from steadytune.methods import adamw_step  # noqa: E402


@pytest.fixture
def on_cpu(monkeypatch):
    """The kernel also for tensors on the CPU; a list of the numbers of slots of each launch."""
    monkeypatch.setattr(kernel, "DEVICES", ("cuda", "cpu"))
    launches = []
    step_ = kernel.FusedStep.step_

    def noted(self, slots, *rest):
        launches.append(len(slots))
        return step_(self, slots, *rest)

    monkeypatch.setattr(kernel.FusedStep, "step_", noted)
    return launches


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 4), nn.Linear(4, 4).to(torch.float64), nn.Linear(4, 2)
    )  # float64: not the kernel's


METHODS = {
    "plain": [],
    "biased": [AdamW(correct_bias=False)],
    "pretrained": [PretrainedDecay(0.7)],
    "both": [WeightDecay(0.5), PretrainedDecay(0.7)],
    "l2 then decoupled": [WeightDecay(0.5, form="l2"), PretrainedDecay(0.7)],
    "decoupled then l2": [WeightDecay(0.5), PretrainedDecay(0.7, form="l2")],
}


def trained(methods, steps=3, weight_decay=0.1, lr_tensor=False, **arguments):
    model = net()
    optimizer = apply_(model, methods).optimizer(lr=0.1, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (s + 1))
    if lr_tensor:
        optimizer.lr_on_device_()
    for i in range(steps):
        set_grads_(model.parameters(), i)
        optimizer.step(**arguments)
        schedule.step()
    return model, optimizer


def set_grads_(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        p.grad = grad if p.grad is None else p.grad.copy_(grad)


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_the_optimiser_gives_the_same_with_and_without_the_kernel(on_cpu, methods):
    ours, optimizer = trained(methods)
    assert on_cpu == [4, 4, 4]
    with mock.patch.object(kernel, "DEVICES", ()):
        plain, reference = trained(methods)
    assert len(on_cpu) == 3
    for p, q in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(p, q)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(optimizer.state[p][key], reference.state[q][key])


@pytest.mark.parametrize("tensor", [False, True])
def test_learning_rates_as_numbers_and_as_tensors_have_the_same_bits(on_cpu, tensor):
    number, _ = trained([PretrainedDecay(0.7)])
    other, optimizer = trained([PretrainedDecay(0.7)], lr_tensor=tensor)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor) is tensor
    assert all(torch.equal(p, q) for p, q in zip(number.parameters(), other.parameters()))


@pytest.mark.parametrize("with_kernel", [False, True])
def test_factor_and_zeros(on_cpu, monkeypatch, with_kernel):
    if not with_kernel:
        monkeypatch.setattr(kernel, "DEVICES", ())
    ours, _ = trained([], grad_factor=torch.tensor(0.5))
    assert all((p.grad != 0).any() for p in ours.parameters())
    zeroed, _ = trained([], grad_factor=torch.tensor(0.5), zero_grads=True)
    assert all((p.grad == 0).all() for p in zeroed.parameters())
    model = net()
    optimizer = apply_(model, []).optimizer(lr=0.1, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (s + 1))
    for i in range(3):
        set_grads_(model.parameters(), i)
        for p in model.parameters():
            p.grad *= 0.5
        optimizer.step()
        schedule.step()
    for p, q, r in zip(ours.parameters(), zeroed.parameters(), model.parameters()):
        assert torch.equal(p, q)
        torch.testing.assert_close(p, r)


def test_parameters_that_the_kernel_cannot_do_and_gradients_that_come_and_move(on_cpu):
    def run():
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6, 4).t()), nn.Parameter(torch.randn(7))]
        optimizer = AdamW([{"params": params[:2]}, {"params": params[2:], "betas": (0.5, 0.9)}], lr=0.1)
        for i in range(4):
            for p in params:
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
            if i == 1:
                params[2].grad = None
            if i == 2:
                params[0].grad = torch.randn(6, 4).t()
                params[0].grad.copy_(torch.ones(4, 6))
            optimizer.step()
        return params

    ours = run()
    assert on_cpu == [2, 1, 1, 2]
    with mock.patch.object(kernel, "DEVICES", ()):
        plain = run()
    for p, q in zip(ours, plain):
        torch.testing.assert_close(p, q)


def test_gradients_that_move_in_every_step_are_found(on_cpu):
    """Also where they come to lie off the alignment of the rest, or one is missing."""

    def run():
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(7))]
        optimizer = AdamW(params, lr=0.1, weight_decay=0.1)
        held = []
        for i in range(7):
            for p in params:
                buffer = torch.randn(64 + p.numel(), generator=torch.Generator().manual_seed(i))
                start = 1 if i == 3 else 0
                p.grad = buffer[start : start + p.numel()].view_as(p)
                held.append(buffer)
            if i == 5:
                params[1].grad = None
            optimizer.step()
        return params

    with mock.patch.object(Tables, "of", wraps=Tables.of) as made:
        ours = run()
    assert made.call_count == 5  # the first, off alignment, back, one missing, back: what only moved is none of them
    with mock.patch.object(kernel, "DEVICES", ()):
        plain = run()
    for p, q in zip(ours, plain):
        torch.testing.assert_close(p, q)


def test_decays_that_do_not_fit_go_the_plain_way():
    u = torch.ones(2)
    assert adamw_step.arranged([], 0.0) == adamw_step.Decays((0.0, 0.0, 0.0), [])
    assert adamw_step.arranged([(0.1, None), (0.2, u)], 0.3) == ((0.1, 0.2, 0.3), [u])
    assert adamw_step.arranged([(0.2, u)], 0.3) == ((0.0, 0.2, 0.3), [u])
    assert adamw_step.arranged([(0.1, None)], 0.3) == ((0.1, 0.0, 0.3), [])
    assert adamw_step.arranged([(0.2, u), (0.2, u)], 0.0) is None
    assert adamw_step.arranged([(0.1, None), (0.1, None), (0.2, u)], 0.0) is None
    assert adamw_step.arranged([(0.1, None), (0.1, None)], 0.1) is None


# --- what a graph needs -----------------------------------------------------------------------------------------------


def captured_step(optimizer, **arguments):
    """A step in which everybody believes that a graph is captured."""
    believed = {"is_capturing": mock.Mock(return_value=True)}
    with mock.patch.multiple(kernel, **believed), mock.patch.multiple(adamw_step, **believed):
        optimizer.step(**arguments)


class Graph:
    """As much of a CUDA graph as the interpreter can have: launches are noted, and done in each replay."""

    def __init__(self, optimizer, **arguments):
        self.launches = []
        note = mock.patch.object(adamw_triton, "adamw_triton_", lambda *launch: self.launches.append(launch))
        with note:
            captured_step(optimizer, **arguments)

    def replay(self):
        for launch in self.launches:
            adamw_triton.adamw_triton_(*launch)


def small(lr_tensor=True):
    params = [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))]
    optimizer = AdamW(params, lr=0.1)
    if lr_tensor:
        optimizer.lr_on_device_()
    set_grads_(params, 0)
    return params, optimizer


def test_capture_needs_a_step_before_the_same_gradients_and_a_learning_rate_on_the_device(on_cpu):
    params, optimizer = small(lr_tensor=False)
    optimizer.step()
    with pytest.raises(SteadytuneError, match="one learning rate for ever"):
        captured_step(optimizer)
    params, optimizer = small()
    assert optimizer.capturable()
    with pytest.raises(SteadytuneError, match="taken before"):
        captured_step(optimizer)
    assert not optimizer.state[params[0]]
    optimizer.step()
    captured_step(optimizer)
    with pytest.raises(SteadytuneError, match="with the same arguments"):
        captured_step(optimizer, zero_grads=True)
    old = params[0].grad
    params[0].grad = old.clone()
    with pytest.raises(SteadytuneError, match="in the same memory"):
        captured_step(optimizer)
    optimizer.step()
    captured_step(optimizer)


def test_capture_of_what_the_kernel_cannot_do_gets_a_sentence(on_cpu):
    model, optimizer = trained([], steps=1)  # it has a float64 layer
    optimizer.lr_on_device_()
    assert not optimizer.capturable()
    with pytest.raises(SteadytuneError, match=r"shape \(4, 4\), torch.float64"):
        captured_step(optimizer)
    model = net().float()
    optimizer = apply_(model, METHODS["decoupled then l2"]).optimizer(lr=0.1)
    optimizer.lr_on_device_()
    assert not optimizer.capturable()
    set_grads_(model.parameters(), 0)
    with pytest.raises(SteadytuneError, match="list the one with l2 first"):
        captured_step(optimizer)


def test_loading_writes_into_the_memory_that_a_graph_knows(on_cpu):
    params, optimizer = small()
    empty = copy.deepcopy(optimizer.state_dict())
    start = [p.detach().clone() for p in params]
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    places = [x.data_ptr() for p in params for x in optimizer.state[p].values()]
    places.append(optimizer.param_groups[0]["lr"].data_ptr())
    after = [p.detach().clone() for p in params]

    def now():
        return [
            *(x.data_ptr() for p in params for x in optimizer.state[p].values()),
            optimizer.param_groups[0]["lr"].data_ptr(),
        ]

    optimizer.param_groups[0]["lr"].fill_(7.0)
    optimizer.step()
    optimizer.load_state_dict(saved)
    assert now() == places
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert optimizer.state[params[0]]["step"] == 1
    optimizer.load_state_dict(empty)  # what it was before the first step
    assert now() == places
    with torch.no_grad():
        for p, value in zip(params, start):
            p.copy_(value)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, after))


def test_replays_are_the_steps_one_by_one_whatever_changes_on_the_device(on_cpu):
    """Learning rates, factor and gradients change between replays, decay toward the pretrained weights is in it."""
    factor, models = torch.ones(()), [net().float(), net().float()]
    optimizers = [apply_(m, [PretrainedDecay(0.7)]).optimizer(lr=0.01, weight_decay=0.1) for m in models]
    start = copy.deepcopy(models[1].state_dict())
    optimizers[1].lr_on_device_()
    empty = copy.deepcopy(optimizers[1].state_dict())
    set_grads_(models[1].parameters(), 0)
    optimizers[1].step(grad_factor=factor, zero_grads=True)
    graph = Graph(optimizers[1], grad_factor=factor, zero_grads=True)
    assert len(graph.launches) == 1  # all groups and both decays in one
    optimizers[1].load_state_dict(empty)  # the warm-up never was
    models[1].load_state_dict(start)
    for i in range(4):
        factor.fill_(0.5 + 0.1 * i)
        for model in models:
            set_grads_(model.parameters(), i)
        for group, other in zip(*(o.param_groups for o in optimizers)):
            group["lr"] = 0.01 / (i + 1)
            other["lr"].fill_(0.01 / (i + 1))
        optimizers[0].step(grad_factor=factor, zero_grads=True)
        graph.replay()
        assert all(torch.equal(p, q) for p, q in zip(*(m.parameters() for m in models))), f"step {i}"
        if i == 1:  # what a checkpoint brings back, the graph goes on with
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    assert optimizers[1].state_dict()["state"][0]["step"] == 4
