"""The Triton kernel of AdamW through Triton's interpreter; tests/gpu has it on a real device."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from adamw_slots import assert_step, cases, elements_that_rest, expected  # noqa: E402
from steadytune.kernels.adamw import FusedStep  # noqa: E402
from steadytune.kernels.adamw_tables import Settings, Slot  # noqa: E402


@pytest.mark.parametrize(
    ("dtype", "factor", "zero", "shift", "rate"),
    [
        (torch.float32, None, False, 0, torch.float64),
        (torch.float32, torch.tensor(0.25), True, 1, torch.float32),
        (torch.bfloat16, torch.tensor(0.25, dtype=torch.float64), False, 0, torch.float64),
        (torch.float16, None, True, 3, torch.float64),
    ],
)
def test_kernel_against_float64(dtype, factor, zero, shift, rate):
    made = cases(dtype, "cpu", torch.tensor(0.05, dtype=rate), shift=shift)
    step = FusedStep()
    for _ in range(2):
        before = [(*expected(c.slot, 1.0 if factor is None else factor.item()), c.slot.t.item()) for c in made]
        after = [torch.zeros_like(c.slot.g) if zero else c.slot.g.clone() for c in made]
        step.step_([c.slot for c in made], factor, zero)
        for case, exact, grad in zip(made, before, after):
            assert_step(case, exact, grad)


def test_a_small_decay_rounds_a_weight_once():
    """lr λ = 2e-7 is three bits of a float32's last place: 1 - lr λ, rounded, would be 10% off for every weight."""
    w, anchor = torch.randn(2, 3000)
    m, v, g = torch.zeros(3, 3000)
    rate, exact = torch.tensor(2e-5, dtype=torch.float64), w.double() * (1 - 2e-5 * 0.01)
    exact = exact - 2e-5 * 0.005 * (exact - anchor.double())
    settings = Settings(0.9, 0.999, 1e-8, True, 0.01, 0.005, 0.0)
    FusedStep().step_([Slot(w, g, m, v, torch.tensor(0.0), anchor, rate, settings)])
    last_place = torch.nextafter(w.abs(), torch.tensor(torch.inf)) - w.abs()
    assert ((w.double() - exact).abs() <= 0.51 * last_place).all()


def test_variants_of_the_kernel_have_the_same_bits():
    """No anchor is an anchor without pull; no factor is the factor 1; off alignment, or in a block that is not full."""
    results = []
    for anchored, factor, shift in [(False, None, 0), (True, None, 0), (False, torch.tensor(1.0), 0), (False, None, 1)]:
        made = cases(torch.float32, "cpu", torch.tensor(0.05, dtype=torch.float64), shift=shift, seed=7)
        slots = [c.slot._replace(settings=c.slot.settings._replace(anchor_decay=0.0)) for c in made]
        slots = [s._replace(anchor=torch.randn_like(s.w) if anchored else None) for s in slots]
        FusedStep().step_(slots, factor)
        results.append(torch.cat([x.flatten() for s in slots for x in (s.w, s.m, s.v)]))
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_elements_without_a_gradient_so_far_follow_the_formula():
    """0 / (0 + ε) is 0, and NaN without ε, as the formula has it: the kernel takes a way of its own for 0."""
    slots, after = elements_that_rest("cpu")
    FusedStep().step_(slots)
    for slot, (w, m, v) in zip(slots, after, strict=True):
        for found, wanted in ((slot.w, w), (slot.m, m), (slot.v, v)):
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-7, equal_nan=True)
        assert torch.isnan(slot.w).any() == (slot.settings.eps == 0.0)
