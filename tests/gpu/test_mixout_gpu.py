"""Mixout on a real device: the same masks as on the CPU, the same gradients, replay in another thread's backward.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import copy

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from steadytune import Mixout, RDrop, Reinit, Streams, apply_
from steadytune.methods.mask_pool import MaskPool, use_kept_columns_
from steadytune.methods.mixed_layers import mixed_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def mixed(device, **settings):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=65, num_hidden_layers=3, num_attention_heads=5, intermediate_size=131
    )  # odd sizes on purpose
    model = BertForSequenceClassification(config)
    apply_(model, Mixout(p=0.7, **settings), streams=Streams(noise=3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model.to(device).train()


def gradients(model, steps=2, passes=1):
    generator = torch.Generator().manual_seed(2)
    device = next(model.parameters()).device
    ids = torch.randint(1, 99, (6, 13), generator=generator).to(device)
    labels = (torch.arange(6) % 2).to(device)
    for _ in range(steps):
        model.zero_grad()
        losses = [model(input_ids=ids, labels=labels).loss for _ in range(passes)]
        torch.stack(losses).prod().backward()
    return {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


def assert_close(a, b, tolerance):
    """Relative error of each gradient. Key biases have a gradient of 0 but for rounding, so the largest gradient sets a
    floor for what counts."""
    assert a.keys() == b.keys()
    largest = max(grad.norm() for grad in b.values())
    for name in a:
        error = (a[name].double() - b[name].double()).norm() / (b[name].double().norm() + 1e-3 * largest)
        assert error < tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize("settings", [{}, {"mask": "element"}, {"distribution": "gaussian"}, {"share_qkv": True}])
def test_masks_are_those_of_the_cpu(settings):
    for (name, a), (_, b) in zip(mixed_layers(mixed("cpu", **settings)), mixed_layers(mixed("cuda", **settings))):
        for _ in range(3):
            torch.testing.assert_close(a.scale(), b.scale().cpu(), rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("settings", [{}, {"mask": "element"}, {"gradient": "paper"}, {"layers": "all"}])
def test_gradients_are_those_of_the_cpu(settings):
    assert_close(gradients(mixed("cuda", **settings)), gradients(mixed("cpu", **settings)), 1e-4)


@pytest.mark.parametrize("settings", [{}, {"gradient": "paper"}, {"share_qkv": True}, {"layers": "all"}])
def test_a_pool_and_kept_columns_give_the_gradients_of_the_cpu(settings):
    model, reference = mixed("cuda", **settings), mixed("cpu", **settings)
    pool = MaskPool(model)
    assert not pool.forecast(2).any()
    use_kept_columns_(model, True)
    model.register_forward_pre_hook(lambda *_: pool.draw_())
    assert_close(gradients(model), gradients(reference), 1e-4)
    assert set(pool.calls().values()) == {2}


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_replays_masks_in_the_device_thread(reentrant, passes):
    plain, saving = mixed("cuda"), mixed("cuda")
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    saving.enable_input_require_grads()
    assert_close(gradients(saving, passes=passes), gradients(plain, passes=passes), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    with torch.autocast("cuda", dtype=dtype):
        low = gradients(mixed("cuda"), steps=1)
    assert all(grad.dtype == torch.float32 for grad in low.values())
    assert_close(low, gradients(mixed("cpu"), steps=1), 5e-2)


def test_compile_fullgraph_with_inductor():
    model = mixed("cuda")
    reference = gradients(copy.deepcopy(model), steps=3)
    assert_close(gradients_compiled(model), reference, 1e-3)


def gradients_compiled(model):
    compiled = torch.compile(model, fullgraph=True)
    generator = torch.Generator().manual_seed(2)
    ids, labels = torch.randint(1, 99, (6, 13), generator=generator).cuda(), (torch.arange(6) % 2).cuda()
    for _ in range(3):
        model.zero_grad()
        compiled(input_ids=ids, labels=labels).loss.backward()
    return {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


def test_reinit_draws_the_same_on_every_device():
    weights = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4))
        apply_(model.to(device), Reinit(layers=1), streams=Streams(init=5))
        weights.append(model.bert.encoder.layer[1].output.dense.weight.detach().cpu())
    assert torch.equal(*weights)


def test_rdrop_over_mixout_trains():
    model = mixed("cuda")
    for _, layer in mixed_layers(model):
        assert layer.target.device.type == "cuda"
    from steadytune import remove_

    remove_(model)
    applied = apply_(model, [Mixout(p=0.7), RDrop(alpha=1.0)], streams=Streams(noise=3))
    optimizer = applied.optimizer(lr=1e-3)
    batch = {"input_ids": torch.randint(1, 99, (6, 13)).cuda(), "labels": (torch.arange(6) % 2).cuda()}
    for _ in range(3):
        loss, _ = applied.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.isfinite(loss)
