"""Runs of the engine whose gradients stay as those of kept columns, on the CPU: the runs with dense gradients.

Layers, pool and optimiser take the way of a GPU here: kernels/kept_gradients.py in plain torch, AdamW's kernel through
Triton's interpreter. tests/gpu/test_kept_gradients_gpu.py has them on a real device.
"""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from transformers.models.bert.modeling_bert import BertLayer  # noqa: E402

from quick_helpers import on_the_cpu  # noqa: E402
from steadytune import AdamW, Mixout, PretrainedDecay, RDrop, SteadytuneError, Streams, WeightDecay  # noqa: E402
from steadytune.engine import update as update_module  # noqa: E402
from steadytune.engine.chunk import Chunk  # noqa: E402
from steadytune.engine.gradients import BatchGradient  # noqa: E402
from steadytune.engine.masks import Masks  # noqa: E402
from steadytune.engine.train import train  # noqa: E402
from steadytune.engine.update import Update  # noqa: E402
from steadytune.kernels import adamw as adamw_kernel  # noqa: E402
from steadytune.kernels import kept_gradients, linear, norm  # noqa: E402
from steadytune.kernels.handed_on import SharedCast  # noqa: E402
from steadytune.kernels.kept_gradients import KeptGradients  # noqa: E402
from steadytune.kernels.kept_inputs import Source  # noqa: E402
from steadytune.methods import mixed_layers  # noqa: E402
from steadytune.methods.mask_pool import MaskPool  # noqa: E402
from tiny_tasks import save_model, tiny_run  # noqa: E402

STREAMS = Streams(init=1, order=2, noise=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def device_path(monkeypatch):
    """Layers and optimiser take the way of a GPU; a list of the kept gradients of each run that has some."""
    monkeypatch.setattr(mixed_layers, "COLUMN_DEVICES", {"cpu"})
    monkeypatch.setattr(adamw_kernel, "DEVICES", ("cpu",))
    monkeypatch.setattr(kept_gradients, "DEVICES", {"cpu"})
    made = []
    begin = KeptGradients.__init__
    monkeypatch.setattr(KeptGradients, "__init__", lambda self, layers: made.append(self) or begin(self, layers))
    return made


def both(recipe, encoded, made, monkeypatch, *arguments, **options):
    """The run, and the same with dense gradients."""
    kept = train(recipe, encoded, STREAMS, *arguments, **options)
    assert len(made) == 1
    with monkeypatch.context() as patch:
        patch.setattr(kept_gradients, "DEVICES", set())
        dense = train(recipe, encoded, STREAMS, **options)
    assert len(made) == 1
    return kept, dense


def assert_same(kept, dense, rel=1e-6):
    assert kept[0].losses == pytest.approx(dense[0].losses, rel=rel)
    assert kept[0].grad_norms == pytest.approx(dense[0].grad_norms, rel=10 * rel)
    for one, other in zip(kept[1].parameters(), dense[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=10 * rel, atol=10 * rel)


METHODS = {
    "mixout": (Mixout(p=0.5),),
    "the paper's gradient": (Mixout(p=0.7, layers="linear", gradient="paper"),),
    "p = 0.9": (Mixout(p=0.9, replace_dropout=False, head="mixout"),),
    "mixed everywhere": (Mixout(p=0.5, layers="all"),),
    "decay toward the start": (Mixout(p=0.5), PretrainedDecay(decay=0.1)),
    "no correction": (Mixout(p=0.5), AdamW(correct_bias=False, eps=1e-6)),
}


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS)
def test_every_method(methods, folder, device_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=methods, steps=3, weight_decay=0.01)
    kept, dense = both(recipe, encoded, device_path, monkeypatch)
    assert_same(kept, dense)
    assert device_path[0].of
    assert all(each.is_written for each in device_path[0].of.values())


def test_why_masks_are_not_drawn_at_once_is_said(folder, device_path):
    told = "Mixout computed whole weight gradients"
    twice, encoded = tiny_run(
        "classification", folder, methods=(RDrop(), Mixout(p=0.5, replace_dropout=False)), steps=2
    )
    (said,) = [note for note in train(twice, encoded, STREAMS)[0].notes if told in note]
    assert "draws 2 masks in a step" in said
    once, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=2)
    assert not any(told in note for note in train(once, encoded, STREAMS)[0].notes)


def test_a_model_that_leaves_out_layers_has_no_pool(tmp_path, device_path, monkeypatch):
    """Be the rehearsal as it may: a layer that a step leaves out would keep the gradient of the step before."""
    save_model("translation", tmp_path, encoder_layerdrop=0.5)
    recipe, encoded = tiny_run("translation", tmp_path, methods=(Mixout(p=0.5, layers="linear"),), steps=4)
    monkeypatch.setattr(MaskPool, "why_not", lambda before, after: None)  # as after a rehearsal with every layer
    (said,) = [note for note in train(recipe, encoded, STREAMS)[0].notes if "Mixout" in note]
    assert "model.encoder.layerdrop" in said
    assert not device_path


def test_a_layer_that_a_step_leaves_out_has_no_gradient_of_the_step_before(folder, device_path, monkeypatch):
    """A model that decides in its forward what takes part, as routed experts do."""
    begun, forward, begin = [], BertLayer.forward, Masks.begin_

    def leaves_out(self, hidden, *arguments, **options):
        made = forward(self, hidden, *arguments, **options)
        if len(begun) < 2 or self.mark != 1:
            return made
        return (hidden, *made[1:]) if isinstance(made, tuple) else hidden

    monkeypatch.setattr(BertLayer, "forward", leaves_out)
    monkeypatch.setattr(BertLayer, "mark", property(lambda self: marks.setdefault(id(self), len(marks))), raising=False)
    monkeypatch.setattr(Masks, "begin_", lambda self: begun.append(1) or begin(self))
    norms = []
    for devices in ({"cpu"}, set()):
        begun.clear()
        marks = {}
        monkeypatch.setattr(kept_gradients, "DEVICES", devices)
        recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=2)
        norms.append(train(recipe, encoded, STREAMS)[0].grad_norms)
    assert len(device_path) == 1
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"micro_batches": 3}, {"clip": 0.0}])
def test_settings(settings, folder, device_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=3, **settings)
    kept, dense = both(recipe, encoded, device_path, monkeypatch)
    assert_same(kept, dense, 1e-6 if "precision" not in settings else 1e-3)


@pytest.mark.parametrize(
    "methods", [(Mixout(p=0.5, layers="linear"),), (Mixout(p=0.7, layers="linear", replace_dropout=False),)]
)
@pytest.mark.parametrize("settings", [{}, {"micro_batches": 3}])
def test_columns_that_are_made_again(methods, settings, folder, device_path, monkeypatch):
    """By the GELU before a mixed layer, in its backward pass: the bits of those that are taken before."""
    for module in (linear, norm):
        on_the_cpu(monkeypatch, module)
    recipe, encoded = tiny_run("classification", folder, methods=methods, steps=3, precision="bf16", **settings)
    want, wanted = Source.want_, []
    monkeypatch.setattr(Source, "want_", lambda self, those: wanted.append(len(those)) or want(self, those))
    again = train(recipe, encoded, STREAMS)
    steps = 3 * settings.get("micro_batches", 1)
    blocks = again[1].config.num_hidden_layers
    assert len(wanted) >= steps * blocks
    assert set(wanted) == {1}
    monkeypatch.setattr(SharedCast, "get", lambda self, *rest: _without_source(get(self, *rest)))
    wanted.clear()
    taken = train(recipe, encoded, STREAMS)
    assert not wanted
    assert again[0].losses == taken[0].losses
    assert again[0].grad_norms == taken[0].grad_norms
    assert all(torch.equal(one, other) for one, other in zip(again[1].parameters(), taken[1].parameters()))


get = SharedCast.get


def _without_source(handed):
    return handed._replace(source=None) if handed is not None else None


@pytest.fixture
def gathered(monkeypatch):
    """Gradients have one place in memory for the whole run, as on a GPU; nothing is recorded."""

    class NoGraphs:
        def writes_(self, tensors):
            assert len(tensors) == 1

        def forget_(self):
            pass

    begin = Chunk.__init__

    def with_graphs(self, *arguments):
        begin(self, *arguments)
        self.graphs = NoGraphs()

    monkeypatch.setattr(Chunk, "__init__", with_graphs)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [(None, "plain record replay replay replay replay replay"), (0, "plain plain record replay replay replay replay"),
     (1, "plain plain plain record replay replay replay"), (3, "plain record replay replay plain replay replay")],
)  # fmt: skip
def test_when_updates_are_recorded(whole, expected, folder, device_path, gathered, monkeypatch):
    """A recording is here only remembered, and its replay the work again."""
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=6)
    done, recorded, forecast, fused = [], {}, MaskPool.forecast, Update._fused_step

    def foreseen(self, calls, start=0):
        found = forecast(self, calls, start)
        if whole is not None:
            found[whole] = True
        return found

    class Remembered:
        forgotten = 0

        def __contains__(self, name):
            return name in recorded

        def capture_(self, name, work):
            recorded[name] = work
            done.append("record")

        def replay(self, name):
            done.append("replay")
            fused(recorded[name].__self__)

    monkeypatch.setattr(MaskPool, "forecast", foreseen)
    plain = train(recipe, encoded, STREAMS, graphs=False)
    monkeypatch.setattr(BatchGradient, "graphs", Remembered())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(Update, "_fused_step", lambda self: done.append("plain") or fused(self))
    found = train(recipe, encoded, STREAMS)
    assert done == expected.split()
    assert found[0].losses == plain[0].losses
    assert found[0].grad_norms == plain[0].grad_norms


@pytest.mark.parametrize("whole", [None, 0, 2])
@pytest.mark.parametrize("settings", [{}, {"micro_batches": 3}])
def test_gradients_that_keep_their_place(settings, whole, folder, device_path, gathered, monkeypatch):
    """Some of the runs have a step whose masks do not fit."""
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=5, **settings)
    forecast = MaskPool.forecast

    def foreseen(self, calls, start=0):
        found = forecast(self, calls, start)
        if whole is not None:
            found[whole] = True
        return found

    monkeypatch.setattr(MaskPool, "forecast", foreseen)
    kept, dense = both(recipe, encoded, device_path, monkeypatch, graphs=False)
    assert_same(kept, dense)


def test_a_weight_that_is_read_outside_of_its_layer_is_noticed(folder, device_path, gathered, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=2)
    plain = Chunk._loss

    def penalised(self, batch, moment):
        return plain(self, batch, moment) + self.model.bert.encoder.layer[0].intermediate.dense.weight.square().sum()

    monkeypatch.setattr(Chunk, "_loss", penalised)
    with pytest.raises(SteadytuneError, match="outside of it"):
        train(recipe, encoded, STREAMS, graphs=False)


@pytest.mark.parametrize("kind", ["image", "translation", "summarization", "language-model"])
def test_other_models(kind, folder, device_path, monkeypatch):
    """Tied weights, layers without bias, Conv1D."""
    recipe, encoded = tiny_run(kind, folder, methods=(Mixout(p=0.5),), steps=2, evaluations=1)
    kept = train(recipe, encoded, STREAMS)
    monkeypatch.setattr(kept_gradients, "DEVICES", set())
    assert_same(kept, train(recipe, encoded, STREAMS))
    assert len(device_path) == (kind != "language-model")  # GPT-2 has no nn.Linear below its head


@pytest.mark.parametrize("first", [0, 2])
def test_a_step_whose_mask_does_not_fit_takes_the_dense_gradient(first, folder, device_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=5)
    whole, forecast, steps = [], MaskPool.forecast, AdamW.step

    def foreseen(self, calls, start=0):
        found = forecast(self, calls, start)
        found[first] = True
        return found

    def seen(self, **options):
        whole.append([p.grad is not None for p in device_path[0].of])
        return steps(self, **options)

    monkeypatch.setattr(MaskPool, "forecast", foreseen)
    monkeypatch.setattr(update_module.AdamW, "step", seen)
    kept = train(recipe, encoded, STREAMS)
    monkeypatch.setattr(update_module.AdamW, "step", steps)
    monkeypatch.setattr(kept_gradients, "DEVICES", set())
    assert_same(kept, train(recipe, encoded, STREAMS))
    assert [set(each) for each in whole] == [{number == first} for number in range(5)]


def test_after_memory_ran_out(folder, device_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=4, micro_batches=2)
    whole, _ = train(recipe, encoded, STREAMS)
    plain, calls = Chunk._loss, []

    def small_memory(self, batch, moment):
        calls.append(moment.step)
        if calls.count(2) == 2:  # in the middle of a step
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, moment)

    monkeypatch.setattr(Chunk, "_loss", small_memory)
    limited, _ = train(recipe, encoded, STREAMS)
    assert np.allclose(limited.losses, whole.losses, rtol=1e-4)
    assert len(limited.notes) == len(whole.notes) + 1


def test_a_run_in_pieces_has_the_same_bits(folder, device_path, tmp_path):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.5),), steps=5)
    whole, model = train(recipe, encoded, STREAMS)
    asked = iter([False, True])
    assert train(recipe, encoded, STREAMS, tmp_path, stop=asked.__next__)[0].status == "stopped"
    again, other = train(recipe, encoded, STREAMS, tmp_path)
    assert len(device_path) == 3
    assert again.losses == whole.losses
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))
    assert not [name for each in model.modules() for name in vars(each) if name.startswith("mix")]
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize(
    "methods",
    [
        (Mixout(p=0.5), WeightDecay(decay=0.1, form="l2")),
        (Mixout(p=0.5, mask="element"),),
        (Mixout(p=0.3, distribution="gaussian"),),
        (),
    ],
)
def test_where_gradients_must_be_whole(methods, folder, device_path):
    recipe, encoded = tiny_run("classification", folder, methods=methods, steps=2)
    train(recipe, encoded, STREAMS)
    assert not device_path


def test_two_forwards_in_a_step(folder, device_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(RDrop(), Mixout(p=0.5)), steps=3)
    kept = train(recipe, encoded, STREAMS)
    monkeypatch.setattr(kept_gradients, "DEVICES", set())
    assert_same(kept, train(recipe, encoded, STREAMS))
