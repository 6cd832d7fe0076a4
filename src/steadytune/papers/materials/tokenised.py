"""Texts made ready as the papers have them: parallel lines tokenised and in small letters, headings as summaries."""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from steadytune.errors import SteadytuneError
from steadytune.tasks.language_model import MAX_LINE
from steadytune.tasks.lines import plain_lines
from steadytune.tasks.translation import aligned

_TOKEN = re.compile(r"\w+(?:['’]\w+)?|[^\w\s]")
_HEADING = re.compile(r"^ ?(=( =)*) (.+?) \1 ?$")
_PARTS = {"train": ("train",), "val": ("val", "valid", "dev"), "test": ("test", "test_2016_flickr")}
_UNKNOWN = "<unk>"
MOST_WORDS = 80  # of a paragraph whose heading is to be found


def tokenised(text: str) -> str:
    """Words and punctuation apart, small letters: what multi-bleu expects, and how IWSLT14 De-En is prepared."""
    return " ".join(_TOKEN.findall(text.lower()))


def write_pairs(source: Path, target: Path, languages: tuple[str, str], ready: bool) -> None:
    """`train`, `val` and `test` of both languages, as `target/train.de` and so on. `ready` texts are copied as is.

    Nothing is written of files that do not belong together: what is made once would stay after they are put right.
    """
    made = {part: aligned(*_files(source, part, languages)) for part in _PARTS}
    target.mkdir(parents=True)
    for part, rows in made.items():
        assert rows.targets is not None
        for language, lines in zip(languages, ([text for (text,) in rows.texts], rows.targets)):
            kept = lines if ready else [tokenised(line) for line in lines]
            (target / f"{part}.{language}").write_text("\n".join(kept) + "\n", encoding="utf-8")


def _files(source: Path, part: str, languages: tuple[str, str]) -> list[Path]:
    """The files of a part, one a language."""
    found = _named(source, part, languages)
    for file in found:
        if not file.is_file():
            raise SteadytuneError(
                f"{source} has no {file.name}: parallel lines in train, valid and test files are needed."
            )
    return found


def _named(source: Path, part: str, languages: tuple[str, str]) -> list[Path]:
    names = _PARTS[part]
    stem = next((name for name in names if (source / f"{name}.{languages[0]}").is_file()), names[0])
    return [source / f"{stem}.{language}" for language in languages]


def parallel_texts(source: Path, languages: tuple[str, str]) -> list[Path]:
    """The files that `write_pairs` reads, whether they are there or not."""
    return [file for part in _PARTS for file in _named(source, part, languages)]


def wikitext(source: Path) -> list[Path]:
    """The files that `write_headlines` reads, there or not, gzipped or not."""
    return [source / f"{part}.txt" for part in ("train", "valid", "test")]


def said_by(files: Iterable[Path]) -> str:
    """sha256 of the lines of these files; nothing where one of them is not there (any more)."""
    digest = hashlib.sha256()
    for file in files:
        if not file.is_file() and not file.with_name(file.name + ".gz").is_file():
            return ""
        for line in lines_of(file):
            digest.update(f"{line}\n".encode())
        digest.update(b"\0")
    return digest.hexdigest()


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, gzipped or not, without their newlines."""
    found = next((each for each in (path, path.with_name(path.name + ".gz")) if each.is_file()), None)
    if found is None:
        raise SteadytuneError(f"{path} does not exist, nor does {path.name}.gz.")
    for _, text in plain_lines(found, MAX_LINE):
        yield text


def write_headlines(source: Path, target: Path, times: int = 1) -> None:
    """WikiText's first paragraphs of sections with their headings, as tables of texts and summaries.

    Only headings that the training text has so many times; none with `<unk>`, which nobody can find in a paragraph.
    """
    pairs = {file.stem: list(_headlines(file)) for file in wikitext(source)}
    known = Counter(heading for _, heading in pairs["train"])
    target.mkdir(parents=True)
    for part, found in pairs.items():
        with open(target / f"{part}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("text", "heading"))
            writer.writerows(pair for pair in found if known[pair[1]] >= times)


def _headlines(path: Path) -> Iterator[tuple[str, str]]:
    """(first paragraph, heading) of each section."""
    heading = ""
    for line in lines_of(path):
        match = _HEADING.match(line)
        if match:
            heading = match[3]
        elif line.strip() and heading:
            if _UNKNOWN not in heading:
                yield " ".join(line.split()[:MOST_WORDS]), heading
            heading = ""
