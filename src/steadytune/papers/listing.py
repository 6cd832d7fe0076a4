"""`steadytune paper list`: every table and figure, what it shows, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue import PAPERS, find
from steadytune.papers.cost import cost
from steadytune.papers.experiments import EXPERIMENTS
from steadytune.papers.settings import SCALES
from steadytune.strict import nearest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

_WIDE = 120  # characters: there is room for a column of what items show
_ABOUT = (
    "Runs, and rough time on one H200, one run after another: several at a time (--per-gpu) take a fourth of it, two "
    "CPU cores ten to fifty times as long (--task runs some of the datasets). An item's studies are shared: what "
    "another item has run is not run again. full: the paper's set-up; small: the same on a small encoder; "
    "smoke: a test."
)


def chosen(papers: Sequence[str]) -> list[str]:
    """The ids of these papers, or these ids."""
    for name in papers:
        if name not in PAPERS and name not in EXPERIMENTS:
            known = [*PAPERS, *EXPERIMENTS]
            raise SteadytuneError(f"There is no paper or item {name!r}. {nearest(name, known)}")
    return [id for id in EXPERIMENTS if not papers or id in papers or find(id).paper in papers]


def as_data(papers: Sequence[str]) -> list[dict[str, object]]:
    """One entry per item, with its cost at each scale."""
    made: list[dict[str, object]] = []
    for id in chosen(papers):
        item = find(id)
        costs = {scale: cost(EXPERIMENTS[id], scale) for scale in SCALES}
        spent = {scale: {"runs": each.trials, "seconds": round(each.seconds)} for scale, each in costs.items()}
        made.append(
            {"id": id, "number": item.number, "title": item.title, "items": list(item.items)}
            | {"claims": len(item.claims), "cost": spent}
        )
    return made


def print_list(papers: Sequence[str], *, as_json: bool) -> None:
    found = as_data(papers)
    if as_json:
        print(json.dumps(found))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    beside = console.width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("id", no_wrap=True)
    if beside:
        table.add_column("shows", overflow="fold")
    for scale in SCALES:
        table.add_column(scale, justify="right", no_wrap=True)
    for each in found:
        id, title = str(each["id"]), Text(str(each["title"]))
        table.add_row(
            Text(id), *([title] if beside else []), *(cost(EXPERIMENTS[id], scale).words() for scale in SCALES)
        )
    if beside:
        console.print(table)
    else:
        _print_folded(console, table, [str(each["title"]) for each in found])
    console.print(f"\n{_ABOUT}", style="dim", highlight=False)


def _print_folded(console: Console, table: Table, titles: Sequence[str]) -> None:
    """Where there is no room beside them, what an item shows stands below its costs."""
    from rich.padding import Padding
    from rich.text import Text

    # A terminal may be narrower still: its own line breaks leave an id whole, which can be typed again.
    options = console.options.update_width(_WIDE)
    head, *rows = console.render_lines(table, options, pad=False)
    console.print(_line(head), soft_wrap=True)
    for row, title in zip(rows, titles, strict=True):
        console.print(_line(row), soft_wrap=True)
        console.print(Padding(Text(title, style="dim"), (0, 0, 0, 4)))


def _line(segments: Sequence[Segment]) -> Text:
    from rich.text import Text

    return Text.assemble(*((each.text, each.style or "") for each in segments))
