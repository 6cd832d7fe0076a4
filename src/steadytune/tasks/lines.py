"""Bytes to lines of text: the bottom of every text reader here. Bounded memory, line numbers, and exact complaints.

A line ends at "\\n" only (a "\\r" before it is part of the line's end). `str.splitlines` and friends also break at
U+2028, U+0085 or form feeds, which stand inside real sentences: line-aligned files would shift by one without a word.
"""

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from steadytune.errors import SteadytuneError
from steadytune.tasks.base import at

MAX_LINE = (
    64 * 2**20
)  # bytes; a longer line means a damaged or binary file, and would break the promise of bounded memory
MAX_CELL = 1_000_000  # characters; a novel. Nothing here is meant to read more in one row.
_PACKED = (".gz", ".zip")


class Line(NamedTuple):
    number: int  # 1-based
    text: str  # with its line end; bytes that are not UTF-8 stand as lone surrogates, and `damage` says where
    damage: str | None = None


def suffix_of(path: str | Path) -> str:
    """The suffix that says what is inside: .csv for reviews.csv and reviews.csv.gz, .txt for a zip that holds
    deu.txt."""
    path = Path(path)
    if path.suffix.lower() == ".gz":
        return path.with_suffix("").suffix.lower()
    if path.suffix.lower() == ".zip":
        with open_zip(path) as archive:
            return PurePosixPath(only_member(archive, path)).suffix.lower()
    return path.suffix.lower()


@contextmanager
def open_zip(path: str | Path) -> Iterator[zipfile.ZipFile]:
    """A zip, to be read in place: nothing is ever extracted, so names like ../../x are names and nothing more."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error) as error:
        raise SteadytuneError(f"{path} is not a whole zip file ({error}); download or copy it again.") from error


def hidden(name: str) -> bool:
    """Files that archives and file managers leave about, and notes such as _about.txt."""
    return any(part.startswith((".", "_")) and part != ".." for part in PurePosixPath(name).parts)


def only_member(archive: zipfile.ZipFile, path: str | Path) -> str:
    names = [info.filename for info in archive.infolist() if not info.is_dir() and not hidden(info.filename)]
    if len(names) != 1:
        shown = ", ".join(names[:5]) or "none"
        raise SteadytuneError(f"{path} should hold one data file and holds {len(names)} ({shown}); unpack it first.")
    return names[0]


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """A file, a gzip file, or the one data file in a zip."""
    path = Path(path)
    if path.is_dir():
        raise SteadytuneError(f"{path} is a directory; a file of rows is needed.")
    if not path.exists():
        raise SteadytuneError(
            f"{path} does not exist. If a dataset of the Hugging Face hub is meant, write hub:owner/name."
        )
    try:
        if path.suffix.lower() == ".zip":
            with open_zip(path) as archive, archive.open(only_member(archive, path)) as member:
                yield member
        elif path.suffix.lower() == ".gz":
            with gzip.open(path, "rb") as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            with open(path, "rb") as file:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise SteadytuneError(f"{path} is damaged ({error}); download or copy it again.") from error
    except OSError as error:
        raise SteadytuneError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_lines(path: str | Path, limit: int = MAX_LINE) -> Iterator[Line]:
    """Every line of a UTF-8 file (a BOM is dropped; the last newline may be missing). Bytes that are not UTF-8 do not
    raise here: the caller knows columns, so it can say more than the line."""
    with open_bytes(path) as file:
        offset = 0
        number = 0
        while raw := file.readline(limit + 1):
            number += 1
            if len(raw) > limit:
                raise SteadytuneError(f"{at(path, number)} is longer than {limit:,} bytes; is this a text file?")
            start = offset
            offset += len(raw)
            if number == 1:
                if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise SteadytuneError(f"{at(path, 1)}: the file is UTF-16; save it as UTF-8.")
                if raw.startswith(b"\xef\xbb\xbf"):
                    raw = raw[3:]
                    start += 3
                if b"\r" in raw.rstrip(b"\r\n") and not raw.endswith(b"\n"):
                    raise SteadytuneError(
                        f"{at(path, 1)}: lines end in bare carriage returns; save with \\n line ends."
                    )
            try:
                yield Line(number, raw.decode())
            except UnicodeDecodeError as error:
                damage = (
                    f"byte 0x{raw[error.start]:02x} at offset {start + error.start} (line {number}) is not UTF-8; "
                    f"save the file as UTF-8, for example: iconv -f cp1252 -t utf-8"
                )
                yield Line(number, raw.decode(errors="surrogateescape"), damage)


def strip_end(text: str) -> str:
    """A line without its line end."""
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith(("\n", "\r")) else text


def plain_lines(path: str | Path, limit: int = MAX_LINE) -> Iterator[tuple[int, str]]:
    """(line number, text without line end) of a file without columns; bytes that are not UTF-8 are refused."""
    for line in read_lines(path, limit):
        if line.damage:
            raise SteadytuneError(f"{at(path, line.number)}: {line.damage}.")
        yield line.number, strip_end(line.text)
