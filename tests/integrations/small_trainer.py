"""What the trainer's tests share: a tiny BERT, a few rows, short arguments, and how to compare two runs."""

import torch
from transformers import TrainingArguments

from steadytune import SteadyTrainer
from tiny import batch, tiny

# Where a default does not suit a run of a few steps.
SMALL = {
    "adamw": {"correct_bias": False},
    "checkpoint_average": {"last": 2},
    "constant_schedule": {"warmup": 2},
    "dropout": {"p": 0.2},
    "inverse_sqrt_schedule": {"warmup": 2},
    "longer": {"times": 2.0},
    "rdrop": {"alpha_schedule": "linear"},
}


def bert(seed=0):
    torch.manual_seed(seed)
    return tiny("bert", "ForSequenceClassification", num_hidden_layers=2)


def rows(count=15, **changes):
    """Rows of a dataset; `changes` replace columns by tensors."""
    columns = {**batch("bert", count), **changes}
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]


def arguments(folder, **changes):
    """Micro-batches of 2, two to a step: 15 rows are 4 steps an epoch, and the last one holds 2 + 1 rows."""
    settings = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return TrainingArguments(str(folder), **{**settings, **changes})


def train(folder, methods, *, model=None, data=None, resume=None, cls=SteadyTrainer, **changes):
    """A run; `changes` are TrainingArguments."""
    trainer = cls(
        model=bert() if model is None else model,
        args=arguments(folder, **changes),
        train_dataset=rows() if data is None else data,
        **({} if cls is not SteadyTrainer else {"methods": methods}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer):
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def history(trainer):
    """What was logged at each step, without times."""
    timed = ("runtime", "per_second", "train_loss", "flos")
    return [{k: v for k, v in row.items() if not k.endswith(timed)} for row in trainer.state.log_history]


def losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def assert_same(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} differ, first {different[:3]}"


def assert_close(one, other, tolerance):
    assert one.keys() == other.keys()
    gap = {name: (one[name] - other[name]).abs().max().item() for name in one}
    worst = max(gap, key=gap.get)
    assert gap[worst] <= tolerance, f"{worst} differs by {gap[worst]}"
