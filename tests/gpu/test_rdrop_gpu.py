"""R-Drop's kernels on a real device: against float64, without waiting for the device, in a CUDA graph and compiled.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import pytest
import torch
from torch.nn import functional

from gpu_helpers import captured, run_without_waiting
from steadytune import Moment, RDrop, rdrop_loss
from steadytune.kernels.rdrop import chunked_rdrop_loss, fused_rdrop_loss
from steadytune.kernels.rdrop_rows import Terms, row_losses_, row_losses_torch_
from steadytune.methods import rdrop_quick
from steadytune.methods.late_logits import LARGE_VOCABULARY, LateLogits
from steadytune.methods.rdrop import VARIANTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # of a relative error; tf32 included


@pytest.fixture(autouse=True)
def kernels_on_the_device(monkeypatch):
    monkeypatch.setattr(rdrop_quick, "DEVICES", {"cpu", "cuda"})


def error(found, expected):
    return float((found.double().cpu() - expected.cpu()).norm() / expected.norm().cpu())


def inputs(positions, classes, width, dtype=torch.float32, ignored=0.2):
    draw = torch.Generator()
    draw.seed()  # fresh numbers each time
    tensors = [
        torch.randn(*size, generator=draw) for size in ((positions, width),) * 2 + ((classes, width), (classes,))
    ]
    tensors[2] /= width**0.5
    labels = torch.randint(0, classes, (positions,), generator=draw)
    labels = labels.masked_fill(torch.rand(positions, generator=draw) < ignored, -100)
    return [each.to("cuda", dtype).requires_grad_() for each in tensors], labels.cuda()


def exactly(tensors, labels, alpha, variant="paper", smoothing=0.0):
    """Loss and gradients in float64, by the direct form."""
    exact = [each.detach().double().requires_grad_() for each in tensors]
    logits = [functional.linear(hidden, exact[2], exact[3]) for hidden in exact[:2]]
    loss = rdrop_loss(*logits, labels, alpha, variant=variant, label_smoothing=smoothing)
    return loss.detach(), torch.autograd.grad(loss, exact)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("classes", [2, 3, 1000, 2048, 32000, 50257])
def test_rows_against_float64(classes, dtype, smoothing):
    rows = 67
    z = (3 * torch.randn(2, rows, classes, device="cuda")).to(dtype)
    terms = Terms(
        torch.randint(0, classes, (rows,), device="cuda"),
        torch.rand(rows, device="cuda") < 0.8,
        torch.rand(rows, device="cuda") < 0.8,
        torch.tensor(0.3, device="cuda"),
        torch.tensor(0.7, device="cuda"),
        (1.0, 0.5),
        smoothing,
    )
    exact = z.double()
    losses = row_losses_torch_(exact, terms._replace(nu=terms.nu.double(), kappa=terms.kappa.double()))
    found = row_losses_(z, terms)
    assert error(found, losses) < 1e-5
    assert error(z, exact) < {torch.float32: 1e-5}.get(dtype, TOLERANCE[dtype])
    assert (z[:, ~(terms.labelled | terms.compared)] == 0).all()


@pytest.mark.parametrize("variant", ["paper", "official-vit", "official-roberta", "bert4torch"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("positions", "classes", "width"), [(129, 5001, 72), (64, 32000, 128), (1, 17, 8)])
def test_from_hidden_states(positions, classes, width, dtype, variant):
    tensors, labels = inputs(positions, classes, width)
    labels[0] = 1
    form = VARIANTS[variant]
    options = {"alpha": 0.7, "label_smoothing": 0.1, "nll": form.nll, "kl": form.kl, "factor": form.factor}
    loss, grads = exactly(tensors, labels, 0.7, variant, 0.1)
    with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        found = chunked_rdrop_loss(*tensors, labels, chunk=50, **options)
    assert error(found, loss) < TOLERANCE[dtype]
    for one, other in zip(torch.autograd.grad(found, tensors), grads, strict=True):
        assert one.dtype == torch.float32
        assert torch.isfinite(one).all()
        assert error(one, other) < 3 * TOLERANCE[dtype]


def test_float16_under_a_scaler():
    tensors, labels = inputs(4096, 300, 32)
    loss, grads = exactly(tensors, labels, 0.7)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        found = chunked_rdrop_loss(*tensors, labels, alpha=0.7, chunk=1000)
    scaler.scale(found).backward()
    assert error(found, loss) < 2e-3
    for each, other in zip(tensors, grads):
        assert error(each.grad / scaler.get_scale(), other) < 1e-2


def test_fused_against_the_direct_form():
    logits = [torch.randn(64, 3, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    labels = torch.arange(64, device="cuda") % 3
    exact = [each.detach().double().requires_grad_() for each in logits]
    expected = rdrop_loss(*exact, labels, 0.7)
    found = fused_rdrop_loss(*logits, labels, alpha=0.7)
    assert error(found, expected.detach()) < 1e-5
    for one, other in zip(torch.autograd.grad(found, logits), torch.autograd.grad(expected, exact)):
        assert error(one, other) < 1e-2


def test_nothing_waits_for_the_device_and_a_graph_holds_it():
    tensors, labels = inputs(96, 5001, 64)
    alpha = torch.tensor(0.7, device="cuda")
    grads = [torch.zeros_like(each) for each in tensors]
    value = torch.zeros((), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = chunked_rdrop_loss(*tensors, labels, alpha=alpha, chunk=40)
        found = torch.autograd.grad(loss, tensors)
        value.copy_(loss)
        torch._foreach_copy_(grads, list(found))

    run_without_waiting(step, before=2)
    graph, _ = captured(step)
    with torch.no_grad():  # other numbers in the same places
        tensors[0].copy_(torch.randn_like(tensors[0]))
        labels.copy_(torch.randint_like(labels, 0, 5001).masked_fill_(labels == -100, -100))
        alpha.fill_(2.0)
        value.fill_(torch.nan)
        for each in grads:
            each.fill_(torch.nan)
    graph.replay()
    loss, expected = exactly(tensors, labels, 2.0)
    assert error(value, loss) < 1e-2
    for one, other in zip(grads, expected):
        assert error(one, other) < 3e-2


def test_compiles_with_inductor():
    tensors, labels = inputs(96, 5001, 64)
    compiled = torch.compile(lambda *each: chunked_rdrop_loss(*each, labels, alpha=0.7, chunk=40), fullgraph=True)
    loss, grads = exactly(tensors, labels, 0.7)
    found = compiled(*tensors)
    assert error(found, loss) < 1e-3
    for one, other in zip(torch.autograd.grad(found, tensors), grads):
        assert error(one, other) < 3e-3


def test_memory_is_a_quarter_of_the_direct_form():
    tensors, labels = inputs(4096, 32000, 256)
    peaks = {}
    for name in ("direct", "chunked"):
        for each in tensors:
            each.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            if name == "direct":
                logits = [functional.linear(hidden, *tensors[2:]) for hidden in tensors[:2]]
                loss = rdrop_loss(*logits, labels)
                del logits
            else:
                loss = chunked_rdrop_loss(*tensors, labels)
        loss.backward()
        peaks[name] = torch.cuda.max_memory_allocated() - before
    assert peaks["chunked"] < 0.25 * peaks["direct"]


def test_rdrop_trains_a_translator_without_its_logits():
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    model = BartForConditionalGeneration(BartConfig(vocab_size=LARGE_VOCABULARY + 5, **sizes)).cuda().train()
    ids = torch.randint(3, 4000, (4, 9), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss, outputs = RDrop(label_smoothing=0.1).loss(model, {"input_ids": ids, "labels": ids.clone()}, Moment())
    loss.backward()
    assert type(outputs.logits) is LateLogits
    assert outputs.logits.asked is None
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
