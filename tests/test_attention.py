"""Attention of a training pass on a CPU: which kernel is taken, and that it computes the same."""

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from transformers import MarianConfig, MarianMTModel

from steadytune.engine.attention import SHORT, attention
from steadytune.engine.evaluate import autocast

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def batch(width):
    return {"input_ids": torch.zeros(2, width, dtype=torch.int64)}


def kernels(work):
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        work()
    return {event.key for event in seen.key_averages()}


@pytest.mark.parametrize(
    ("precision", "given", "flash"),
    [
        ("bf16", batch(SHORT), False),
        ("fp16", batch(8), False),
        ("bf16", batch(SHORT + 1), True),
        ("fp32", batch(8), True),
        ("bf16", batch(8) | {"labels": torch.zeros(2, dtype=torch.int64)}, False),
        ("bf16", batch(8) | {"labels": torch.zeros(2, SHORT + 1)}, True),  # what a decoder writes
        ("bf16", {"pixel_values": torch.zeros(2, 3, 8, 8)}, True),
    ],
)
def test_which_kernel_is_taken(precision, given, flash):
    q, k, v = (torch.randn(2, 2, 8, 16, dtype=torch.bfloat16) for _ in range(3))

    def work():
        with attention(precision, given):
            functional.scaled_dot_product_attention(q, k, v)

    assert (FLASH in kernels(work)) is flash


def test_a_training_pass_computes_the_same():
    """In bfloat16, within its rounding: loss and gradients of a whole model, padding and causal masks included."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "vocab_size": 40, "decoder_vocab_size": 40, "max_position_embeddings": 20, "dropout": 0.0}
    sizes |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    model = MarianMTModel(MarianConfig(**sizes, pad_token_id=0, eos_token_id=2, decoder_start_token_id=2)).train()
    ids = torch.randint(3, 40, (4, 12))
    ids[:2, 8:] = 0
    given = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.randint(3, 40, (4, 9))}

    def learned(chosen):
        model.zero_grad()
        with autocast("bf16", torch.device("cpu")), chosen:
            loss = model(**given).loss
        loss.backward()
        return loss.item(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

    (ours, gradients), (plain, expected) = learned(attention("bf16", given)), learned(attention("fp32", given))
    assert ours == pytest.approx(plain, rel=1e-2)
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() <= 0.05 * expected[name].norm() + 1e-3, name
