"""resume_from_checkpoint: bit for bit the run that was not interrupted, or a sentence."""

import json

import pytest
import torch
from small_trainer import SMALL, arguments, assert_same, bert, history, rows, train, weights
from transformers import Trainer

import steadytune as st
from steadytune import SteadyTrainer, SteadytuneError
from steadytune.methods import all_methods

METHODS = all_methods()
SEVERAL = [
    st.Reinit(layers=1),
    st.Mixout(p=0.5),
    st.LayerwiseLR(0.9),
    st.PretrainedDecay(0.1),
    st.RDrop(alpha=1.0),
    st.LinearSchedule(),
    st.Longer(times=1.5),
]
RUNS = {name: [METHODS[name](**SMALL.get(name, {}))] for name in METHODS if name != "ensemble"} | {"several": SEVERAL}


@pytest.mark.parametrize("name", RUNS)
def test_resume_is_bit_identical(name, tmp_path):
    methods = RUNS[name]
    whole = train(tmp_path, methods, save_strategy="steps", save_steps=1)
    epoch = whole.state.max_steps // whole.state.num_train_epochs
    assert whole.state.global_step == whole.state.max_steps > epoch + 1
    for step in (epoch, epoch + 1):  # at the end of an epoch, and in the middle of one
        torch.manual_seed(step)  # what the process drew before does not matter
        saving = {"save_strategy": "steps", "save_steps": 1} if name == "checkpoint_average" else {}
        resumed = train(tmp_path, methods, resume=f"{tmp_path}/checkpoint-{step}", **saving)
        assert_same(weights(whole), weights(resumed))
        assert history(whole) == history(resumed)


def test_a_changed_seed_does_not_change_the_masks_that_come(tmp_path):
    """Trainer keeps dropout's generator in the checkpoint; mixout's noise is kept there too."""
    one_epoch = {
        "num_train_epochs": 1,
        "save_strategy": "steps",
        "save_steps": 2,
        "train_sampling_strategy": "sequential",
    }
    whole = train(tmp_path, st.Mixout(p=0.5), **one_epoch)
    resumed = train(tmp_path, st.Mixout(p=0.5), resume=f"{tmp_path}/checkpoint-2", **{**one_epoch, "seed": 99})
    assert_same(weights(whole), weights(resumed))


def test_the_average_reaches_back_before_the_interruption(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()  # another run's, never this one's
    settings = {"num_train_epochs": 1, "save_strategy": "steps", "save_steps": 1}
    whole = train(tmp_path, st.CheckpointAverage(last=3), **settings)
    parts = [SteadyTrainer(model=bert(), args=arguments(tmp_path)).model for _ in range(3)]
    for number, model in enumerate(parts, start=2):
        Trainer(model=model, args=arguments(tmp_path))._load_from_checkpoint(f"{tmp_path}/checkpoint-{number}")
    mean = {k: torch.stack([m.state_dict()[k] for m in parts]).double().mean(0).float() for k in parts[0].state_dict()}
    assert_same(weights(whole), mean)
    resumed = train(tmp_path, st.CheckpointAverage(last=3), resume=f"{tmp_path}/checkpoint-3", **settings)
    assert_same(weights(whole), weights(resumed))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    methods = [st.Mixout(p=0.5), st.PretrainedDecay(0.1)]
    train(folder, methods, max_steps=2, save_strategy="steps", save_steps=1)
    return folder / "checkpoint-1"


def refused(checkpoint, methods, match, model=None):
    """Nothing is trained, and nothing is loaded."""
    trainer = SteadyTrainer(
        model=model or bert(), args=arguments(checkpoint.parent), methods=methods, train_dataset=rows()
    )
    before = weights(trainer)
    with pytest.raises(SteadytuneError, match=match):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 0
    assert_same(weights(trainer), before)


@pytest.mark.parametrize("other", [[], st.Mixout(p=0.5), [st.Mixout(p=0.6), st.PretrainedDecay(0.1)]], ids=str)
def test_other_methods_are_refused(checkpoint, other):
    refused(checkpoint, other, match=r"was made with the methods .*mixout")


def test_other_pretrained_weights_are_refused(checkpoint):
    methods = [st.Mixout(p=0.5), st.PretrainedDecay(0.1)]
    refused(checkpoint, methods, match="same pretrained weights", model=bert(seed=1))
    built_from_it = type(bert()).from_pretrained(checkpoint)
    refused(checkpoint, methods, match="not from the checkpoint", model=built_from_it)


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path):
    train(tmp_path, None, cls=Trainer, max_steps=1, save_strategy="steps", save_steps=1)
    refused(tmp_path / "checkpoint-1", st.Reinit(), match=r"has no steadytune\.json")
    assert train(tmp_path, [], max_steps=2, resume=f"{tmp_path}/checkpoint-1").state.global_step == 2


@pytest.mark.parametrize("lost", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_an_incomplete_checkpoint_is_refused(checkpoint, lost):
    file = checkpoint / lost
    file.rename(checkpoint.parent / lost)
    try:
        refused(checkpoint, [st.Mixout(p=0.5), st.PretrainedDecay(0.1)], match=f"has no {lost[:9]}")
    finally:
        (checkpoint.parent / lost).rename(file)


@pytest.mark.parametrize("text", ["", '{"methods": [', "[]", '{"methods": [], "checkpoints": []}', '{"methods": [{}]}'])
def test_a_damaged_state_file_is_named(checkpoint, text):
    file = checkpoint / "steadytune.json"
    good = file.read_text(encoding="utf-8")
    assert json.loads(good)["checkpoints"] == ["checkpoint-1"]
    file.write_text(text, encoding="utf-8")
    try:
        refused(checkpoint, [st.Mixout(p=0.5), st.PretrainedDecay(0.1)], match=r"steadytune\.json is damaged")
    finally:
        file.write_text(good, encoding="utf-8")
