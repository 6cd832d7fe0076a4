"""Random parameters for the AdamW kernel, with margins that must stay as they are, and the formula in float64."""

from dataclasses import dataclass

import torch

from steadytune.kernels.adamw_tables import BLOCK, Settings, Slot

SHAPES = [(3, 5), (), (0,), (BLOCK,), (BLOCK + 1,), (2, BLOCK + 700), (16,), (BLOCK - 1,)]
MARGIN = 16  # elements before and after each tensor

DECAYS = [(0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.0, 0.7, 0.0), (0.2, 0.5, 0.1), (0.0, 0.0, 0.4)]


@dataclass(frozen=True)
class Case:
    """One parameter: what the kernel is given, and all of its tensors with their margins."""

    slot: Slot
    buffers: list[torch.Tensor]

    def margins_are_untouched(self):
        return all(torch.isnan(b[:MARGIN]).all() and torch.isnan(b[-MARGIN:]).all() for b in self.buffers)


def cases(dtype, device, rate, *, shift=0, seed=None, correct_bias=(True, False)):
    """A case of each shape, decays and step counts going round. `shift` moves every tensor off its alignment."""
    generator = torch.Generator()
    print("seed", generator.seed() if seed is None else generator.manual_seed(seed).initial_seed())  # shown on failure

    def inside(values):
        buffer = torch.full((values.numel() + 2 * MARGIN + shift,), torch.nan, dtype=dtype, device=device)
        tensor = buffer[MARGIN + shift : buffer.numel() - MARGIN].view(values.shape)
        tensor.copy_(values)
        buffers.append(buffer)
        return tensor

    def normal(shape):
        return torch.randn(shape, generator=generator)

    made = []
    for i, shape in enumerate(SHAPES):
        buffers: list[torch.Tensor] = []
        w, m = (inside(normal(shape)) for _ in range(2))
        g, v = normal(shape), inside(normal(shape).square() + 0.1)
        g = inside(g + g.sign() / 2)  # neither g nor v near 0, where a denominator would magnify rounding
        decays = DECAYS[i % len(DECAYS)]
        anchor = inside(normal(shape)) if decays[1] else None
        t = torch.tensor(float([0, 1, 11, 230][i % 4]), device=device)
        beta1, beta2 = [(0.9, 0.999), (0.0, 0.98), (0.8, 0.0)][i % 3]
        settings = Settings(beta1, beta2, [1e-8, 1e-3][i % 2], correct_bias[i % len(correct_bias)], *decays)
        made.append(Case(Slot(w, g, m, v, t, anchor, rate, settings), buffers))
    return made


def expected(slot, factor=1.0):
    """w, m and v after a step, in float64, from what the slot has now."""
    w, g, m, v = (x.detach().double().cpu() for x in (slot.w, slot.g, slot.m, slot.v))
    of, rate, t = slot.settings, slot.rate.double().item(), slot.t.item() + 1
    w = w - rate * of.first_decay * w
    if slot.anchor is not None:
        w = w - rate * of.anchor_decay * (w - slot.anchor.double().cpu())
    w = w - rate * of.last_decay * w
    g = g * factor
    m = of.beta1 * m + (1 - of.beta1) * g
    v = of.beta2 * v + (1 - of.beta2) * g * g
    along, size = m, v
    if of.correct_bias:
        along, size = m / (1 - of.beta1**t), v / (1 - of.beta2**t)
    return w - rate * along / (size.sqrt() + of.eps), m, v


def assert_step(case, before, after_grad):
    """The slot holds what `expected` said before the step, its own count is one more, and its margins are NaN."""
    slot, (w, m, v), t = case.slot, before[:3], before[3]
    dtype = slot.w.dtype
    close = {"rtol": 2e-6, "atol": 2e-6} if dtype == torch.float32 else {"rtol": torch.finfo(dtype).eps, "atol": 1e-6}
    for found, exact in ((slot.w, w), (slot.m, m), (slot.v, v)):
        torch.testing.assert_close(found.detach().cpu(), exact.to(dtype), **close)
    assert slot.t.item() == t + 1
    assert torch.equal(slot.g, after_grad)
    assert case.margins_are_untouched()


def elements_that_rest(device):
    """Slots with and without ε, in which most elements have had no gradient yet, others between them; and w, m and v
    after a step by the formula as it stands, in float32."""
    generator = torch.Generator().manual_seed(1)
    made, after = [], []
    rate = torch.tensor(0.05, dtype=torch.float64, device=device)
    for eps in (1e-8, 0.0):
        g, m, v = torch.randn(3, BLOCK + 300, generator=generator)
        w, v = torch.randn(len(g), generator=generator), v.square()
        number = torch.arange(len(g)) % 7
        g[number > 0] = m[number > 0] = v[number > 0] = 0.0
        g[number == 6], m[number == 1], v[number == 2] = 0.5, 0.25, 0.125  # only one of the three is not 0
        m[number == 3] = -0.0
        slot = Slot(
            *(x.to(device) for x in (w, g, m, v)),
            torch.tensor(9.0, device=device),
            None,
            rate,
            Settings(0.9, 0.999, eps, True, 0.0, 0.0, 0.0),
        )
        m = m + (1 - 0.9) * (g - m)
        v = 0.999 * v + (1 - 0.999) * g * g
        s, r = (torch.tensor(x, dtype=torch.float32) for x in (0.05 / (1 - 0.9**10), (1 - 0.999**10) ** 0.5))
        made.append(slot)
        after.append((w - s * (m / (v.sqrt() / r + eps)), m, v))
    return made, after
