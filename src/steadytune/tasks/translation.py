"""Translation and summarisation: pairs of texts, from line-aligned files or a table (R9, R10).

    data = translation.load("multi30k", source="en", target="de")      # train.en, train.de, val.en, ...
    data = translation.load("deu-eng.zip", source="en", target="de", columns=("en", "de"))   # two columns, no header
    data = translation.load("news.jsonl", source="article", target="highlights", kind="summarization")

Metrics: `bleu` (sacreBLEU) and `tokenized_bleu` (multi-bleu), `rouge_1`, `rouge_2`, `rouge_l`, `rouge_lsum`.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks.base import PART_NAMES, Data, Kind, Rows, Source, Task
from steadytune.tasks.files import Chunk, Format, read_rows
from steadytune.tasks.lines import MAX_CELL, plain_lines
from steadytune.tasks.metrics import DEFAULT_METRIC
from steadytune.tasks.text import as_texts, cut, finish

Place = str | Path


def load(
    path: Place,
    *,
    source: str,
    target: str,
    kind: Kind = "translation",
    columns: Sequence[str] | None = None,
    validation: Place | float | None = 0.05,
    test: Place | float | None = 0.05,
    metric: str | None = None,
    split: int = 0,
    name: str | None = None,
) -> Data:
    """Pairs from a folder of line-aligned files `train.<source>` and `train.<target>` (with val or valid or dev, and
    test or one test_*), or from a table with columns `source` and `target`.

    columns: the column names of a table without a header line. validation, test: a table or folder prefix of their own
    (`"test_2016_flickr"`), a fraction of train where the folder has none, or None. Equal sources stay in one split.
    """
    if kind not in ("translation", "summarization"):
        raise SteadytuneError(f"Pairs of texts are a translation or a summarization task, not {kind}.")
    path = Path(path)
    wanted: dict[str, Place | float | None] = {"train": path, "validation": validation, "test": test}
    found: dict[str, Rows] = {}
    for part, place in wanted.items():
        if path.is_dir():
            prefix = _prefix(path, part, place if isinstance(place, (str, Path)) and part != "train" else None, source)
            if prefix is not None and place is not None:
                found[part] = aligned(f"{prefix}.{source}", f"{prefix}.{target}")
        elif isinstance(place, (str, Path)):
            # Two columns without a header are what corpora ship: never quoted there, and any third column is a note.
            format = Format(quoted=False if columns else None, header=tuple(columns) if columns else None)
            found[part] = _pairs(read_rows(place, (source, target), format=format))
    if "train" not in found:
        raise SteadytuneError(f"{path} holds no train.{source} with train.{target}.")
    task = Task(name or path.stem, kind, metric or DEFAULT_METRIC[kind], (), (source,), target)
    return finish(task, cut(found, wanted, split))


def aligned(source: Place, target: Place) -> Rows:
    """Rows from two files whose lines belong together."""
    sources: list[tuple[str, ...]] = []
    targets: list[str] = []
    for first, second in itertools.zip_longest(plain_lines(source, 4 * MAX_CELL), plain_lines(target, 4 * MAX_CELL)):
        if first is None or second is None:
            short, long, row = (source, target, second) if first is None else (target, source, first)
            raise SteadytuneError(f"{short} ends after row {row[0] - 1} but {long} goes on; their lines should match.")
        sources.append((first[1],))
        targets.append(second[1])
    if not sources:
        raise SteadytuneError(f"{source} is empty.")
    return Rows(
        Source(f"{source} and {Path(target).name}", np.arange(1, len(sources) + 1)), texts=sources, targets=targets
    )


def _pairs(chunk: Chunk) -> Rows:
    texts = as_texts(chunk, 2)
    numbers = np.array(chunk.numbers, dtype=np.int64)
    return Rows(Source(chunk.file, numbers), texts=[(pair[0],) for pair in texts], targets=[pair[1] for pair in texts])


def _prefix(directory: Path, part: str, given: Place | None, suffix: str) -> Path | None:
    """The path without language of a split's files in a directory."""
    if given is not None:
        return directory / given
    for stem in PART_NAMES[part]:
        if (directory / f"{stem}.{suffix}").exists():
            return directory / stem
    others = [file for stem in PART_NAMES[part] for file in sorted(directory.glob(f"{stem}[._-]*.{suffix}"))]
    if len(others) > 1:
        names = ", ".join(file.stem for file in others)
        raise SteadytuneError(
            f"{directory} holds several {part} files ({names}); say which, for example {part}={others[0].stem!r}."
        )
    return others[0].with_suffix("") if others else None
