"""AdamW against torch.optim.AdamW (bit for bit), and without bias correction against the closed form (T2)."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from steadytune.errors import SteadytuneError
from steadytune.methods.adamw import AdamW, AdamWMethod, adamw_, bias_ratio


def weights(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in [(3, 4), (5,), (), (0,), (2, 3, 2)]]


def set_grads_(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def run(optimizer, params, steps, start=0):
    for i in range(start, start + steps):
        set_grads_(params, i)
        optimizer.step()
    return [p.detach().clone() for p in params]


def identical(a, b):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- bias_ratio -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "r"), [(1, 3.162), (12, 6.569), (230, 2.21), (348, 1.84), (800, 1.35)])
def test_bias_ratio_has_the_numbers_of_v2(t, r):
    assert bias_ratio(t) == pytest.approx(r, abs=0.005)


def test_bias_ratio_peaks_at_12_and_is_below_one_percent_from_3925():
    ratios = bias_ratio(np.arange(1, 10_001))
    assert ratios.argmax() + 1 == 12
    assert (ratios[3924:] < 1.01).all()
    assert ratios[3923] > 1.01


def test_bias_ratio_gives_back_the_kind_it_was_given():
    assert type(bias_ratio(3)) is float
    assert type(bias_ratio(2.5)) is float
    assert isinstance(bias_ratio([1, 2]), np.ndarray)
    for dtype, out in [(torch.int64, torch.float64), (torch.float32, torch.float32)]:
        ratios = bias_ratio(torch.tensor([1, 12, 230], dtype=dtype))
        assert ratios.dtype == out
        assert ratios.tolist() == pytest.approx([bias_ratio(t) for t in (1, 12, 230)], rel=1e-6)


@pytest.mark.parametrize("t", [0, -1, np.array([1, 0]), torch.tensor([1, 0])])
def test_bias_ratio_counts_steps_from_one(t):
    with pytest.raises(SteadytuneError, match="count from 1"):
        bias_ratio(t)


# --- with bias correction: torch.optim.AdamW --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("settings_", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.98), "eps": 1e-3, "lr": 0.3}])
def test_equals_torch_bit_for_bit(dtype, settings_):
    mine, theirs = weights(dtype), weights(dtype)
    ours = AdamW(mine, **{"lr": 0.01, **settings_})
    torchs = torch.optim.AdamW(theirs, foreach=True, **{"lr": 0.01, "weight_decay": 0.0, **settings_})
    for i in range(20):
        assert identical(run(ours, mine, 1, i), run(torchs, theirs, 1, i)), f"step {i}"
    for p, q in zip(mine, theirs):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(ours.state[p][key], torchs.state[q][key]), key
            assert ours.state[p][key].dtype == torchs.state[q][key].dtype, key


def test_groups_mixed_dtypes_and_parameters_without_a_gradient():
    def build(cls, params, **more):
        groups = [{"params": params[:3], "lr": 0.1, "weight_decay": 0.2}, {"params": params[3:], "betas": (0.8, 0.9)}]
        return cls(groups, lr=0.01, weight_decay=0.0, **more)

    mine, theirs = ([*weights(), *weights(torch.float64, 1)] for _ in range(2))
    ours, torchs = build(AdamW, mine), build(torch.optim.AdamW, theirs, foreach=True)
    for i in range(6):
        for params, optimizer in ((mine, ours), (theirs, torchs)):
            set_grads_(params, i)
            if i < 3:
                params[1].grad = None  # joins late: its own step count
            params[6].grad = None  # never joins
            optimizer.step()
        assert identical(mine, theirs), f"step {i}"
    assert mine[6] not in ours.state
    assert ours.state[mine[1]]["step"] == 3
    assert ours.state[mine[0]]["step"] == 6


def test_schedulers_write_the_learning_rate():
    mine, theirs = weights(), weights()
    ours, torchs = AdamW(mine, lr=0.1), torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.0, foreach=True)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: (s + 1) / 10) for o in (ours, torchs)]
    for i in range(5):
        assert identical(run(ours, mine, 1, i), run(torchs, theirs, 1, i))
        for schedule in schedules:
            schedule.step()


def test_learning_rate_as_a_tensor():
    mine, theirs = weights(torch.float64), weights(torch.float64)
    lr = torch.tensor(0.05, dtype=torch.float64)
    after = run(AdamW(mine, lr=lr, weight_decay=0.1), mine, 4)
    expected = run(torch.optim.AdamW(theirs, lr=lr, weight_decay=0.1), theirs, 4)
    for a, b in zip(after, expected):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_closure_runs_with_gradients_and_its_loss_comes_back():
    w = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = AdamW([w], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert torch.allclose(w, torch.tensor([0.9, -1.9]))


@pytest.mark.parametrize("zero", [False, True])
def test_a_factor_of_the_gradient_and_zeros_afterwards(zero):
    mine, theirs = weights(), weights()
    ours, expected = AdamW(mine, lr=0.1, weight_decay=0.1), AdamW(theirs, lr=0.1, weight_decay=0.1)
    for i in range(3):
        set_grads_(mine, i), set_grads_(theirs, i)
        given = [p.grad.clone() for p in mine]
        places = [p.grad.data_ptr() for p in mine]
        for p in theirs:
            p.grad *= 0.25
        assert ours.step(grad_factor=torch.tensor(0.25), zero_grads=zero) is None
        expected.step()
        assert identical(mine, theirs)
        assert identical([p.grad for p in mine], [torch.zeros_like(g) if zero else g for g in given])
        assert [p.grad.data_ptr() for p in mine] == places


# --- without: BERTAdam ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), beta1=st.floats(0.0, 0.99), beta2=st.floats(0.5, 0.9999), lr=st.floats(1e-4, 1.0))
def test_step_without_correction_is_the_closed_ratio_times_the_corrected_one(seed, beta1, beta2, lr):
    """(m / √v) / (m̂ / √v̂) = (1 - β1^t) / √(1 - β2^t) for ε = 0, whatever the gradients were."""
    biased, corrected = ([nn.Parameter(torch.zeros(7, dtype=torch.float64))] for _ in range(2))
    kind = {"lr": lr, "betas": (beta1, beta2), "eps": 0.0}
    optimizers = AdamW(biased, correct_bias=False, **kind), AdamW(corrected, **kind)
    for t in range(1, 15):
        for params, optimizer in zip((biased, corrected), optimizers):
            params[0].data.zero_()  # so that the weight is the step itself, without rounding
            set_grads_(params, seed + t)
            optimizer.step()
        ratio = bias_ratio(t, beta1, beta2)
        torch.testing.assert_close(biased[0].data, ratio * corrected[0].data, rtol=1e-10, atol=0)


def test_without_correction_follows_algorithm_1_with_lines_9_and_10_omitted():
    w = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    optimizer = AdamW([w], lr=0.1, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.5, correct_bias=False)
    expected, m, v = w.detach().numpy().copy(), 0.0, 0.0
    for i in range(5):
        set_grads_([w], i)
        g = w.grad.numpy()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * m / (np.sqrt(v) + 1e-2)
        optimizer.step()
        np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-12)


def test_functional_form_is_the_class():
    params, other = weights(), weights()
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    steps = [torch.tensor(0.0) for _ in params]
    for i in range(3):
        set_grads_(params, i)
        grads = [p.grad for p in params]
        hyper = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "correct_bias": False}
        adamw_(params, grads, m, v, steps, **hyper)
    assert identical(params, run(AdamW(other, lr=0.1, weight_decay=0.1, correct_bias=False), other, 3))


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize("way", ["state_dict", "torch.save", "safetensors", "deepcopy", "pickle"])
def test_state_round_trip_goes_on_bit_for_bit(way, correct_bias):
    params = weights()
    optimizer = AdamW(params, lr=0.1, weight_decay=0.1, correct_bias=correct_bias)
    run(optimizer, params, 3)
    if way in ("deepcopy", "pickle"):
        both = (params, optimizer)
        copied, again = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
        assert type(again) is AdamW
    else:
        copied = copy.deepcopy(params)
        again = AdamW(copied)
        state = copy.deepcopy(optimizer.state_dict())
        if way == "torch.save":
            file = io.BytesIO()
            torch.save(state, file)
            state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        if way == "safetensors":  # every value of the state is a tensor, so no pickle is needed
            flat = {f"{i}.{key}": value for i, values in state["state"].items() for key, value in values.items()}
            for name, value in load(save(flat)).items():
                state["state"][int(name.split(".")[0])][name.split(".")[1]] = value
        again.load_state_dict(state)
    assert again.param_groups[0]["correct_bias"] is correct_bias
    assert identical(run(again, copied, 3, 3), run(optimizer, params, 3, 3))


def test_state_is_exchangeable_with_torch():
    mine, theirs = weights(), weights()
    ours, torchs = AdamW(mine, lr=0.1), torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.0, foreach=True)
    run(ours, mine, 3), run(torchs, theirs, 3)
    mine_2, theirs_2 = copy.deepcopy(mine), copy.deepcopy(theirs)
    from_torch, from_ours = AdamW(mine_2), torch.optim.AdamW(theirs_2, foreach=True)
    from_torch.load_state_dict(copy.deepcopy(torchs.state_dict()))
    from_ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    results = [run(o, p, 3, 3) for o, p in [(from_torch, mine_2), (from_ours, theirs_2), (torchs, theirs)]]
    assert identical(results[0], results[2])
    assert identical(results[1], results[2])


def test_a_learning_rate_that_is_a_tensor_stays_one_and_takes_the_loaded_value():
    params = weights()
    optimizer = AdamW([{"params": params[:2], "lr": 0.1}, {"params": params[2:]}], lr=0.2)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.lr_on_device_()
    rates = [group["lr"] for group in optimizer.param_groups]
    assert [rate.dtype for rate in rates] == [torch.float64] * 2
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5)
    assert [float(rate) for rate in rates] == [0.05, 0.1]
    optimizer.load_state_dict(saved)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates))
    assert [float(rate) for rate in rates] == [0.1, 0.2]
    assert not optimizer.capturable()  # on a CPU


@pytest.mark.parametrize("other", ["amsgrad", "maximize"])
def test_state_of_another_algorithm_is_refused(other):
    params = weights()
    torchs = torch.optim.AdamW(params, **{other: True})
    run(torchs, params, 1)
    with pytest.raises(SteadytuneError, match=other):
        AdamW(params).load_state_dict(torchs.state_dict())


def test_add_param_group():
    params = weights()
    optimizer = AdamW(params[:2], lr=0.1, correct_bias=False)
    optimizer.add_param_group({"params": params[2:], "correct_bias": True, "lr": 0.2})
    assert [g["correct_bias"] for g in optimizer.param_groups] == [False, True]
    before = [p.detach().clone() for p in params]
    after = run(optimizer, params, 1)
    assert torch.allclose((after[0] - before[0]).abs(), torch.tensor(0.1 * bias_ratio(1)), rtol=1e-3)
    assert torch.allclose((after[2] - before[2]).abs(), torch.tensor(0.2), rtol=1e-3)


def test_grad_scaler_skips_a_step_with_infinite_gradients():
    w = nn.Parameter(torch.ones(2))
    optimizer, scaler = AdamW([w], lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    for gradient, moved in [(float("inf"), False), (4.0, True)]:
        scaler.scale(torch.ones(()))  # what makes the scaler ready
        w.grad = torch.full((2,), gradient)
        scaler.step(optimizer)
        scaler.update()
        assert (optimizer.state[w] != {}) is moved
    assert torch.allclose(w, torch.full((2,), 0.9))


def test_works_under_accelerate():
    from accelerate import Accelerator

    model, twin = (nn.Linear(3, 1) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    optimizer, expected = AdamW(model.parameters(), lr=0.1), torch.optim.AdamW(twin.parameters(), 0.1, weight_decay=0.0)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    for net, stepper, backward in ((model, optimizer, accelerator.backward), (twin, expected, lambda x: x.backward())):
        for i in range(3):
            backward(net(torch.full((2, 3), i + 1.0)).square().sum())
            stepper.step()
            stepper.zero_grad()
    assert torch.allclose(model.weight, twin.weight)


# --- the method, and what is refused ----------------------------------------------------------------------------------


def test_without_parameters_it_is_the_method():
    assert AdamW() == AdamWMethod()
    method = AdamW(correct_bias=False, betas=[0.9, 0.98], eps=1e-6)
    assert method == AdamWMethod(correct_bias=False, betas=(0.9, 0.98), eps=1e-6)
    assert not method.is_null()
    assert AdamW(correct_bias=True).is_null()
    groups = [{"params": weights(), "lr": 0.5, "weight_decay": 0.25}]
    optimizer = method.build_optimizer(groups, lr=0.1)
    kept = {key: optimizer.param_groups[0][key] for key in ("lr", "weight_decay", "betas", "eps", "correct_bias")}
    assert kept == {"lr": 0.5, "weight_decay": 0.25, "betas": (0.9, 0.98), "eps": 1e-6, "correct_bias": False}


def test_parameters_by_name_make_an_optimizer():
    assert isinstance(AdamW(params=weights(), lr=0.1), torch.optim.Optimizer)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"lr": -1.0}, "lr must be"),
        ({"betas": (0.9, 1.0)}, "betas are two numbers"),
        ({"betas": 0.9}, "betas are two numbers"),
        ({"eps": -1e-8}, "eps must be"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
    ],
)
def test_bad_settings_get_a_sentence(bad, words):
    with pytest.raises(SteadytuneError, match=words):
        AdamW(weights(), **bad)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"lr": 1e-3}, "come with the parameter groups"),
        ({"betas": (0.9,)}, "betas are two numbers"),
        ({"correct_bias": "no"}, "true or false"),
    ],
)
def test_bad_method_settings_get_a_sentence(bad, words):
    with pytest.raises(SteadytuneError, match=words):
        AdamW(**bad)


def test_sparse_and_complex_get_a_sentence():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(SteadytuneError, match="sparse gradient"):
        AdamW(table.parameters()).step()
    w = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    w.grad = torch.ones_like(w)
    with pytest.raises(SteadytuneError, match="complex"):
        AdamW([w]).step()


# --- in one pass ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_in_one_pass_it_is_torchs_fused_step_bit_for_bit(weight_decay):
    mine, theirs = weights(), weights()
    ours = AdamW(mine, lr=0.01, weight_decay=weight_decay)
    ours.in_one_pass_()
    torchs = torch.optim.AdamW(theirs, lr=0.01, weight_decay=weight_decay, fused=True)
    assert identical(run(ours, mine, 20), run(torchs, theirs, 20))


@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize("settings_", [{}, {"weight_decay": 0.1}, {"betas": (0.5, 0.98), "eps": 1e-3}, {"lr": 0.0}])
def test_in_one_pass_it_takes_the_same_steps_but_for_rounding(settings_, correct_bias):
    mine, plain = ([*weights(), *weights(torch.float64, 1), nn.Parameter(torch.randn(4, 6).t())] for _ in range(2))
    plain[-1].data = mine[-1].data.clone(memory_format=torch.preserve_format)
    quick, slow = (AdamW(p, **{"lr": 0.01, **settings_}, correct_bias=correct_bias) for p in (mine, plain))
    quick.in_one_pass_()
    for i in range(30):
        for params, optimizer in ((mine, quick), (plain, slow)):
            set_grads_(params, i)
            if i < 3:
                params[1].grad = None  # joins late: its own step count
            optimizer.step()
    for a, b in zip(mine, plain):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        assert quick.state[a]["step"] == slow.state[b]["step"]
