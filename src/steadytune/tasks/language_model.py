"""Language modelling from plain text, txt or txt.gz (R11).

    data = language_model.load("wikitext-2")        # train, valid or val or dev, test .txt or .txt.gz
    data = language_model.load("book.txt")          # its end validates and tests: text has an order

A row is a line, blank ones too, without its newline: the text is "\\n".join of the rows, and the engine cuts it into
blocks. The metric is perplexity. Duplicates and leaks count lines of at least ten words: headings recur, sentences
should not.
"""

from pathlib import Path

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.tasks import checks
from steadytune.tasks.base import SPLITS, Data, Rows, Source, Task
from steadytune.tasks.baselines import compute
from steadytune.tasks.files import find_part
from steadytune.tasks.lines import plain_lines
from steadytune.tasks.splits import size

MAX_LINE = 2**30  # bytes: some corpora are one line
_SENTENCE = 10  # words


def load(
    path: str | Path, *, validation: float | None = 0.05, test: float | None = 0.05, name: str | None = None
) -> Data:
    """A folder with train, valid and test texts, or one file cut in order into train, validation, test."""
    path = Path(path)
    if not path.exists():
        raise SteadytuneError(f"{path} does not exist.")
    if path.is_dir():
        files = {part: find_part(path, part, (".txt",)) for part in SPLITS}
        found = {part: read(file) for part, file in files.items() if file is not None}
        if "train" not in found:
            raise SteadytuneError(f"{path} holds no train.txt or train.txt.gz.")
    else:
        found = {"train": read(path)}
    found = _cut(found, {"validation": validation, "test": test})
    prose = {
        part: rows.take([i for i, t in enumerate(rows.texts) if len(t[0].split()) >= _SENTENCE])
        for part, rows in found.items()
    }
    task = Task(name or path.name.split(".")[0], "language-model", "perplexity", (), ("text",))
    return Data(
        task, found["train"], found.get("validation"), found.get("test"), checks.examine(prose), compute(task, found)
    )


def read(path: str | Path) -> Rows:
    """The lines of a text file."""
    texts: list[tuple[str, ...]] = [(text,) for _, text in plain_lines(path, MAX_LINE)]
    if not any(text.strip() for (text,) in texts):
        raise SteadytuneError(f"{path} is empty.")
    return Rows(Source(str(path), np.arange(1, len(texts) + 1)), texts=texts)


def _cut(found: dict[str, Rows], fractions: dict[str, float | None]) -> dict[str, Rows]:
    """Takes missing splits from the end of train: ... train ... | validation | test."""
    whole = found["train"]
    end = len(whole)
    result = dict(found)
    for part in ("test", "validation"):
        fraction = fractions[part]
        if part in found:
            if fraction is None:
                del result[part]
        elif fraction:
            start = end - size(len(whole), fraction, part)
            if start < 1:
                raise SteadytuneError(
                    f"{whole.source.file} has {len(whole)} lines, too few to take a {part} split from."
                )
            result[part] = whole.take(np.arange(start, end))
            end = start
    result["train"] = whole if end == len(whole) else whole.take(np.arange(end))
    return {part: result[part] for part in SPLITS if part in result}
