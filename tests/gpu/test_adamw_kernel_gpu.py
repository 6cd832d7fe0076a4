"""The AdamW kernel on a real device: against float64, in CUDA graphs, beside torch's fused AdamW."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from adamw_slots import assert_step, cases, elements_that_rest, expected
from steadytune import AdamW, PretrainedDecay, apply_
from steadytune.errors import SteadytuneError
from steadytune.kernels.adamw import FusedStep
from steadytune.kernels.adamw_tables import Settings, Slot

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]

SHAPES = [(5_000_003,), (1024, 1024), (384,), (1,), (7, 13), (0, 4), ()]


def slots_of(made):
    return [case.slot for case in made]


@pytest.mark.parametrize("rate", [torch.float64, torch.float32])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("factor", "zero"), [(None, False), (0.25, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernel_against_float64(dtype, factor, zero, shift, rate):
    made = cases(dtype, "cuda", torch.tensor(0.05, dtype=rate, device="cuda"), shift=shift)
    given = None if factor is None else torch.tensor(factor, device="cuda")
    step = FusedStep()
    for _ in range(3):
        before = [(*expected(c.slot, factor or 1.0), c.slot.t.item()) for c in made]
        after = [torch.zeros_like(c.slot.g) if zero else c.slot.g.clone() for c in made]
        step.step_(slots_of(made), given, zero)
        for case, exact, grad in zip(made, before, after):
            assert_step(case, exact, grad)
            case.slot.g.copy_(torch.randn_like(case.slot.g))


def test_variants_of_the_kernel_have_the_same_bits():
    results = []
    one = torch.ones((), device="cuda")
    for anchored, factor, shift in [(False, None, 0), (True, None, 0), (False, one, 0), (False, None, 1)]:
        rate = torch.tensor(0.05, dtype=torch.float64, device="cuda")
        made = cases(torch.float32, "cuda", rate, shift=shift, seed=7)
        slots = [s._replace(settings=s.settings._replace(anchor_decay=0.0)) for s in slots_of(made)]
        slots = [s._replace(anchor=torch.randn_like(s.w) if anchored else None) for s in slots]
        FusedStep().step_(slots, factor)
        results.append(torch.cat([x.flatten() for s in slots for x in (s.w, s.m, s.v)]))
    assert not torch.isnan(results[0]).any()
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_a_small_decay_rounds_a_weight_once():
    w, anchor = torch.randn(2, 100_003, device="cuda")
    m, v, g = torch.zeros(3, 100_003, device="cuda")
    exact = w.double() * (1 - 2e-5 * 0.01)
    exact = exact - 2e-5 * 0.005 * (exact - anchor.double())
    rate, count = torch.tensor(2e-5, dtype=torch.float64, device="cuda"), torch.zeros((), device="cuda")
    settings = Settings(0.9, 0.999, 1e-8, True, 0.01, 0.005, 0.0)
    FusedStep().step_([Slot(w, g, m, v, count, anchor, rate, settings)])
    last_place = torch.nextafter(w.abs(), torch.tensor(torch.inf, device="cuda")) - w.abs()
    assert ((w.double() - exact).abs() <= 0.51 * last_place).all()


def test_more_elements_than_an_int32_counts():
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GiB of device memory")
    length = 2**31 + 5001
    w, g, m, v = (torch.full((length,), value, dtype=torch.bfloat16, device="cuda") for value in (1.0, 2.0, 0.0, 0.0))
    rate, count = torch.tensor(0.5, dtype=torch.float64, device="cuda"), torch.zeros((), device="cuda")
    FusedStep().step_([Slot(w, g, m, v, count, None, rate, Settings(0.9, 0.999, 0.0, True, 0.0, 0.0, 0.0))])
    for place in (0, 2**31 - 1, 2**31, length - 1):
        assert w[place].item() == 0.5  # 1 - 0.5 · 2/√4
    assert w[-6000:].eq(0.5).all()


# --- the optimiser ----------------------------------------------------------------------------------------------------


def weights(dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator, device="cuda").to(dtype)) for s in SHAPES]


def set_grads_(params, seed):
    """Random gradients in memory that stays."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for p in params:
        grad = torch.randn(p.shape, generator=generator, device="cuda").to(p.dtype)
        p.grad = grad if p.grad is None else p.grad.copy_(grad)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_equals_torch_fused():
    mine, theirs = weights(), weights()
    ours, torchs = AdamW(mine, lr=0.01, weight_decay=0.1), torch.optim.AdamW(theirs, 0.01, weight_decay=0.1, fused=True)
    for i in range(20):
        set_grads_(mine, i), set_grads_(theirs, i)
        ours.step(), torchs.step()
    for p, q in zip(mine, theirs):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.state[p]["exp_avg_sq"], torchs.state[q]["exp_avg_sq"])
        assert ours.state[p]["step"] == 20


@pytest.mark.parametrize("kind", [{"fused": True}, {"foreach": True}, {"capturable": True}])
def test_state_goes_to_torch_and_back(kind):
    mine, theirs = weights(), weights()
    ours, torchs = AdamW(mine, lr=0.01), torch.optim.AdamW(theirs, 0.01, weight_decay=0.0, **kind)
    for i in range(3):
        set_grads_(mine, i), set_grads_(theirs, i)
        ours.step(), torchs.step()
    mine_2, theirs_2 = copy.deepcopy(mine), copy.deepcopy(theirs)
    from_torch, from_ours = AdamW(mine_2), torch.optim.AdamW(theirs_2, **kind)
    from_torch.load_state_dict(copy.deepcopy(torchs.state_dict()))
    from_ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    for params, optimizer in ((mine, ours), (theirs, torchs), (mine_2, from_torch), (theirs_2, from_ours)):
        for i in range(3, 6):
            set_grads_(params, i)
            optimizer.step()
        for p, q in zip(params, mine):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
    assert from_torch.state[mine_2[0]]["step"].item() == 6


def model_of(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 700), nn.Linear(700, 100), nn.Linear(100, 2)).to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("correct_bias", [True, False])
def test_replays_of_a_graph_are_the_steps_one_by_one(dtype, correct_bias):
    """Learning rate, factor and gradients change between replays; decay toward the pretrained weights is in it."""
    methods = [PretrainedDecay(0.7), AdamW(correct_bias=correct_bias)]
    factor = torch.ones((), device="cuda")
    models, optimizers = [model_of(dtype), model_of(dtype)], []
    for model in models:
        optimizers.append(apply_(model, methods).optimizer(lr=0.01, weight_decay=0.1))
        set_grads_(model.parameters(), 0)
        for p in model.parameters():
            p.grad.zero_()
    optimizers[1].lr_on_device_()
    empty = copy.deepcopy(optimizers[1].state_dict())
    start = [p.detach().clone() for p in models[1].parameters()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizers[1].step(grad_factor=factor, zero_grads=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[1].step(grad_factor=factor, zero_grads=True)
    optimizers[1].load_state_dict(empty)  # the warm-up never was
    with torch.no_grad():
        for p, value in zip(models[1].parameters(), start):
            p.copy_(value)

    for i in range(6):
        rate = 0.01 / (i + 1)
        factor.fill_(0.5 + 0.1 * i)
        for model in models:
            set_grads_(model.parameters(), i)
        for group, other in zip(*(o.param_groups for o in optimizers)):
            group["lr"] = rate
            other["lr"].fill_(rate)
        optimizers[0].step(grad_factor=factor, zero_grads=True)
        graph.replay()
        assert same(*(list(m.parameters()) for m in models)), f"step {i}"
        assert all((p.grad == 0).all() for m in models for p in m.parameters())
        if i == 3:  # what a checkpoint brings back, the graph goes on with
            for optimizer in optimizers:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not same(models[1].parameters(), start)
    assert all(torch.isfinite(p).all() for p in models[1].parameters())


def test_no_step_waits_for_the_device_even_where_gradients_move():
    params = weights()
    optimizer = AdamW([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
    held = []
    for i in range(3):
        for p in params:
            held.append(p.grad)  # so that the next one is elsewhere
            p.grad = torch.ones_like(p)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (i + 1)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    twin = weights()
    reference = torch.optim.AdamW(twin, weight_decay=0.0, foreach=True)
    for i in range(3):
        reference.param_groups[0]["lr"] = 0.1 / (i + 1)
        for p in twin:
            p.grad = torch.ones_like(p)
        reference.step()
    for p, q in zip(params, twin):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_captured_gets_a_sentence():
    def capture(optimizer):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimizer.step()

    params = weights()[1:3]
    set_grads_(params, 0)
    optimizer = AdamW(params, lr=0.1)
    optimizer.step()
    with pytest.raises(SteadytuneError, match="one learning rate for ever"):
        capture(optimizer)
    optimizer.lr_on_device_()
    with pytest.raises(SteadytuneError, match="taken before"):
        capture(optimizer)
    optimizer.step()
    params[0].grad = params[0].grad.clone()
    with pytest.raises(SteadytuneError, match="in the same memory"):
        capture(optimizer)


def test_grad_scaler_unscales_before_and_skips_overflow():
    w = nn.Parameter(torch.ones(2000, device="cuda"))
    optimizer, scaler = AdamW([w], lr=0.1), torch.amp.GradScaler("cuda", init_scale=4.0)
    for gradient, moved in [(float("inf"), False), (4.0, True)]:
        scaler.scale(torch.ones((), device="cuda"))  # what makes the scaler ready
        w.grad = torch.full_like(w, gradient)
        scaler.step(optimizer)
        scaler.update()
        assert (optimizer.state[w] != {}) is moved
    torch.testing.assert_close(w.detach(), torch.full_like(w, 0.9))


def test_elements_without_a_gradient_so_far_follow_the_formula():
    """0 / (0 + ε) is 0, and NaN without ε, as the formula has it: the kernel takes a way of its own for 0."""
    slots, after = elements_that_rest("cuda")
    FusedStep().step_(slots)
    for slot, (w, m, v) in zip(slots, after, strict=True):
        for found, wanted in ((slot.w, w), (slot.m, m), (slot.v, v)):
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-7, equal_nan=True)
        assert torch.isnan(slot.w).any() == (slot.settings.eps == 0.0)
