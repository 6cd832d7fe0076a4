"""Predict with a fitted model: some texts, or a file larger than memory.

    predict("reviews-fit", ["a text", "another"])                              # a list of Prediction
    predict_file("reviews-fit", "new.csv", "out.csv", text="text")              # streams; returns how many rows

A file is read, tokenised, predicted and written a few hundred rows at a time, so memory does not grow with it. Output
appears under its name only when it is complete: it is written beside it and renamed.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from steadytune.errors import SteadytuneError
from steadytune.tasks.files import AUTO, DELIMITED, Format, column_names, find_columns, iter_rows
from steadytune.tasks.lines import suffix_of
from steadytune.tasks.text import as_texts
from steadytune.trained import Trained, load_trained

CHUNK = 512  # rows in memory at a time: enough to sort by length, little even where texts are long
FORMATS = ("csv", "jsonl")


@dataclass(frozen=True)
class Prediction:
    """What the model says about one row. `probabilities` is empty for a number."""

    value: str | float  # the class with the highest probability, or the number
    probabilities: dict[str, float]


def predict(
    model: str | Path | Trained,
    texts: Sequence[str | Sequence[str]],
    *,
    max_length: int | None = None,
    device: str | None = None,
) -> list[Prediction]:
    """Predictions for texts (or pairs of texts), in their order."""
    trained = model if isinstance(model, Trained) else load_trained(model, device=device, max_length=max_length)
    return _predictions(trained, [(text,) if isinstance(text, str) else tuple(text) for text in texts])


def predict_file(
    model: str | Path | Trained,
    file: str | Path,
    out: str | Path | TextIO,
    *,
    text: str | Sequence[str] | None = None,
    keep: Sequence[str] | None = None,
    format: str | None = None,
    read: Format = AUTO,
    part: str | None = None,
    max_length: int | None = None,
    device: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Writes a prediction for every row of `file` to `out`, as CSV or JSONL; returns the number of rows.

    text: the columns the texts are in; by default those that the model was trained on. keep: columns to carry over; by
    default all of a CSV or TSV file, and the text columns of others. Each row keeps its number in the file.
    """
    given = () if text is None else (text,) if isinstance(text, str) else tuple(text)
    form = _format(out, format)
    _check_place(out, file)
    names = column_names(file, read, part)
    trained = model if isinstance(model, Trained) else load_trained(model, device=device, max_length=max_length)
    texts = given or trained.text_columns or ("text",)
    if keep is None:
        keep = names if suffix_of(file) in DELIMITED else texts
    columns = list(dict.fromkeys((*texts, *keep)))
    find_columns(file, names, columns)  # before a header is written
    rows = 0
    with _opened(out) as stream:
        write = _csv_writer(stream, trained, keep) if form == "csv" else _jsonl_writer(stream)
        for chunk in iter_rows(file, columns, chunk=CHUNK, format=read, part=part):
            if chunk.numbers:
                found = _predictions(trained, as_texts(chunk, len(texts)))
                for number, cells, made in zip(chunk.numbers, chunk.cells, found):
                    kept = dict(zip(columns, cells))
                    write(number, {name: kept[name] for name in keep}, made)
            rows += len(chunk.numbers)
            if progress is not None:
                progress(len(chunk.numbers))
    return rows


def _predictions(trained: Trained, texts: Sequence[Sequence[str]]) -> list[Prediction]:
    if not texts:
        return []
    made = trained.predict(texts)
    if made.probabilities is None:
        return [Prediction(float(value), {}) for value in made.values]
    return [
        Prediction(trained.labels[int(value)], dict(zip(trained.labels, row.tolist())))
        for value, row in zip(made.values, made.probabilities)
    ]


def predict_command(
    model: str,
    file: str,
    out: Path | TextIO,
    *,
    text: Sequence[str] | None,
    keep: Sequence[str] | None,
    format: str | None,
    max_length: int | None,
    device: str | None,
    skip_ragged: bool,
    quiet: bool,
    trust_remote_code: bool,
) -> None:
    """`steadytune predict`: the same with a count on the terminal while it runs."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    read = Format(skip_ragged=True) if skip_ragged else AUTO
    _format(out, format)
    _check_place(out, file)
    find_columns(file, column_names(file, read), (*(text or ()), *(keep or ())))  # refused before the model is loaded
    trained = load_trained(model, device=device, max_length=max_length, trust_remote_code=trust_remote_code)
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        line = bar.add_task("", total=None)
        rows = predict_file(
            trained,
            file,
            out,
            text=text,
            keep=keep,
            format=format,
            read=read,
            progress=lambda done: bar.advance(line, done),
        )
    if not quiet and isinstance(out, Path):
        console.print(f"{rows:,} rows predicted: {out}", markup=False, highlight=False)


# --- writing

Write = Callable[[int, dict[str, Any], Prediction], None]


def csv_names(kept: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The header: row, the kept columns, prediction, probabilities. A kept column that is called like one of ours gets
    `input:` before its name."""
    ours = ["row", "prediction", *(f"probability:{label}" for label in labels)]
    return ["row", *(f"input:{name}" if name in ours else name for name in kept), *ours[1:]]


def _csv_writer(stream: TextIO, trained: Trained, keep: Sequence[str]) -> Write:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(csv_names(keep, trained.labels))

    def write(number: int, kept: dict[str, Any], made: Prediction) -> None:
        scores = [f"{value:.6g}" for value in made.probabilities.values()]
        value = made.value if isinstance(made.value, str) else f"{made.value:.6g}"
        writer.writerow([number, *kept.values(), value, *scores])

    return write


def _jsonl_writer(stream: TextIO) -> Write:
    def write(number: int, kept: dict[str, Any], made: Prediction) -> None:
        row: dict[str, Any] = {"row": number, "input": kept, "prediction": made.value}
        if made.probabilities:
            row["probabilities"] = {name: round(value, 8) for name, value in made.probabilities.items()}
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write


def _format(out: str | Path | TextIO, asked: str | None) -> str:
    suffix = Path(out).suffix.lower().lstrip(".") if isinstance(out, (str, Path)) else ""
    found = asked or {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(suffix, "" if suffix else "csv")
    if found not in FORMATS:
        raise SteadytuneError(f"{out}: predictions are written as .csv or .jsonl; say which with --format.")
    return found


def _check_place(out: str | Path | TextIO, source: str | Path) -> None:
    """Before anything is loaded."""
    if not isinstance(out, (str, Path)):
        return
    path = Path(out)
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise SteadytuneError(f"{path} is the file that is read; write the predictions to another one.")
    if path.is_dir():
        raise SteadytuneError(f"{path} is a directory; name a file, such as {path / 'predictions.csv'}.")
    if not path.parent.is_dir():
        raise SteadytuneError(f"{path}: there is no directory {path.parent}. Make it, or name another.")


@contextmanager
def _opened(out: str | Path | TextIO) -> Iterator[TextIO]:
    """The stream itself, or a file that gets its name when all is written."""
    if not isinstance(out, (str, Path)):
        yield out
        return
    path = Path(out)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(hidden, "w", encoding="utf-8", newline="") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(hidden, path)
    except OSError as error:
        raise SteadytuneError(f"{path} could not be written: {error.strerror or error}.") from error
    finally:
        hidden.unlink(missing_ok=True)
