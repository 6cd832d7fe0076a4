"""The runs of test_trainer_distributed.py. Under `accelerate launch` each process saves what it ends with; alone, the
same runs are the reference: with half the processes and twice the batch, the global batches are the same rows."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from small_trainer import arguments, rows  # noqa: E402

import steadytune as st  # noqa: E402
from tiny import batch, tiny  # noqa: E402
from two_processes import RANK, WORLD, die_with_launcher, leave  # noqa: E402

COUNT = 32
SGD = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}  # hides no factor


def tokens():
    """Labels for tagging, with a different number of them in each row."""
    ids = batch("bert", COUNT)["input_ids"]
    return (ids % 3).masked_fill(torch.arange(10) <= torch.arange(COUNT)[:, None] % 8, -100)


class Normed(nn.Module):
    """Batch normalisation has buffers, which DDP overwrites before the second of two forwards."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, 8), nn.BatchNorm1d(8)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, input_ids, labels=None):
        logits = self.out(self.drop(self.norm(self.embed(input_ids).mean(1))))
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


# Without dropout's own noise two processes and one must agree: mixout draws the same masks in all of them.
AGREEING = {
    "mixout": ("ForSequenceClassification", [st.Mixout(p=0.5)], {}),
    "mixout + rdrop": ("ForSequenceClassification", [st.Mixout(p=0.5), st.RDrop()], {}),
    "tokens, accumulated": (
        "ForTokenClassification",
        [st.Mixout(p=0.5), st.RDrop()],
        {"gradient_accumulation_steps": 2},
    ),
    "per-process mean": (
        "ForSequenceClassification",
        [st.Mixout(p=0.5), st.FraternalDropout()],
        {"average_tokens_across_devices": False},
    ),
    "head toward its start": (
        "ForSequenceClassification",
        [st.Mixout(p=0.5, head="mixout"), st.PretrainedDecay(1.0)],
        {},
    ),
}
NOISY = {
    "rdrop with dropout": ("ForSequenceClassification", [st.RDrop()], {}),
    "rdrop with batch norm": (Normed, [st.RDrop()], {}),
    "expectation linear": ("ForSequenceClassification", [st.ExpectationLinearDropout()], {}),
    "masks of one's own": ("ForSequenceClassification", [st.Mixout(p=0.5, ranks="own")], {}),
    "average": (
        "ForSequenceClassification",
        [st.CheckpointAverage(last=2)],
        {"save_strategy": "steps", "save_steps": 2},
    ),
    "resumed": ("ForSequenceClassification", [st.Mixout(p=0.3, replace_dropout=False), st.RDrop()], {"save_steps": 2}),
}


def run(folder, name, resume=None):
    head, methods, settings = {**AGREEING, **NOISY}[name]
    torch.manual_seed(RANK if name == "head toward its start" else 0)  # each process draws a head of its own
    model = tiny("bert", head, num_hidden_layers=2) if isinstance(head, str) else head()
    sizes = {"per_device_train_batch_size": 8 // WORLD, "gradient_accumulation_steps": 1, "max_steps": 4}
    saving = {"save_strategy": "steps"} if "save_steps" in settings else {}
    args = arguments(
        Path(folder) / name, train_sampling_strategy="sequential", **{**SGD, **sizes, **saving, **settings}
    )
    labels = {"labels": tokens()} if head == "ForTokenClassification" else {}
    trainer = st.SteadyTrainer(model, args, train_dataset=rows(COUNT, **labels), methods=methods)
    trainer.train(resume_from_checkpoint=resume)
    return {
        "weights": {key: value.detach().clone() for key, value in trainer.model.named_parameters()},
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "eval_loss": trainer.evaluate(rows(COUNT, **labels))["eval_loss"],
        "anchors": trainer.applied.fingerprint(),
        "world": trainer.args.world_size,
    }


if __name__ == "__main__":
    die_with_launcher()
    out = sys.argv[1]
    results = {name: run(out, name) for name in [*AGREEING, *NOISY]}
    results["resumed again"] = run(out, "resumed", resume=f"{out}/resumed/checkpoint-2")
    leave(results, out)
