"""Groups, optimiser, schedule and batch size inside Trainer."""

import pytest
import torch
from small_trainer import arguments, assert_close, assert_same, bert, history, rows, train, weights
from transformers import Trainer

import steadytune as st
from steadytune import NoEffect, SteadyTrainer

# --- groups, optimizer ------------------------------------------------------------------------------------------------


def test_layerwise_learning_rates_are_in_the_groups(tmp_path):
    trainer = train(tmp_path, st.LayerwiseLR(0.5), weight_decay=0.1, lr_scheduler_type="constant", num_train_epochs=1)
    where = {id(p): name for name, p in trainer.model.named_parameters()}
    seen = {where[id(p)]: group for group in trainer.optimizer.param_groups for p in group["params"]}
    assert seen.keys() == dict(trainer.model.named_parameters()).keys()
    for name, depth in {"classifier": 3, "bert.pooler.dense": 3, "bert.encoder.layer.1.output.dense": 2}.items():
        assert seen[f"{name}.weight"]["lr"] == pytest.approx(1e-3 * 0.5 ** (3 - depth))
        assert (seen[f"{name}.weight"]["weight_decay"], seen[f"{name}.bias"]["weight_decay"]) == (0.1, 0.0)
    assert seen["bert.embeddings.word_embeddings.weight"]["lr"] == pytest.approx(1e-3 * 0.5**3)
    assert history(trainer)[0]["learning_rate"] == 1e-3  # the one that was asked for, not the embeddings'


def test_layerwise_learning_rates_in_an_optimizer_class_of_ones_own(tmp_path):
    args, own = arguments(tmp_path, num_train_epochs=1), (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.5})
    trainer = SteadyTrainer(
        bert(), args, train_dataset=rows(), methods=st.LayerwiseLR(0.5), optimizer_cls_and_kwargs=own
    )
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert {group["momentum"] for group in trainer.optimizer.param_groups} == {0.5}
    assert len({group["initial_lr"] for group in trainer.optimizer.param_groups}) == 4


def test_adamw_without_bias_correction_is_used(tmp_path):
    settings = {"max_steps": 1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "weight_decay": 0.1}
    start = bert().state_dict()
    biased, plain = (
        train(tmp_path, m, **settings) for m in (st.AdamW(correct_bias=False, eps=1e-9), st.WeightDecay(0.0))
    )
    assert {group["eps"] for group in biased.optimizer.param_groups} == {1e-9}  # the method's, not the arguments'
    assert type(biased.optimizer.optimizer) is st.AdamW
    assert [group["weight_decay"] for group in biased.optimizer.param_groups] == [0.1, 0.0]
    name = "classifier.bias"  # not decayed, and with gradients far above eps
    ratio = (weights(biased)[name] - start[name]) / (weights(plain)[name] - start[name])
    assert ratio.median().item() == pytest.approx(st.bias_ratio(1), rel=1e-3)


def test_decay_toward_pretrained_acts_in_the_accelerated_optimizer(tmp_path):
    """Two steps: at the first w = ŵ and nothing happens, before the second w moves back by lr λ (w - ŵ)."""
    settings = {"lr_scheduler_type": "constant", "learning_rate": 0.01, "max_grad_norm": 0.0}
    settings |= {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    start, name = bert().state_dict(), "bert.encoder.layer.0.output.dense.weight"
    free, held = (train(tmp_path / str(m.decay), m, **settings) for m in (st.WeightDecay(0.0), st.PretrainedDecay(5.0)))
    first = type(bert()).from_pretrained(tmp_path / "5.0" / "checkpoint-1").state_dict()
    pull = 0.01 * 5.0 * (first[name] - start[name])
    assert pull.abs().max() > 1e-4
    assert_close({name: weights(free)[name] - pull}, {name: weights(held)[name]}, 1e-7)
    assert torch.equal(weights(free)["classifier.weight"], weights(held)["classifier.weight"])


def test_weight_decay_is_that_of_adamw(tmp_path):
    settings = {"optim": "adamw_torch", "gradient_accumulation_steps": 1}
    ours = train(tmp_path, st.WeightDecay(0.1), **settings)
    assert_same(weights(ours), weights(train(tmp_path, None, cls=Trainer, weight_decay=0.1, **settings)))


@pytest.mark.parametrize("given", [False, True], ids=["trainer's", "given"])
def test_a_hook_is_attached_once(given, tmp_path):
    model = bert()
    optimizers = (torch.optim.SGD(model.parameters(), lr=0.1) if given else None, None)
    trainer = SteadyTrainer(
        model,
        arguments(tmp_path, max_steps=2),
        train_dataset=rows(),
        methods=st.PretrainedDecay(1.0),
        optimizers=optimizers,
    )
    decays = []
    hook = trainer.applied._hooks[0]
    hook._decay_ = (lambda plain: lambda optimizer: (decays.append(1), plain(optimizer)))(hook._decay_)
    trainer.train()
    assert len(decays) == 2
    trainer.train()
    assert len(decays) == 4
    assert not given or trainer.optimizer.optimizer is optimizers[0]


# --- schedule ---------------------------------------------------------------------------------------------------------


def test_longer_and_a_schedule_go_together(tmp_path):
    args = arguments(tmp_path)
    before = args.to_dict()
    trainer = SteadyTrainer(
        bert(), args, train_dataset=rows(), methods=[st.LinearSchedule(warmup="1 epoch"), st.Longer(epochs=3)]
    )
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == 12
    assert trainer.state.num_train_epochs == 3
    rates = [row["learning_rate"] for row in history(trainer) if "loss" in row]
    assert rates == pytest.approx([1e-3 * (s / 4 if s < 4 else (12 - s) / 8) for s in range(12)])
    assert args.to_dict() == before


def test_a_second_run_has_the_schedule_from_its_start(tmp_path):
    trainer = train(tmp_path, st.LinearSchedule(warmup=2), num_train_epochs=1)
    first = [row["learning_rate"] for row in history(trainer) if "loss" in row]
    trainer.train()
    assert [row["learning_rate"] for row in history(trainer) if "loss" in row] == first


def test_longer_must_be_longer(tmp_path):
    trainer = SteadyTrainer(bert(), arguments(tmp_path), train_dataset=rows(), methods=st.Longer(steps=8))
    with pytest.raises(NoEffect, match="8 steps that the run has anyway"):
        trainer.train()


@pytest.mark.parametrize(("method", "size"), [(st.RDrop(half_batch=True), 4), (st.DoubledBatch(times=3), 24)], ids=str)
def test_the_batch_size_changes_and_the_arguments_do_not(method, size, tmp_path):
    args = arguments(tmp_path, per_device_train_batch_size=8, max_steps=1, gradient_accumulation_steps=1)
    before, sizes = args.to_dict(), []
    trainer = SteadyTrainer(bert(), args, train_dataset=rows(30), methods=method)
    trainer.model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    trainer.train()
    assert sizes == [size * (2 if isinstance(method, st.RDrop) else 1)]
    assert (trainer.state.train_batch_size, trainer.get_total_train_batch_size(trainer.args)) == (size, size)
    assert args.to_dict() == before
