"""How many trials a minute does a study end on one GPU, against a loop over transformers.Trainer?

    python benchmarks/replicas.py --json
    python benchmarks/replicas.py --per-gpu 18 --seeds 60

The 6x384 encoder (the bundled MiniLM where it is installed, else random weights) on RTE (else rows of its lengths),
3 epochs of batches of 32 in bf16, scored three times on validation. The study is `steadytune study run` with its
ledger, workers and checkpoints. A Trainer's time is from loading the model to its last evaluation. Both begin after
imports and tokenisation, and are run in turns.

Both are warm: what a process does once (libraries load their kernels, Triton compiles ours) is in Trainer's first run
and in the first trials of a study, one for each of those that run at a time. They come on top of the counted ones, and
the clock starts when they have ended. The counted ones are taken in windows of `--window` trials: median and spread
are those of the windows. The table also has the rate of as many trials from the first claim on, and how far a trial is
from its floor: the matrix products of the tokens that are no padding, and the optimiser's bytes, as if the GPU did one
trial after the other at its measured ceilings.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from common import finish, machine, spread
from device import Bench
from engine import RTE_LENGTHS, model_directory, rows_for_trainer
from steadytune.engine.encode import encode
from steadytune.models import load_model
from steadytune.recipe import Recipe
from steadytune.study.data import StudyTask
from steadytune.study.folder import prepare
from steadytune.study.ledger import Ledger
from steadytune.study.local import run_local
from steadytune.tasks.base import Data


def task_of(folder: Path) -> dict[str, Any]:
    """RTE as the study file names it, or made-up rows of its lengths."""
    place = Path(os.environ.get("STEADYTUNE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")).resolve()
    if (place / "glue" / "RTE" / "train.tsv").is_file():
        return {"glue": str(place / "glue" / "RTE")}
    draw = np.random.default_rng(0)
    for split, rows in (("train", 2490), ("validation", 277)):
        lengths = np.interp(draw.random(rows), np.linspace(0, 1, len(RTE_LENGTHS)), RTE_LENGTHS).astype(int)
        with (folder / f"{split}.csv").open("w", newline="") as stream:
            made = csv.writer(stream)
            made.writerow(["text", "label"])
            made.writerows([" ".join(map(str, draw.integers(0, 1000, n))), "ab"[draw.integers(2)]] for n in lengths)
    return {"file": str(folder), "text": "text", "label": "label"}


def study_rate(folder: Path, spec: dict[str, Any], name: str, per_gpu: int, seeds: int, window: int) -> dict[str, Any]:
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({**spec, "seeds": seeds + per_gpu}))
    prepared = prepare(file, folder / name)
    began = time.perf_counter()
    assert run_local(prepared.ledger, per_gpu=per_gpu)
    whole = time.perf_counter() - began
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        rows = ledger.rows()
    assert [row.status for row in rows] == ["finished"] * (seeds + per_gpu)
    ends = sorted(row.ended or 0.0 for row in rows)
    marks = ends[per_gpu - 1 :: window]
    windows = [60 * window / (after - before) for before, after in itertools.pairwise(marks)]
    cold = ends[seeds - 1] - min(row.started or 0.0 for row in rows)
    return {
        "per_minute": statistics.median(windows),
        "windows": windows,
        "cold": 60 * seeds / cold,
        "with_start": whole,
    }


def floor_seconds(recipe: Recipe, data: Data, bench: Bench) -> float:
    """Of the training of one trial (its evaluations come on top)."""
    encoded = encode(data, recipe)
    model, _ = load_model(recipe, encoded.task, 0)
    every = dict(model.named_parameters())
    multiplied = sum(p.numel() for name, p in every.items() if "embeddings" not in name)
    split = encoded.splits["train"]
    steps = recipe.planned_steps(-(-len(split) // recipe.batch_size))
    tokens = float(split.sizes.sum()) / len(split) * recipe.batch_size
    optimizer = 28 * sum(p.numel() for p in every.values()) / bench.bytes
    return steps * (6 * multiplied * tokens / bench.operations + optimizer)


def trainer_seconds(recipe: Recipe, data: Data, seed: int, folder: str, cpu: bool) -> float:
    encoded = encode(data, recipe)
    rows = {name: rows_for_trainer(encoded.splits[name]) for name in ("train", "validation")}
    if not cpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    model, _ = load_model(recipe, encoded.task, seed)
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=256,
        num_train_epochs=recipe.epochs or 1,
        learning_rate=recipe.lr,
        bf16=not cpu,
        use_cpu=cpu,
        seed=seed,
        eval_strategy="epoch",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    collator = DataCollatorWithPadding(encoded.encoder.tokenizer)
    made: Any = Trainer(model, arguments, collator, rows["train"], rows["validation"])  # type: ignore[arg-type]
    made.train()
    if not cpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--per-gpu", nargs="+", type=int, default=[1, 6, 12, 18])
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--window", type=int, default=20, help="trials that one rate is taken over")
    parser.add_argument("--trainers", type=int, default=3, help="runs of Trainer, spread between the studies")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--rows", type=int, help="limit rows, to try it out")
    options = parser.parse_args()
    cpu = not torch.cuda.is_available()
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = task_of(folder) | (
            {"limit": {"train": options.rows, "validation": options.rows}} if options.rows else {}
        )
        base = {
            "model": model_directory(folder / "model"),
            "epochs": options.epochs,
            "batch_size": 32,
            "evaluations": 3,
            "lr": 5e-5,
            "precision": "fp32" if cpu else "bf16",
        }
        spec = {"study": "Throughput", "base": base, "tasks": {"RTE": task}, "variants": {"standard": {}}}
        recipe = Recipe.from_data({**base, "methods": []})
        data = StudyTask.from_data(task).load(folder)
        times: list[float] = []
        rates: dict[int, dict[str, Any]] = {}
        floor = floor_seconds(recipe, data, Bench("cpu" if cpu else "cuda", 3, eager=False))
        first = trainer_seconds(recipe, data, 0, place, cpu)
        for number, per_gpu in enumerate(options.per_gpu):
            rate = rates[per_gpu] = study_rate(
                folder, spec, f"study-{per_gpu}", per_gpu, options.seeds, min(options.window, options.seeds)
            )
            print(f"{per_gpu} at a time: {rate['per_minute']:.1f} trials a minute", flush=True)
            if number < options.trainers:
                times.append(trainer_seconds(recipe, data, number, place, cpu))
                print(f"Trainer: {times[-1]:.2f} s for one", flush=True)
    loop = 60 / statistics.median(times or [first])
    each = ", ".join(f"{seconds:.2f}" for seconds in times)
    print(
        f"\nTrainer, one after another: {loop:.1f} trials a minute ({each} s each; the first, not counted, {first:.2f})"
    )
    print(
        f"{'at a time':>9} {'trials/min':>11} {'±':>6} {'over Trainer':>13} {'over floor':>11} "
        f"{'from the first claim':>21} {'study, s':>9}"
    )
    for per_gpu, rate in rates.items():
        around = f"{100 * spread(rate['windows']):5.1f}%" if len(rate["windows"]) > 1 else f"{'':6}"
        print(
            f"{per_gpu:9} {rate['per_minute']:11.1f} {around} {rate['per_minute'] / loop:13.1f} "
            f"{60 / rate['per_minute'] / floor:11.1f} {rate['cold']:21.1f} {rate['with_start']:9.1f}"
        )
    print(
        "\nIn the way of the floor: short kernels, processes that take turns on the GPU, what a trial does before and"
    )
    print("after its steps (loading, recording, evaluations), and Python, which one thread of a process has at a time.")
    best = max(rate["per_minute"] for rate in rates.values())
    result = {"trials_over_trainer": best / loop, "trainer_per_minute": loop, "machine": machine()}
    result |= {"per_minute": {str(k): rate["per_minute"] for k, rate in rates.items()}}
    result |= {"windows": {str(k): rate["windows"] for k, rate in rates.items()}, "floor_seconds": floor}
    result |= {"per_minute_cold": {str(k): rate["cold"] for k, rate in rates.items()}, "trainer_first": first}
    finish(result, options.json)


if __name__ == "__main__":
    main()
