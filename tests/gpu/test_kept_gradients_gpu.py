"""Gradients of kept columns that stay where they are written, on a real device: the runs with dense gradients."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from gpu_helpers import captured, poison_memory, run_without_waiting
from kept_helpers import dense_gradients_
from steadytune import AdamW, Dropout, Mixout, PretrainedDecay, RDrop, Streams, apply_
from steadytune.engine.train import train
from steadytune.engine.update import Update
from steadytune.kernels import kept_gradients
from steadytune.kernels.adamw import FusedStep
from steadytune.kernels.adamw_tables import Settings, Slot
from steadytune.kernels.kept_gradients import Kept, KeptGradients, finish_torch_
from steadytune.kernels.mixout_columns import Layer, column_linears, expand
from steadytune.kernels.mixout_masks import draw, new_rule
from steadytune.methods.mask_pool import MaskPool, use_kept_columns_
from steadytune.rng import new_counter
from tiny_tasks import tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]
STREAMS = Streams(init=1, order=2, noise=3)
SIZES = [(1024, 1024), (4096, 1024), (1024, 4096), (33, 600), (7, 131), (1, 1), (300, 65)]  # out, in
METHODS = {
    "mixout": (Mixout(p=0.5),),
    "mixout and dropout": (Mixout(p=0.9, replace_dropout=False, head="mixout"),),
    "mixed everywhere": (Mixout(p=0.5, layers="all"),),
    "the paper's gradient": (Mixout(p=0.7, layers="linear", gradient="paper"),),
    "other dropout": (Mixout(p=0.5, replace_dropout=False), Dropout(p=0.3)),
    "pretrained decay": (Mixout(p=0.5), PretrainedDecay(decay=0.1)),
    "no correction": (Mixout(p=0.5), AdamW(correct_bias=False, eps=1e-6)),
}
NOT_KEPT = {
    "mixed elements": (Mixout(p=0.5, mask="element"),),
    "gaussian": (Mixout(p=0.3, distribution="gaussian"),),
    "rdrop and mixout": (RDrop(), Mixout(p=0.5)),
    "pretrained decay, l2": (Mixout(p=0.5), PretrainedDecay(decay=0.1, form="l2")),
}


def layers_of(sizes, p=0.7):
    made = []
    for number, (out, columns) in enumerate(sizes):
        weight = nn.Parameter(torch.randn(out, columns, device="cuda"))
        bias = nn.Parameter(torch.randn(out, device="cuda")) if number % 3 != 1 else None
        columns = draw(new_counter(number).cuda(), new_rule(columns, p))
        made.append(Kept(weight, bias, columns, 1.0 if number == 2 else 1 / (1 - p)))
    return made


def backward(layers, x, kept, p, low):
    with torch.autocast("cuda", dtype=low, enabled=low != torch.float32):
        losses = []
        for each in layers:
            of = None if kept is None else kept.of[each.weight]
            layer = Layer(each.weight, each.bias, each.weight.detach() + 0.1, each.columns, of)
            (y,) = column_linears(x[:, : each.weight.shape[1]], [layer], p, each.factor, True)
            losses.append(y.float().square().mean())
    torch.stack(losses).sum().backward()


@pytest.mark.parametrize("p", [0.7, 0.9])
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_have_the_bits_of_the_dense_ones(low, p):
    layers = layers_of(SIZES, p)
    x = torch.randn(512, 4096, device="cuda")
    backward(layers, x, None, p, low)
    dense, expected = dense_gradients_(layers)
    poison_memory()
    kept = KeptGradients(layers)
    for _ in range(2):
        kept.begin_(True)
        backward(layers, x, kept, p, low)
        kept.finish_()
        for each, (weight, bias) in zip(layers, dense, strict=True):
            assert each.weight.grad is None
            assert torch.equal(kept.of[each.weight].dense(), weight)
            assert bias is None or torch.equal(each.bias.grad, bias)
        biases = [each.bias.grad for each in layers if each.bias is not None]
        assert kept.norm(biases).item() == pytest.approx(expected.item(), rel=1e-6)
    first = kept.memory.clone()
    for is_first in (True, False):  # two chunks with the same rows
        kept.begin_(is_first)
        backward(layers, x, kept, p, low)
    kept.finish_()
    torch.testing.assert_close(kept.memory, 2 * first)


def test_the_pass_over_biases_is_that_of_torch():
    layers = layers_of(SIZES)
    columns = layers[3].columns
    layers[3] = layers[3]._replace(columns=columns._replace(kept=columns.kept.clone().fill_(0)))  # no entry is free
    kept = KeptGradients(layers)
    for each in kept.of.values():
        each.values.normal_()
        each.is_written = True
    expected = []
    for each in layers:
        values, bias = kept.of[each.weight].values.clone(), None
        if each.bias is not None:
            bias = torch.empty_like(each.bias)
        finish_torch_(values, each.columns.kept, bias)
        expected.append((values, bias))
    kept.finish_()
    for each, (values, bias) in zip(layers, expected, strict=True):
        assert torch.equal(kept.of[each.weight].values, values)
        if bias is not None:
            torch.testing.assert_close(each.bias.grad, bias, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("factor", [None, 0.37])
def test_a_step_has_the_bits_of_the_step_on_the_dense_gradient(factor, anchored):
    layers = layers_of([*SIZES, (5000, 1000), (3, 50_000)])
    kept = KeptGradients(layers)
    rate = torch.tensor(0.05, dtype=torch.float64, device="cuda")
    clip = None if factor is None else torch.tensor(factor, device="cuda")
    ours, theirs = [], []
    for each in layers:
        of = kept.of[each.weight]
        of.values.normal_()
        (dense, _) = expand(of.values, each.columns, each.factor, True, torch.float32)
        w, m, v = torch.randn_like(dense), torch.randn_like(dense), torch.rand_like(dense)
        anchor = torch.randn_like(w) if anchored else None
        settings = Settings(0.9, 0.999, 1e-8, True, 0.1, 0.2 if anchored else 0.0, 0.0)
        for slots, gradient, own in ((ours, of.values, of), (theirs, dense, None)):
            count = torch.full((), 3.0, device="cuda")
            slots.append(Slot(w.clone(), gradient, m.clone(), v.clone(), count, anchor, rate, settings, own))
    for _ in range(3):
        FusedStep().step_(ours, clip)
        FusedStep().step_(theirs, clip)
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in "wmvt")


def test_nothing_waits_for_the_device_and_a_graph_repeats_it():
    """Whole steps, three of them replayed, beside the same with dense gradients."""
    found = []
    for is_kept in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(65, 131), nn.GELU(), nn.Linear(131, 65), nn.LayerNorm(65), nn.Linear(65, 3))
        apply_(model, Mixout(p=0.7, layers="linear"), streams=Streams(noise=3))
        model.cuda().train()
        pool = MaskPool(model, torch.bfloat16)
        use_kept_columns_(model, True)
        optimizer = AdamW(model.parameters(), lr=1e-3)
        optimizer.lr_on_device_()
        kept = pool.keep_gradients_(lambda weights, of=optimizer: not of.why_not_kept(weights)) if is_kept else None
        if kept is not None:
            optimizer.read_kept_(kept.of)
        x = torch.randn(40, 65, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        parameters = list(model.parameters())

        def step(pool=pool, model=model, kept=kept, optimizer=optimizer, parameters=parameters, x=x):
            pool.draw_()
            pool.mix_()
            if kept is not None:
                kept.begin_(True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).float().square().mean()
            for p, grad in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True)):
                if grad is not None:
                    p.grad = grad.clone() if p.grad is None else p.grad.copy_(grad)
            if kept is not None:
                kept.finish_()
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = nn.utils.get_total_norm(grads) if kept is None else kept.norm(grads)
            optimizer.step(grad_factor=torch.clamp(1.0 / (norm + 1e-6), max=1.0))

        run_without_waiting(step, before=2)
        graph, _ = captured(step)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        found.append([p.detach().clone() for p in parameters])
        assert not is_kept or all(p.grad is None for p in kept.of)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.fixture
def runs(monkeypatch):
    """Runs with kept gradients, and how many of them had some; and the same with dense ones."""
    made, begin = [], KeptGradients.__init__
    monkeypatch.setattr(KeptGradients, "__init__", lambda self, layers: made.append(self) or begin(self, layers))

    def run(recipe, encoded, kept=True, **options):
        with monkeypatch.context() as patch:
            patch.setattr(kept_gradients, "DEVICES", {"cuda"} if kept else set())
            before = len(made)
            result, model = train(recipe, encoded, STREAMS, device="cuda", **options)
            return result, model, len(made) - before

    return run


def same(one, other, rel):
    assert one[0].losses == pytest.approx(other[0].losses, rel=rel)
    assert one[0].grad_norms == pytest.approx(other[0].grad_norms, rel=100 * rel, abs=1e-5)


def unrecorded(result):
    return [note for note in result.notes if "recorded" in note]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_runs_are_those_with_dense_gradients(methods, graphs, tmp_path, runs):
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=24, weight_decay=0.01)
    # Sums of atomic additions, as of embeddings, differ from run to run by the last bits.
    options = {"graphs": graphs, "deterministic": True}
    kept, dense = (runs(recipe, encoded, kept=on, **options) for on in (True, False))
    assert (kept[2], dense[2]) == (1, 0)
    assert unrecorded(kept[0]) == []
    # The clipping factor may differ by its last bit, which training magnifies step by step.
    assert kept[0].losses[:12] == pytest.approx(dense[0].losses[:12], rel=1e-6)
    same(kept, dense, 1e-5)


@pytest.mark.parametrize("methods", NOT_KEPT.values(), ids=NOT_KEPT)
def test_where_gradients_must_be_whole(methods, tmp_path, runs):
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=12)
    result, _, count = runs(recipe, encoded)
    assert count == 0
    assert len(result.losses) == 12


@pytest.mark.parametrize("kind", ["classification", "image", "translation", "summarization"])
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"micro_batches": 2}])
def test_other_settings(settings, kind, tmp_path, runs):
    recipe, encoded = tiny_run(kind, tmp_path, methods=(Mixout(p=0.5),), steps=24, **settings)
    graphed, plain, dense = (runs(recipe, encoded, kept=on, graphs=graphs) for on, graphs in ((1, 1), (1, 0), (0, 1)))
    assert (graphed[2], plain[2], dense[2]) == (1, 1, 0)
    assert unrecorded(graphed[0]) == []
    for other in (plain, dense):
        same(graphed, other, 3e-2 if "precision" in settings else 1e-4)


@pytest.mark.parametrize("first", [0, 1, 2, 7])
@pytest.mark.parametrize("graphs", [True, False])
def test_a_step_whose_mask_does_not_fit(graphs, first, tmp_path, runs, monkeypatch):
    """Before, at and after the recording of the update."""
    recipe, encoded = tiny_run("classification", tmp_path, methods=(Mixout(p=0.5),), steps=16)
    plain = runs(recipe, encoded, deterministic=True)
    forecast, step, whole = MaskPool.forecast, Update._fused_step, []

    def foreseen(self, calls, start=0):
        found = forecast(self, calls, start)
        found[first] = True
        return found

    def seen(self):
        whole.append(any(p.grad is not None for p in self.kept.of))
        step(self)
        assert not any(p.grad is not None for p in self.kept.of)

    monkeypatch.setattr(MaskPool, "forecast", foreseen)
    monkeypatch.setattr(Update, "_fused_step", seen)
    found = runs(recipe, encoded, deterministic=True, graphs=graphs)
    assert unrecorded(found[0]) == []
    assert whole.count(True) == 1
    same(found, plain, 1e-4)  # a dense product rounds otherwise


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_runs_have_the_same_bits(precision, tmp_path, runs):
    """In bf16 by the quick layers: sums in norms, columns that GELU makes again, joint products."""
    methods = (Mixout(p=0.5, replace_dropout=False),)
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=24, precision=precision)
    found = [runs(recipe, encoded, graphs=on, deterministic=True) for on in (True, True, False)]
    for other in found[1:]:
        assert found[0][0].losses == other[0].losses
        assert all(torch.equal(a, b) for a, b in zip(found[0][1].parameters(), other[1].parameters()))


def test_a_run_in_pieces_has_the_same_bits(tmp_path, runs):
    recipe, encoded = tiny_run("classification", tmp_path, methods=(Mixout(p=0.5),), steps=12)
    whole = runs(recipe, encoded, deterministic=True)
    asked = iter([False] * 6 + [True])
    options = {"deterministic": True, "folder": tmp_path / "run"}
    assert runs(recipe, encoded, **options, stop=asked.__next__)[0].status == "stopped"
    again = runs(recipe, encoded, **options)
    assert again[0].losses == whole[0].losses
    assert all(torch.equal(a, b) for a, b in zip(whole[1].parameters(), again[1].parameters()))
