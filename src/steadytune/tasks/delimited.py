"""CSV and TSV, quoted or not, with the line number of every record.

Python's csv module is not used: it accepts `"a"b` silently as `ab`, has a global cell limit, and cannot say in which
column a quote was opened. A line without a quote character is just split, so this is also fast.

**Delimiter.** Tab for .tsv, .tab and .txt; for .csv the comma, unless the header has no comma outside quotes and does
have a semicolon (Excel in much of Europe) or a tab.

**Quoted or not.** CSV is quoted. For tab-separated files both habits are common (GLUE: never quoted, quotes are text;
spreadsheets: quoted), so the first megabyte decides:
1. no cell begins with a quote, or reading with quotes breaks down somewhere (text after a closing quote, a record with
   another number of cells than the header, a quote that never closes): not quoted;
2. reading without quotes gives ragged lines: quoted;
3. both readings work: quoted only if every cell that begins with a quote holds a doubled quote, as a writer that quotes
   only where it must would do, or stands in a column that is quoted in every row. A lone `"great film"` in an
   otherwise bare column is a sentence in quotation marks, and keeps them.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steadytune.errors import SteadytuneError
from steadytune.tasks.base import at
from steadytune.tasks.lines import MAX_LINE, Line, open_bytes, read_lines, strip_end, suffix_of

_SAMPLE = 2**20


@dataclass(frozen=True)
class Record:
    number: int  # the line it begins on
    cells: list[str]
    damage: str | None = None  # set when some cell holds bytes that are not UTF-8
    quoted: tuple[int, ...] = ()  # which cells stood in quotes


class BadQuote(SteadytuneError):
    """Quotes that do not pair up; the sniffer catches it, everyone else sees the sentence."""


def records(
    lines: Iterator[Line], file: object, delimiter: str, quoted: bool, header: Sequence[str] = ()
) -> Iterator[Record]:
    """Records from lines. Blank lines are skipped (a writer puts an empty single cell as `""`)."""
    cells: list[str] = []
    quoted_cells: list[int] = []
    open_cell: list[str] | None = None  # pieces of a quoted cell that runs over several lines
    number, size, damage = 0, 0, None
    for line in lines:
        text = line.text
        if open_cell is None:
            number, size, damage, cells, quoted_cells = line.number, 0, None, [], []
            bare = strip_end(text)
            if not bare:
                continue
            if not quoted or '"' not in text:
                yield Record(number, bare.split(delimiter), line.damage)
                continue
        damage = damage or line.damage
        size += len(text)
        if size > MAX_LINE:
            raise BadQuote(
                f"{_place(file, number, header, cells)}: the quote opened here does not close in {size:,} characters."
            )
        open_cell = _continue_record(text, delimiter, cells, quoted_cells, open_cell, (file, number, header))
        if open_cell is None:
            yield Record(number, cells, damage, tuple(quoted_cells))
    if open_cell is not None:
        raise BadQuote(
            f"{_place(file, number, header, cells)}: the quote opened here never closes. Double the quotes inside "
            "quoted cells, or say that the file is not quoted."
        )


def _continue_record(
    text: str,
    delimiter: str,
    cells: list[str],
    quoted_cells: list[int],
    open_cell: list[str] | None,
    where: tuple[object, int, Sequence[str]],
) -> list[str] | None:
    """Reads one line into `cells`; returns the pieces of the cell still open at its end, or None."""
    position = 0
    bare = strip_end(text)
    while True:
        if open_cell is None and bare.startswith('"', position):
            open_cell = []
            position += 1
        if open_cell is not None:
            close = position
            while (close := text.find('"', close)) >= 0 and text.startswith('"', close + 1):
                close += 2  # a doubled quote stands for one
            if close < 0:
                open_cell.append(text[position:])
                return open_cell
            open_cell.append(text[position:close])
            quoted_cells.append(len(cells))
            position = close + 1
            if position < len(bare) and not bare.startswith(delimiter, position):
                raise BadQuote(
                    f"{_place(*where, cells)}: text after a closing quote. Double the quotes inside quoted cells, or "
                    "say that the file is not quoted."
                )
            cells.append("".join(open_cell).replace('""', '"'))
            open_cell = None
        else:
            end = bare.find(delimiter, position)
            cells.append(bare[position:] if end < 0 else bare[position:end])
            position = len(bare) if end < 0 else end
        if position >= len(bare):
            return None
        position += len(delimiter)


def _place(file: object, number: int, header: Sequence[str], cells: list[str]) -> str:
    """The cell after those already read."""
    column = header[len(cells)] if len(cells) < len(header) else f"number {len(cells) + 1}"
    return at(file, number, column)


def find_delimiter(path: str | Path) -> str:
    if suffix_of(path) != ".csv":
        return "\t"
    header = re.sub(r'"[^"]*"', "", next(read_lines(path), Line(1, "")).text)  # a name in quotes may hold any of them
    if "," not in header:
        for other in (";", "\t"):
            if other in header:
                return other
    return ","


def find_quoted(path: str | Path, delimiter: str) -> bool:
    """The rule of the module's docstring."""
    if delimiter != "\t":
        return True
    with open_bytes(path) as file:
        sample = file.read(_SAMPLE)
        whole = not file.read(1)
    pieces = sample.decode("utf-8-sig", errors="replace").split("\n")
    if not whole:
        pieces = pieces[:-1]  # cut in the middle
    lines = [Line(number, text + "\n") for number, text in enumerate(filter(None, pieces), 1)]
    return sniff_quotes(lines, whole)


def sniff_quotes(lines: list[Line], whole: bool = True) -> bool:
    bare = [strip_end(line.text).split("\t") for line in lines]
    if not any(cell.startswith('"') for cells in bare for cell in cells):
        return False
    read: list[Record] = []
    reading = records(iter(lines), "sample", "\t", quoted=True)
    while True:
        try:
            read.append(next(reading))
        except StopIteration:
            break
        except BadQuote as error:
            if whole or "never closes" not in str(error):
                return False
            break  # the last record of a sample may be cut
    width = len(read[0].cells) if read else 0
    if not read or any(len(record.cells) != width for record in read):
        return False
    if any(len(cells) != len(bare[0]) for cells in bare):
        return True
    starts = [record.number for record in read] + ([len(lines) + 1] if whole else [])
    if any(later - earlier > 1 for earlier, later in itertools.pairwise(starts)):
        return False  # quotes on different lines that merely happen to pair up
    throughout = set.intersection(*(set(record.quoted) for record in (read[1:] or read)))
    return all(column in throughout or '"' in record.cells[column] for record in read for column in record.quoted)
