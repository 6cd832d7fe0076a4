"""Quick linear layers on a real device: bits of torch's casts, float64 references, no wait for the device, CUDA graphs.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from gpu_helpers import captured, poison_memory, run_without_waiting
from quick_helpers import counted, with_and_without_checkpoints
from steadytune.engine import quick_linear
from steadytune.engine.quick_linear import quick_layers, quicken_linears_
from steadytune.kernels import linear
from steadytune.kernels.linear import BLOCK, CastTable, column_sum, is_served

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROUNDING = {torch.bfloat16: 1e-2, torch.float16: 1e-3}  # a relative error of results in these types
UNROUNDED = {torch.bfloat16: 2e-4, torch.float16: 2e-5}  # and of those that must not be rounded to them on the way
SHAPES = [(31, 1, 17), (68, 65, 131), (513, 1024, 96), (300, 4096, 257), (4096, 384, 384)]  # positions, in, out


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Switched on; what the allocator hands out next holds NaN; and the calls that went the quick way."""
    monkeypatch.setattr(linear, "DEVICES", {"cuda"})
    assert is_served("cuda"), "Triton is not installed: nothing here would run a kernel"
    poison_memory()
    return counted(monkeypatch, quick_linear, linear.quick_linear, linear.quick_linears)


def autocast(dtype=torch.bfloat16):
    return torch.autocast("cuda", dtype=dtype)


def error(found, expected):
    assert torch.isfinite(found).all()
    return float((found.detach().double() - expected).norm() / (expected.norm() + 1e-9))


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_casts_have_the_bits_of_torch(dtype, shift):
    sizes = [(1,), (BLOCK - 1,), (BLOCK,), (2, BLOCK + 3), (33, 7), (1000, 1001), *[(384,)] * 100]
    sources = [torch.randn(shift + torch.Size(size).numel(), device="cuda")[shift:].view(size) for size in sizes]
    sources[4].mul_(1e-6)  # below float16's normal numbers
    sources[3].mul_(1e5)  # and beyond its largest
    table = CastTable.of(sources, dtype)
    assert table.aligned == (shift == 0)
    for _ in range(2):
        table.memory.fill_(torch.nan)
        table.cast_()
        assert all(torch.equal(low, source.to(dtype)) for low, source in zip(table.lows, sources))
        written = sum(source.numel() for source in sources)
        assert int(table.memory.isnan().sum()) == len(table.memory) - written
        for source in sources:
            source.add_(torch.randn_like(source))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *[((1, 1), torch.bfloat16), ((33, 129), torch.bfloat16), ((4096, 384), torch.bfloat16)],
        *[((5000, 1003), torch.bfloat16), ((40000, 8), torch.bfloat16), ((700, 30522), torch.bfloat16)],
        *[((33, 129), torch.float16), ((4096, 1536), torch.float16)],
    ],
)
def test_column_sums(shape, dtype):
    rows = torch.randn(shape, device="cuda").to(dtype)
    found = column_sum(rows)
    assert found.dtype == torch.float32
    assert found.shape == shape[1:]
    assert error(found, rows.double().sum(0)) < 1e-6
    assert torch.equal(found, column_sum(rows))


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_against_float64(shape, dtype, calls):
    """What autocast rounds to the low type and casts back is not rounded here."""
    positions, columns, out = shape
    layer = nn.Linear(columns, out, device="cuda")
    quicken_linears_(layer, dtype).refresh_()
    low = [each.detach().to(dtype).double().requires_grad_() for each in layer.parameters()]
    for fed in (torch.float32, dtype):
        x = torch.randn(positions, columns, device="cuda").to(fed).requires_grad_()
        exact = x.detach().to(dtype).double().requires_grad_()
        expected = functional.linear(exact, *low)
        with autocast(dtype):
            found = layer(x)
        assert found.dtype == dtype
        assert error(found, expected.detach()) < ROUNDING[dtype]
        g = torch.randn_like(found)
        grads = torch.autograd.grad(found, [x, *layer.parameters()], g)
        exact_grads = torch.autograd.grad(expected, [exact, *low], g.double())
        assert [each.dtype for each in grads] == [fed, torch.float32, torch.float32]
        for one, other in zip(grads, exact_grads, strict=True):
            assert error(one, other) < (UNROUNDED if one.dtype == torch.float32 else ROUNDING)[dtype]
    assert len(calls) == 2


def test_gradients_that_are_not_contiguous_and_batches_without_rows():
    layer = nn.Linear(24, 40, device="cuda")
    quicken_linears_(layer).refresh_()
    x = torch.randn(6, 5, 24, device="cuda", requires_grad=True)
    low = {"device": "cuda", "dtype": torch.bfloat16}
    for g in (torch.ones((), **low).expand(6, 5, 40), torch.randn(5, 6, 40, **low).transpose(0, 1)):
        with autocast():
            grads = torch.autograd.grad(layer(x), [x, *layer.parameters()], g)
        rows = g.double().reshape(-1, 40)
        assert error(grads[2], rows.sum(0)) < 1e-6
        assert error(grads[1], rows.t() @ x.detach().bfloat16().double().view(-1, 24)) < UNROUNDED[torch.bfloat16]
    empty = torch.randn(0, 24, device="cuda", requires_grad=True)
    with autocast():
        layer(empty).sum().backward()
    assert all((p.grad == 0).all() for p in layer.parameters())


def bert():
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 200}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=300, **sizes, **rates)).cuda().train()


def test_a_model_against_float64_beside_plain_autocast(calls):
    model = bert()
    exact = copy.deepcopy(model).double()
    batch = {
        "input_ids": torch.randint(0, 300, (8, 37), device="cuda"),
        "labels": torch.randint(0, 2, (8,), device="cuda"),
    }
    exact(**batch).loss.backward()
    with autocast():
        model(**batch).loss.backward()
    plain = [p.grad for p in model.parameters()]
    casts = quicken_linears_(model)
    assert casts is not None
    casts.refresh_()
    model.zero_grad()
    with autocast():
        model(**batch).loss.backward()
    assert len(list(quick_layers(model))) == 3 * 6 + 2
    assert len(calls) == 3 * 4 + 2  # query, key and value are one product
    largest = max(p.grad.norm() for p in exact.parameters() if p.grad is not None)
    errors = [
        (error(p.grad, twin.grad), error(old, twin.grad))
        for p, old, twin in zip(model.parameters(), plain, exact.parameters())
        if twin.grad is not None and twin.grad.norm() > 1e-4 * largest  # attention does not feel the bias of its keys
    ]
    ours, theirs = (sum(each) / len(errors) for each in zip(*errors))
    assert ours < 1.1 * theirs
    assert ours < 0.05


class Tiny(nn.Module):
    """A few layers of odd sizes, three of which read the same tensor."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 65)
        self.three = nn.ModuleList(nn.Linear(65, 131, bias=bias) for bias in (True, True, False))
        self.back = nn.Linear(131, 65)
        self.norm = nn.LayerNorm(65)
        self.head = nn.Linear(65, 3)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        joined = sum(layer(x) for layer in self.three)
        return self.head(self.back(functional.gelu(joined)).mean(1))


def training(quick):
    torch.manual_seed(0)
    model = Tiny().cuda().train()
    casts = quicken_linears_(model) if quick else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # its steps are as close as the gradients are
    tokens = torch.randint(0, 50, (8, 13), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    labels = torch.arange(8, device="cuda") % 3

    def step():
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            loss = functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()

    return model, step, casts


@pytest.mark.parametrize("inside", [True, False])
def test_nothing_waits_for_the_device_and_a_graph_reads_new_casts(inside, calls):
    """Seven steps, four of them replayed from a graph, are seven eager steps of plain autocast. Stale casts would be
    another training: they are that of the weights at the capture."""
    model, step, casts = training(True)
    twin, plain, _ = training(False)
    start = [p.detach().clone() for p in twin.parameters()]
    for _ in range(7):
        plain()
    assert not calls

    def whole():
        casts.refresh_()
        step()

    run_without_waiting(whole, before=2)
    casts.refresh_()
    calls.clear()
    graph, _ = captured(whole if inside else step)
    assert len(calls) == 5
    for _ in range(4):
        if not inside:
            casts.refresh_()
        graph.replay()
    for (name, one), other, before in zip(model.named_parameters(), twin.parameters(), start, strict=True):
        assert torch.isfinite(one).all()
        assert (one - other).norm() < 0.05 * (other - before).norm() + 1e-6, name


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant, calls):
    body = nn.Sequential(nn.Linear(65, 131), nn.GELU(), nn.Dropout(0.3), nn.Linear(131, 65)).cuda()
    quicken_linears_(body).refresh_()
    both = list(with_and_without_checkpoints(body, torch.randn(30, 65, device="cuda"), reentrant))
    assert len(calls) >= 5
    for one, other in both:
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other)
