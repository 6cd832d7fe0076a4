"""The runs of test_train_distributed.py: under torchrun each process saves what it ends with; alone, the reference."""

import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np  # noqa: E402

from steadytune import CheckpointAverage, Dropout, FraternalDropout, Mixout, RDrop, Reinit, Streams  # noqa: E402
from steadytune.engine.chunk import Chunk  # noqa: E402
from steadytune.engine.encode import encode  # noqa: E402
from steadytune.engine.train import train  # noqa: E402
from tiny_tasks import tiny_data, tiny_recipe  # noqa: E402
from two_processes import RANK, WORLD, die_with_launcher  # noqa: E402

STREAMS = Streams(init=11, order=12, noise=13)
CALM = Dropout(p=0.0)

# Without dropout's own noise two processes and one must agree: mixout draws the same masks in all of them. 41 rows in
# batches of 8: the last batch of an epoch is one row, which only one of the processes has.
AGREEING = {
    "mixout": ("classification", {"methods": (Mixout(p=0.5), Reinit(layers=1)), "epochs": 1.5}),
    "accumulated": ("classification", {"methods": (Mixout(p=0.5), FraternalDropout()), "micro_batches": 3}),
    "rdrop": ("regression", {"methods": (Mixout(p=0.5), RDrop())}),
    "translation": ("translation", {"methods": (CALM,), "label_smoothing": 0.1, "steps": 3, "evaluations": 1}),
    "language model": ("language-model", {"methods": (CALM,), "clip": 0.0}),
    "average": ("classification", {"methods": (CALM, CheckpointAverage(last=2))}),
    "one row of validation": ("classification", {"methods": (CALM,), "steps": 3}),
    "out of memory": ("classification", {"methods": (Mixout(p=0.5),), "steps": 3}),
}
NOISY = {
    "dropout": ("classification", {}),
    "resumed": ("classification", {"methods": (Mixout(p=0.3, replace_dropout=False), RDrop())}),
    "masks of one's own": ("classification", {"methods": (Mixout(p=0.5, ranks="own"),)}),
}


def run(folder, name):
    kind, changes = (AGREEING | NOISY)[name]
    recipe = tiny_recipe(kind, folder / "models", **changes)
    encoded = encode(tiny_data(kind, train=41, other=1 if name.startswith("one row") else 9), recipe)
    if name == "resumed":  # only one process is asked to stop
        asked = iter([RANK == WORLD - 1 and step == 3 for step in range(20)])
        stopped, _ = train(recipe, encoded, STREAMS, folder / name, device="cpu", stop=lambda: next(asked))
        assert (stopped.status, len(stopped.losses)) == ("stopped", 4)
        whole = train(recipe, encoded, STREAMS, device="cpu")
        return {"again": ended(*train(recipe, encoded, STREAMS, folder / name, device="cpu")), **ended(*whole)}
    if name == "out of memory" and WORLD > 1:
        return ended(*with_little_memory(recipe, encoded))
    before = torch.get_rng_state()
    made = train(recipe, encoded, STREAMS, device="cpu")
    assert torch.equal(before, torch.get_rng_state())
    return ended(*made)


def with_little_memory(recipe, encoded):
    """The last process runs out of memory; all of them take smaller chunks."""
    plain = Chunk._loss

    def small_memory(self, batch, moment):
        if RANK == WORLD - 1 and batch["input_ids"].numel() > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, moment)

    Chunk._loss = small_memory
    try:
        result, model = train(recipe, encoded, STREAMS, device="cpu")
    finally:
        Chunk._loss = plain
    assert "Out of memory at step 1" in result.notes[0]
    return result, model


def ended(result, model):
    data = {key: value for key, value in result.to_data().items() if key not in ("seconds", "peak_memory")}
    numbers = {split: np.asarray(made.values) for split, made in result.predictions.items()}
    return {"result": data, "weights": {n: p.detach() for n, p in model.named_parameters()}, "predictions": numbers}


if __name__ == "__main__":
    die_with_launcher()
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    made = {name: run(place, name) for name in [*AGREEING, *NOISY]}
    torch.save(made, place / f"rank-{RANK}.pt")  # and end as any user's process does
