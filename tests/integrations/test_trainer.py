"""SteadyTrainer: Trainer where there are no methods, and each method in its place where there are."""

import subprocess
import sys

import peft
import pytest
import torch
from small_trainer import SMALL, arguments, assert_close, assert_same, bert, history, rows, train, weights
from transformers import Trainer

import steadytune as st
from steadytune import SteadyTrainer, Streams
from steadytune.methods import all_methods
from steadytune.methods.mixed_layers import mixed_layers
from tiny import tiny

METHODS = all_methods()


def test_without_methods_it_is_trainer(tmp_path):
    runs = []
    for number, cls in enumerate((SteadyTrainer, Trainer)):
        args = arguments(tmp_path / str(number), eval_strategy="epoch", save_strategy="epoch", weight_decay=0.1)
        trainer = cls(model=bert(), args=args, train_dataset=rows(), eval_dataset=rows(5))
        assert trainer.args is args
        trainer.train()
        runs.append(trainer)
    assert_same(*map(weights, runs))
    assert history(runs[0]) == history(runs[1])
    files = [{str(path.relative_to(tmp_path / n)) for path in (tmp_path / n).rglob("*")} for n in "01"]
    assert files[0] == files[1]


NULLS = {name: cls(**{**SMALL.get(name, {}), **cls.null}) for name, cls in METHODS.items() if cls.place != "schedule"}


@pytest.mark.parametrize(
    "name", [name for name in NULLS if name != "adamw"]
)  # AdamW is another kernel of the optimiser
def test_a_null_method_is_the_baseline(name, tmp_path):
    settings = {"gradient_accumulation_steps": 1, "num_train_epochs": 1}
    plain, nulled = train(tmp_path, None, cls=Trainer, **settings), train(tmp_path, NULLS[name], **settings)
    assert_same(weights(plain), weights(nulled))
    assert history(plain) == history(nulled)


# --- model ------------------------------------------------------------------------------------------------------------


def test_draws_come_from_the_seed_or_from_the_streams(tmp_path):
    def start(seed, streams=None):
        return weights(SteadyTrainer(bert(), arguments(tmp_path, seed=seed), methods=st.Reinit(2), streams=streams))

    assert_same(start(1), start(1))
    assert_same(start(1), start(2, Streams(1, 1, 1)))
    with pytest.raises(AssertionError, match="differ"):
        assert_same(start(1), start(2))


def test_model_init_makes_and_treats_a_model_for_every_run(tmp_path):
    methods = [st.Reinit(layers=1), st.Mixout(p=0.5), st.PretrainedDecay(0.1)]
    given = train(tmp_path, methods, train_sampling_strategy="sequential")
    args = arguments(tmp_path, train_sampling_strategy="sequential")
    trainer = SteadyTrainer(model_init=lambda: bert(), args=args, train_dataset=rows(), methods=methods)
    for _ in range(2):
        trainer.train()
        assert_same(weights(trainer), weights(given))
        assert trainer.applied.fingerprint() == given.applied.fingerprint()


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant, tmp_path):
    methods = [st.Mixout(p=0.5), st.RDrop()]
    kwargs = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    checkpointed = train(tmp_path, methods, num_train_epochs=1, **kwargs)
    assert checkpointed.model.is_gradient_checkpointing
    # The reentrant kind adds up a weight's gradients in another order.
    assert_close(
        weights(train(tmp_path, methods, num_train_epochs=1)), weights(checkpointed), 1e-6 if reentrant else 0.0
    )


def test_best_model_is_loaded_into_mixed_layers(tmp_path):
    args = arguments(
        tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, learning_rate=0.05
    )
    trainer = SteadyTrainer(bert(), args, train_dataset=rows(), eval_dataset=rows(), methods=st.Mixout(p=0.5))
    trainer.train()
    best = type(bert()).from_pretrained(trainer.state.best_model_checkpoint)
    assert_same(weights(trainer), best.state_dict())
    assert next(mixed_layers(trainer.model))


def test_a_peft_model_trains_and_resumes(tmp_path):
    def lora():
        base = bert()
        torch.manual_seed(0)
        return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"]))

    methods = [st.Mixout(p=0.5, layers="*lora_A*"), st.RDrop()]
    settings = {"save_strategy": "steps", "save_steps": 3}
    whole = train(tmp_path, methods, model=lora(), **settings)
    resumed = train(tmp_path, methods, model=lora(), resume=f"{tmp_path}/checkpoint-3", **settings)
    assert_same(weights(whole), weights(resumed))
    whole.save_model(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(bert(), tmp_path / "adapter").eval()
    inputs = {name: value[None] for name, value in rows()[0].items()}
    assert torch.equal(loaded(**inputs).logits, whole.model.eval()(**inputs).logits)


def test_peft_around_a_model_as_from_pretrained_gives_it(tmp_path):
    """The body is in eval and its wrapper is not: its dropout still counts, because Trainer calls train()."""
    train(tmp_path, [st.RDrop()], model=peft.get_peft_model(bert().eval(), peft.LoraConfig(target_modules=["query"])))


def test_frozen_weights_below_an_adapter_are_not_drawn_anew(tmp_path):
    lora = peft.get_peft_model(bert(), peft.LoraConfig(target_modules=["query"]))
    before = {name: weight.clone() for name, weight in lora.state_dict().items()}
    with pytest.raises(st.SteadytuneError, match="is frozen, so its random values would never be trained"):
        train(tmp_path, [st.Reinit(layers=1)], model=lora)
    assert_same(before, lora.state_dict())


# --- finish, saving ---------------------------------------------------------------------------------------------------


def test_tied_weights_are_averaged(tmp_path):
    torch.manual_seed(0)
    model = tiny("bert", "ForMaskedLM")
    data = [{**row, "labels": row["input_ids"]} for row in rows()]
    trainer = train(
        tmp_path, st.CheckpointAverage(last=2), model=model, data=data, save_strategy="epoch", save_only_model=True
    )
    paths = sorted(tmp_path.glob("checkpoint-*"))
    mean = st.average_checkpoints(paths)
    assert len(paths) == 2
    assert_same({name: weights(trainer)[name] for name in mean}, mean)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_saved_model_needs_nothing_of_ours(tmp_path):
    trainer = train(tmp_path, [st.Reinit(1), st.Mixout(p=0.5), st.RDrop()], max_steps=2)
    trainer.save_model(tmp_path / "model")
    inputs = {name: torch.stack([row[name] for row in rows()]) for name in ("input_ids", "attention_mask")}
    torch.save(inputs, tmp_path / "inputs.pt")
    code = (
        "import sys; sys.modules['steadytune'] = None\n"
        "import torch; from transformers import AutoModelForSequenceClassification as Auto\n"
        "model = Auto.from_pretrained('model').eval()\n"
        "torch.save(model(**torch.load('inputs.pt')).logits.detach(), 'logits.pt')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120, capture_output=True)
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits.pt"), trainer.model.eval()(**inputs).logits)
