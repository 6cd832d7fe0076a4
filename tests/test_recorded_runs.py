"""Runs that are recorded and replayed, on the CPU (recorded_helpers.py): the bits of the plain loop.

tests/gpu/test_graphs_gpu.py has the real thing.
"""

import itertools
import weakref

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from transformers.models.vit.modeling_vit import ViTLayer  # noqa: E402

from recorded_helpers import recording  # noqa: E402
from steadytune import LayerwiseLR, Mixout, PretrainedDecay, RDrop, Streams  # noqa: E402
from steadytune.engine.chunk import Chunk  # noqa: E402
from steadytune.engine.graphs import Graphs, NotCaptured  # noqa: E402
from steadytune.engine.masks import Masks  # noqa: E402
from steadytune.engine.train import train  # noqa: E402
from tiny_tasks import tiny_run  # noqa: E402

STREAMS = Streams(init=1, order=2, noise=3)
MIXED = (Mixout(p=0.5),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def replayed(monkeypatch):
    """The names of what was replayed."""
    recording(monkeypatch)
    done, replay = [], Graphs.replay
    monkeypatch.setattr(Graphs, "replay", lambda self, name: done.append(name) or replay(self, name))
    return done


def both(recipe, encoded, **options):
    """The recorded run, and the plain one."""
    return [train(recipe, encoded, STREAMS, graphs=on, **options) for on in (True, False)]


def assert_same_bits(one, other):
    assert one[0].losses == other[0].losses
    assert one[0].grad_norms == other[0].grad_norms
    assert all(torch.equal(a, b) for a, b in zip(one[1].parameters(), other[1].parameters(), strict=True))


@pytest.mark.parametrize(
    ("methods", "settings"),
    [
        ((), {}),
        (MIXED, {}),
        ((Mixout(p=0.7, layers="linear"), PretrainedDecay(decay=0.1)), {"precision": "bf16"}),
        ((Mixout(p=0.5, replace_dropout=False), LayerwiseLR(decay=0.9)), {"micro_batches": 2}),
        ((RDrop(), Mixout(p=0.5)), {}),
    ],
)
def test_every_method(methods, settings, folder, replayed):
    recipe, encoded = tiny_run("image", folder, methods=methods, steps=8, **settings)
    assert_same_bits(*both(recipe, encoded))
    assert replayed.count("update") == 7
    assert len(replayed) > 12


def leave_out(monkeypatch, when):
    """A model of whose blocks every second one is left out where `when` says so of the number of rows."""
    forward, number, seen = ViTLayer.forward, itertools.count(), weakref.WeakKeyDictionary()

    def leaves_out(self, hidden, *arguments, **options):
        made = forward(self, hidden, *arguments, **options)
        is_second = (seen[self] if self in seen else seen.setdefault(self, next(number))) % 2
        if not self.training or not is_second or not when(len(hidden)):
            return made
        return (hidden, *made[1:]) if isinstance(made, tuple) else hidden

    monkeypatch.setattr(ViTLayer, "forward", leaves_out)


@pytest.mark.parametrize("methods", [(), MIXED], ids=["plain", "mixout"])
def test_a_layer_that_only_another_shape_uses(methods, folder, replayed, monkeypatch):
    """What was recorded before its first gradient neither clears that gradient nor steps by it."""
    leave_out(monkeypatch, lambda rows: rows == 8)  # the last batch of an epoch has four rows
    recipe, encoded = tiny_run("image", folder, methods=methods, steps=20)
    assert_same_bits(*both(recipe, encoded))
    assert replayed.count("update") > 12


@pytest.mark.parametrize("rehearsed", [False, True])
@pytest.mark.parametrize("methods", [(), MIXED], ids=["plain", "mixout"])
def test_a_layer_whose_first_gradient_comes_late(methods, rehearsed, folder, replayed, monkeypatch):
    """As with LayerDrop, which draws on the host: steps are not recorded, and updates are. The rehearsal of a step may
    have had the layer."""
    begun, begin, rehearsing = [], Masks.begin_, []
    monkeypatch.setattr(Masks, "begin_", lambda self: begun.append(1) or begin(self))
    capture_, rehearse = Graphs.capture_, Graphs._rehearse

    def with_the_layer(self, work):
        rehearsing.append(rehearsed)
        try:
            return rehearse(self, work)
        finally:
            rehearsing.clear()

    monkeypatch.setattr(Graphs, "_rehearse", with_the_layer)

    def capture_updates_(self, name, work):
        if name != "update":
            raise NotCaptured("the model draws random numbers on the host in every step")
        capture_(self, name, work)

    monkeypatch.setattr(Graphs, "capture_", capture_updates_)
    leave_out(monkeypatch, lambda rows: rows > 2 and len(begun) <= 4 and not any(rehearsing))
    recipe, encoded = tiny_run("image", folder, methods=methods, steps=12)
    found = []
    for on in (True, False):
        begun.clear()
        found.append(train(recipe, encoded, STREAMS, graphs=on))
    assert_same_bits(*found)
    assert set(replayed) == {"update"}
    assert len(replayed) > 6


@pytest.mark.parametrize("step", range(4))
def test_memory_that_runs_out_before_and_after_the_recording(step, folder, replayed, monkeypatch):
    recipe, encoded = tiny_run("image", folder, methods=MIXED, steps=10)
    call, calls, old, held = Chunk.__call__, [], [], []

    def full_once(self, *args):
        calls.append(args)
        if len(calls) == step + 1:
            old.extend(weakref.ref(p.grad) for p in self.parameters if not (p.grad is None or self.masks.keeps(p)))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return call(self, *args)

    def watch(progress):
        if progress.step == 8:
            held.append(sum(each() is not None for each in old))

    monkeypatch.setattr(Chunk, "__call__", full_once)
    found = []
    for on in (True, False):
        calls.clear()
        found.append(train(recipe, encoded, STREAMS, graphs=on, progress=watch))
    assert_same_bits(*found)
    assert not [note for note in found[0][0].notes if "recorded" in note]
    assert replayed.count("update") >= 7
    assert held == [0, 0], "gradients of before take memory"
