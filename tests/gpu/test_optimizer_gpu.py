"""The optimiser side on a real device: AdamW without a host sync, anchors that follow a model."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from steadytune import AdamW, PretrainedDecay, Streams, apply_

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(s, generator=generator)) for s in [(3, 4), (5,), (), (0,), (2, 3, 2)]]


def set_grads_(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def bert():
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=20, pad_token_id=0
    )
    return BertForSequenceClassification(config).to(torch.float64)


@pytest.mark.parametrize("correct_bias", [True, False])
def test_on_a_gpu_no_step_waits_for_the_device(correct_bias):
    mine, theirs = ([nn.Parameter(p.detach().cuda()) for p in weights()] for _ in range(2))
    ours = AdamW(mine, lr=0.1, weight_decay=0.1, correct_bias=correct_bias)
    torchs = torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.1, foreach=True)
    for i in range(5):
        set_grads_(weights_on_cpu := weights(), i)
        for p, q, source in zip(mine, theirs, weights_on_cpu):
            p.grad = q.grad = source.grad.cuda()
        torch.cuda.set_sync_debug_mode("error")
        try:
            ours.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torchs.step()
        assert all(torch.allclose(p, q, rtol=1e-5, atol=1e-6) for p, q in zip(mine, theirs)) is correct_bias
    state = {k: {n: t.cuda() for n, t in v.items()} for k, v in ours.state_dict()["state"].items()}
    ours.load_state_dict({**ours.state_dict(), "state": state})  # as a checkpoint read with map_location="cuda" has it
    assert ours.state_dict()["state"][0]["step"].device.type == "cpu"  # as torch.optim has it
    assert ours.state_dict()["state"][0]["step"] == 5


@pytest.mark.parametrize("form", ["decoupled", "l2"])
def test_a_model_moved_to_a_gpu_after_applying(form):
    results = []
    for device in ("cpu", "cuda"):
        model = bert()
        applied = apply_(model, PretrainedDecay(decay=0.7, form=form), streams=Streams())
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        applied.attach_(optimizer)
        for i in range(3):
            set_grads_((source := bert()).parameters(), i)
            for p, q in zip(model.parameters(), source.parameters()):
                p.grad = q.grad.to(device)
            optimizer.step()
        results.append(model.cpu())
    for p, q in zip(*(m.parameters() for m in results)):
        torch.testing.assert_close(p, q)
