"""What SteadyTrainer refuses: each time a sentence, and a model that is as it was."""

import pytest
import torch
from small_trainer import arguments, assert_same, bert, rows, train
from transformers import TrainerCallback

import steadytune as st
from steadytune import NoEffect, SteadyTrainer, SteadytuneError
from steadytune.methods.mixed_layers import mixed_layers
from tiny import tiny

SGD = {"optimizers": (torch.optim.SGD([torch.zeros(1)]), None)}
REFUSED = {
    "Ensemble joins the models of several runs": (st.Ensemble(2), {}, {}),
    "AdamW sets the optimizer, but": (st.AdamW(correct_bias=False), {}, SGD),
    "LayerwiseLR sets the learning rate per layer, but": (st.LayerwiseLR(0.9), {}, SGD),
    "AdamW sets the optimizer, but the": (st.AdamW(), {}, {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})}),
    "LinearSchedule is a schedule, but": (st.LinearSchedule(), {}, {"optimizers": (None, object())}),
    "LinearSchedule replaces the schedule, so args.warmup_steps=5": (st.LinearSchedule(), {"warmup_steps": 5}, {}),
    "AdamW replaces the optimizer, so args.adam_epsilon=1e-06": (st.AdamW(), {"adam_epsilon": 1e-6}, {}),
    "AdamW replaces the optimizer, so args.optim=.*sgd": (st.AdamW(), {"optim": "sgd"}, {}),
    "save_strategy='no' keeps none": (st.CheckpointAverage(2), {}, {}),
    "save_total_limit=1 keeps fewer": (st.CheckpointAverage(2), {"save_strategy": "epoch", "save_total_limit": 1}, {}),
    "both say which weights": (
        st.CheckpointAverage(2),
        {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True},
        {"eval_dataset": [1]},
    ),
    "is not a method": ("mixout", {}, {}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_would_be_ignored_is_refused(sentence, tmp_path):
    methods, settings, given = REFUSED[sentence]
    model = bert()
    with pytest.raises(SteadytuneError, match=sentence):
        SteadyTrainer(model, arguments(tmp_path, **settings), methods=[methods, st.Mixout(p=0.5)], **given)
    assert_same(dict(bert().state_dict()), dict(model.state_dict()))
    assert not list(mixed_layers(model))


@pytest.mark.parametrize("wrong", [None, "mixout:p=0.7", st.Mixout, [None]])
def test_what_is_no_method_is_refused(wrong, tmp_path):
    with pytest.raises(SteadytuneError, match="is not a method"):
        SteadyTrainer(bert(), arguments(tmp_path), methods=wrong)


def test_two_methods_that_replace_the_same_are_refused(tmp_path):
    with pytest.raises(SteadytuneError, match="both replace the loss"):
        SteadyTrainer(bert(), arguments(tmp_path), methods=[st.RDrop(), st.NLLOnly()])


def test_a_method_that_would_do_nothing_is_refused(tmp_path):
    still = tiny("bert", "ForSequenceClassification", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with pytest.raises(NoEffect, match="every dropout is 0"):
        SteadyTrainer(still, arguments(tmp_path), methods=[st.RDrop()])


@pytest.mark.parametrize("machine", ["is_fsdp_enabled", "is_deepspeed_enabled", "n_gpu"])
def test_machines_that_cut_the_model_are_refused(machine, tmp_path, monkeypatch):
    create = SteadyTrainer.create_accelerator_and_postprocess

    def create_otherwise(trainer):
        create(trainer)
        if machine == "n_gpu":
            trainer.args._n_gpu = 2
        else:
            setattr(trainer, machine, True)

    monkeypatch.setattr(SteadyTrainer, "create_accelerator_and_postprocess", create_otherwise)
    with pytest.raises(SteadytuneError, match=r"does not run (with FSDP, DeepSpeed|under DataParallel)"):
        SteadyTrainer(bert(), arguments(tmp_path), methods=st.Mixout(p=0.5))


@pytest.mark.parametrize(
    "saving",
    [
        {"save_strategy": "epoch", "num_train_epochs": 3},
        {"save_strategy": "epoch", "max_steps": 5},
        {"save_strategy": "steps", "save_steps": 3, "max_steps": 7},  # and the last
        {"save_strategy": "steps", "save_steps": 0.4, "max_steps": 5},
        {"save_strategy": "steps", "save_steps": 50, "max_steps": 2},
    ],
)
def test_more_checkpoints_than_a_run_will_keep_are_refused_before_it(saving, tmp_path):
    train(tmp_path / "plain", [], **saving)
    count = len(list((tmp_path / "plain").glob("checkpoint-*")))
    train(tmp_path / "all", st.CheckpointAverage(last=count) if count > 1 else [], **saving)
    model = bert()
    with pytest.raises(SteadytuneError, match=f"averages {count + 1} checkpoints.* keeps {count}"):
        train(tmp_path / "too many", st.CheckpointAverage(last=count + 1), model=model, **saving)
    assert not list((tmp_path / "too many").glob("checkpoint-*"))
    assert_same(dict(bert().state_dict()), dict(model.state_dict()))


def test_a_callback_of_the_scripts_may_save_more(tmp_path):
    class Often(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_save = True

    settings = {"save_strategy": "epoch", "max_steps": 2, "train_sampling_strategy": "sequential"}
    args = arguments(tmp_path, **settings)
    trainer = SteadyTrainer(
        bert(), args, train_dataset=rows(), methods=st.CheckpointAverage(last=2), callbacks=[Often()]
    )
    trainer.train()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
