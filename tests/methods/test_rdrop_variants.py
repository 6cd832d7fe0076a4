"""R-Drop's public forms, each written out as its source has it (D13, D14, D16), and its theory (R13)."""

import itertools

import pytest
import torch
from heads import batch_for, make
from torch.nn import functional

from steadytune import Moment, RDrop, rdrop_loss, symmetric_kl
from steadytune.methods.rdrop import VARIANTS


def pair(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape).double(), torch.randn(*shape).double()


def kl(z_1, z_2):
    """KL(P_1 ‖ P_2), element by element, by torch's own function (which takes them the other way round)."""
    return functional.kl_div(z_2.log_softmax(-1), z_1.log_softmax(-1), reduction="none", log_target=True)


def literal(variant, z_1, z_2, y, alpha):
    ce, forward, reverse = functional.cross_entropy, kl(z_2, z_1), kl(z_1, z_2)
    if variant == "paper":
        return ce(z_1, y) + ce(z_2, y) + alpha * 0.5 * (forward.sum(-1).mean() + reverse.sum(-1).mean())
    if variant == "official-bert":
        return ce(z_1, y) + ce(z_2, y) + alpha * (forward.sum() + reverse.sum()) / 2.0
    if variant == "official-readme":
        return 0.5 * (ce(z_1, y) + ce(z_2, y)) + alpha * (forward.sum() + reverse.sum()) / 2
    if variant == "official-roberta":
        return 0.5 * ce(z_1, y) + alpha * (forward.sum() + reverse.sum()) / 2
    if variant in ("official-token", "official-vit"):
        return ce(z_1, y) + ce(z_2, y) + alpha * (forward.sum() + reverse.sum())
    if variant == "official-nmt":  # everything summed over both copies, then divided by the tokens of one
        both = ce(torch.cat([z_1, z_2]), torch.cat([y, y]), reduction="sum")
        return (both + alpha * (forward.sum() + reverse.sum()) / 2) / len(y)
    if variant == "bojone":  # rows interleaved: x1 x1' x2 x2' ...
        z = torch.stack([z_1, z_2], 1).flatten(0, 1)
        divergence = kl(z[::2], z[1::2]).sum(-1) + kl(z[1::2], z[::2]).sum(-1)
        return ce(z, y.repeat_interleave(2)) + divergence.mean() / 4 * alpha
    if variant == "bert4torch":
        return ce(torch.cat([z_1, z_2]), torch.cat([y, y])) + torch.mean(forward + reverse) / 4 * alpha
    over = {"paddle": 1, "paddle-batchmean": len(z_1), "paddle-mean": z_1.numel()}[variant]
    p_loss, q_loss = forward.sum() / over, reverse.sum() / over
    return 0.5 * (ce(z_1, y) + ce(z_2, y)) + alpha * (p_loss + q_loss) / 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_is_its_source(variant):
    (z_1, z_2), y = pair(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    expected = literal(variant, z_1, z_2, y, 0.6)
    torch.testing.assert_close(rdrop_loss(z_1, z_2, y, 0.6, variant=variant), expected)


def test_readme_and_paddle_masks_mean_opposite_things():
    (z_1, z_2), keep = pair(2, 3, 5), torch.tensor([[True, True, False], [True, False, False]])
    p_loss, q_loss = kl(z_2, z_1), kl(z_1, z_2)
    expected = 2 * symmetric_kl(z_1, z_2, keep, "sum")
    readme = p_loss.masked_fill(~keep.unsqueeze(-1), 0.0).sum() + q_loss.masked_fill(~keep.unsqueeze(-1), 0.0).sum()
    paddle = p_loss[keep].sum() + q_loss[keep].sum()
    torch.testing.assert_close(expected, readme)
    torch.testing.assert_close(expected, paddle)


def test_official_token_form_takes_the_attention_mask():
    model, batch = make("bert-token").train(), batch_for("bert-token")
    torch.manual_seed(4)
    loss, _ = RDrop(alpha=0.05, variant="official-token", forward="two").loss(model, batch, Moment())
    torch.manual_seed(4)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    z_1, z_2 = model(**inputs).logits, model(**inputs).logits
    y, drop = batch["labels"].flatten(), batch["attention_mask"].view(-1, 1).eq(0)
    ce = sum(functional.cross_entropy(z.flatten(0, 1), y) for z in (z_1, z_2))
    both = (kl(z_1, z_2) + kl(z_2, z_1)).flatten(0, 1).masked_fill(drop, 0.0).sum()
    torch.testing.assert_close(loss, ce + 0.05 * both)


@pytest.mark.parametrize("seed", range(5))
def test_proposition_1_the_gap_to_the_full_model_is_bounded_by_the_root_of_the_divergence(seed):
    """|L(w) - E L(w, ξ)| <= c √ε for a linear model, over all dropout masks, with the constants of this model.

    E z_ξ = z, so the gap is at most √2 E‖z_ξ - z_ξ'‖ (the slope of NLL is at most √2, and Jensen); log p is
    1/p_min-Lipschitz in p; and E‖p - p'‖_1 <= √(2 ε) by Pinsker. So c = 2/p_min.
    """
    torch.manual_seed(seed)
    width, classes, keep = 5, 3, 0.8
    w = functional.normalize(torch.randn(classes, width).double(), dim=-1)
    x, y = torch.randn(width).double(), torch.tensor([1])
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=width))).double()
    weight = (keep**masks * (1 - keep) ** (1 - masks)).prod(-1)
    z = (masks * x / keep) @ w.T
    full = functional.cross_entropy((w @ x).unsqueeze(0), y)
    dropped = (weight * functional.cross_entropy(z, y.expand(len(z)), reduction="none")).sum()
    pairs = [each.reshape(-1, classes) for each in torch.broadcast_tensors(z.unsqueeze(0), z.unsqueeze(1))]
    divergence = (torch.outer(weight, weight).flatten() * symmetric_kl(*pairs, reduction="none")).sum()
    assert (full - dropped).abs() <= 2 / z.softmax(-1).min() * divergence.sqrt()
    # D16: E|1 - ξ/p| is 2(1 - p), not (1 - p) as the proof has it; only constants change
    assert keep * abs(1 - 1 / keep) + (1 - keep) * 1 == pytest.approx(2 * (1 - keep))
