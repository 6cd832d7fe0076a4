"""How many trials a GPU gets at a time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from steadytune import CheckpointAverage, RDrop
from steadytune.errors import SteadytuneError
from steadytune.recipe import Recipe
from steadytune.study import room
from steadytune.study.command import run_study
from tiny_tasks import save_model

GIB = 2**30


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return Recipe(model=str(save_model("classification", tmp_path_factory.mktemp("models"))), batch_size=32)


def test_a_number_is_taken_as_it_is():
    assert room.per_gpu("12", [], Path()) == 12
    assert room.per_gpu(None, [], Path()) is None


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5", ""])
def test_what_is_no_number_gets_a_sentence_before_anything_is_written(wrong, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("study: x\nbase: {}\ntasks: {t: {acceptability: 20}}\nvariants: {a: {}}\nseeds: 1\n")
    told = {"out": None, "on": "local", "address": None, "workers": None, "threads": 1, "retry_failed": False}
    with pytest.raises(SteadytuneError, match="at least 1, or auto"):
        run_study(str(file), per_gpu=wrong, as_json=False, quiet=True, **told)
    assert list(tmp_path.iterdir()) == [file]


def test_auto_means_nothing_without_a_gpu(recipe, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert room.per_gpu("auto", [recipe], Path()) is None


def test_auto_goes_by_the_smallest_gpu_and_the_largest_recipe(recipe, monkeypatch):
    class Properties:
        def __init__(self, memory):
            self.total_memory = memory

    sizes = [80 * GIB, 40 * GIB]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Properties(sizes[number]))
    assert room.per_gpu("auto", [recipe], Path()) == 24  # a tiny model: as many as are of use
    asked = []
    monkeypatch.setattr(room, "_replicas", lambda recipe, memory: asked.append(memory) or recipe.batch_size)
    larger = Recipe(model=recipe.model, batch_size=3)
    assert room.per_gpu("auto", [recipe, larger, recipe], Path()) == 3
    assert asked == [40 * GIB] * 2


def test_a_model_that_hardly_fits_gets_one_place(recipe):
    assert room._replicas(recipe, 1) == 1
    assert room._replicas(recipe, 2 * GIB) == 6
    assert room._replicas(recipe, 8 * GIB) == 24


def test_workers_share_a_gpus_trials(recipe, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: type("P", (), {"total_memory": 80 * GIB}))
    found = {workers: room.per_gpu("auto", [recipe], Path(), workers) for workers in (None, 1, 2, 3, 6, 100)}
    assert found == {None: 24, 1: 24, 2: 24, 3: 12, 6: 8, 100: 1}


def test_two_passes_and_kept_weights_take_room(recipe):
    twice = replace(recipe, methods=(RDrop(),))
    kept = replace(recipe, methods=(CheckpointAverage(last=40),))
    assert room._replicas(twice, 2 * GIB) < room._replicas(recipe, 2 * GIB)
    assert room._replicas(kept, 2 * GIB) <= room._replicas(recipe, 2 * GIB)
    assert (room._passes(recipe), room._passes(twice), room._kept(kept)) == (1, 2, 40)
    assert room._passes(replace(recipe, methods=(RDrop(alpha=0.0),))) == 1


def test_a_model_that_is_not_at_hand_gets_one_place():
    assert room._replicas(Recipe(model="nobody/nothing"), 80 * GIB) == 1
