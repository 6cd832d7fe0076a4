"""What a fit leaves behind, and the directory it is left in.

    OUT/fit.json          everything about the fit, for machines; written first, so that a directory says whose it is
        model/            the kept model in plain Hugging Face format, with README.md (the card) and steadytune.json
        predictions.csv   the kept model on the test rows
        report.html       one page for people
        runs/seed-K/      checkpoints and records of each run

Every file and directory appears under its name only when it is complete.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from steadytune.engine.encode import Encoded
from steadytune.engine.evaluate import Predictions
from steadytune.errors import SteadytuneError
from steadytune.fitting.plan import Plan
from steadytune.fitting.seeds import Kept
from steadytune.locks import held
from steadytune.models import load_pixels, quiet
from steadytune.report.card import make_card
from steadytune.report.page import make_page
from steadytune.report.record import SCHEMA, FitRecord
from steadytune.tasks.base import Rows, Task
from steadytune.trained import FACTS

RECORD, MODEL, PREDICTIONS, PAGE, RUNS, LOCK = "fit.json", "model", "predictions.csv", "report.html", "runs", ".lock"
CARD = "README.md"
OURS = (RECORD, MODEL, PREDICTIONS, PAGE, RUNS, LOCK)


def check_out(out: Path, record: FitRecord, fresh: bool) -> None:
    """Refuse a directory that cannot be written, or that holds something else. Touches nothing."""
    _check_writable(out)
    if not out.exists() or (fresh and (out / RECORD).is_file()):
        return
    others = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    if not others:
        return
    before = read_record(out)
    if before is None:
        raise SteadytuneError(
            f"{out} is not empty ({', '.join(others[:3])}) and holds no fit; name an empty or new directory with --out."
        )
    if before["fingerprint"] != record.fingerprint:
        raise SteadytuneError(
            f"{out} holds a fit on other rows ({_rows(before)}; now {_rows(record.to_data())}). Start anew with "
            "--fresh, or name another directory with --out."
        )
    if before["recipe_key"] != record.recipe_key:
        raise SteadytuneError(
            f"{out} holds a fit with another recipe ({_difference(before['recipe'], record.recipe)}). Start anew with "
            "--fresh, or name another directory with --out."
        )


def clear_(out: Path) -> None:
    """Take away an earlier fit, and nothing else."""
    if not (out / RECORD).is_file():
        return
    for name in (*OURS[1:], RECORD):  # the record goes last: a kill in between leaves a directory that is still ours
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif name != LOCK:  # this process holds it
            path.unlink(missing_ok=True)


def read_record(out: Path) -> dict[str, Any] | None:
    """What fit.json says, or None where there is none."""
    path = out / RECORD
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] == SCHEMA:
            return dict(found)
    except (ValueError, KeyError, TypeError) as error:
        raise SteadytuneError(f"{path} is damaged: {error!r}. Start anew with --fresh.") from error
    raise SteadytuneError(f"{path} was written by another version ({found['schema']!r}). Start anew with --fresh.")


@contextmanager
def locked(out: Path, first: bool = True) -> Iterator[None]:
    """One fit at a time works in a directory; of its processes the first one holds the lock."""
    new = not out.exists()
    with ExitStack() as stack:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            if first:
                busy = f"Another fit is at work in {out}; wait for it, or name another --out."
                stack.enter_context(held(out / LOCK, busy))
        try:
            yield
        finally:
            if first and new and [path.name for path in out.iterdir()] == [LOCK]:  # nothing came of it
                shutil.rmtree(out, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What goes wrong with the disk, as a sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise SteadytuneError(
            f"{path} could not be written: {why}. What was there before is as it was; make room or name another "
            "directory, then run the same command again."
        ) from error


def write_text(path: Path, text: str) -> None:
    """The whole text, or what was there before."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with open(hidden, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)


def with_date_of_first(out: Path, record: FitRecord) -> FitRecord:
    """A fit that goes on keeps the date it began."""
    before = read_record(out)
    return record if before is None else dataclasses.replace(record, created=str(before["created"]))


def write_page(out: Path, record: FitRecord) -> None:
    write_text(out / PAGE, make_page(record))


def write_results(out: Path, record: FitRecord, plan: Plan, encoded: Encoded, kept: Kept) -> None:
    """The model with its card, the predictions on test, and the page."""
    with new_directory(out / MODEL) as folder:
        with quiet():
            kept.model.to("cpu").save_pretrained(folder)  # type: ignore[operator]
            if encoded.encoder.tokenizer is not None:
                encoded.encoder.tokenizer.save_pretrained(folder)
            elif pixels := load_pixels(plan.recipe):
                (folder / "preprocessor_config.json").write_text(json.dumps(pixels, indent=1), encoding="utf-8")
        facts = {"task": plan.data.task.as_dict(), "max_length": encoded.encoder.max_length}
        (folder / FACTS).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / CARD).write_text(make_card(record), encoding="utf-8")
    if plan.data.test is not None and plan.data.task.kind != "language-model":
        write_text(out / PREDICTIONS, predictions_csv(plan.data.task, plan.data.test, kept.result.predictions["test"]))
    write_page(out, record)


def write_record(out: Path, record: FitRecord) -> None:
    write_text(out / RECORD, json.dumps(record.to_data(), indent=1, ensure_ascii=False) + "\n")


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes the place of `path` when the block ends well, and is gone when it does not."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    with writing(path):
        try:
            hidden.mkdir(parents=True)
            yield hidden
            if path.exists():
                os.rename(path, old)
            os.rename(hidden, path)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def predictions_csv(task: Task, rows: Rows, made: Predictions) -> str:
    """row, label, prediction, probabilities, then the texts. A text column called like one of ours gets `input:`."""
    ours = ["row", "label", "prediction"]
    ours += [f"probability:{label}" for label in task.labels] if made.probabilities is not None else []
    columns = task.text_columns if len(rows.texts) else ()
    truth: Any = rows.targets if rows.targets is not None else rows.labels
    name = (lambda value: task.labels[int(value)]) if task.labels else (lambda value: value)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*ours, *(f"input:{column}" if column in ours else column for column in columns)])
    for i, number in enumerate(rows.source.numbers):
        scores = [] if made.probabilities is None else [f"{value:.6g}" for value in made.probabilities[i]]
        where = int(number) if rows.source.names is None else rows.source.names[i]
        writer.writerow([where, name(truth[i]), name(made.values[i]), *scores, *(rows.texts[i] if columns else ())])
    return stream.getvalue()


def _check_writable(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise SteadytuneError(f"{out} is a file; name a directory with --out.")
    near = out
    while not near.exists():
        near = near.parent
    if not near.is_dir() or not os.access(near, os.W_OK | os.X_OK):
        raise SteadytuneError(f"{out} cannot be written: {near} does not allow it. Name another directory with --out.")


def _rows(data: dict[str, Any]) -> str:
    return ", ".join(f"{split['rows']} {split['name']}" for split in data["splits"])


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    told = []
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            told.append(f"{key} {_short(before.get(key))}, now {_short(now.get(key))}")
    return "; ".join(told)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "..."
