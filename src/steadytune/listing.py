"""`steadytune methods`: what there is, from the classes themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from steadytune.methods import all_methods


def methods_as_data() -> list[dict[str, Any]]:
    """Every method: name, class, place, paper, items of the acceptance list, defaults, and one line of what it does."""
    return [
        {
            "name": name,
            "class": cls.__name__,
            "place": cls.place,
            "paper": cls.paper.text,
            "url": cls.paper.url,
            "items": cls.items,
            "defaults": {field.name: field.default for field in dataclasses.fields(cls)},  # type: ignore[arg-type]
            "about": (cls.__doc__ or "").strip().splitlines()[0],
        }
        for name, cls in all_methods().items()
    ]


def print_methods() -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("method", "place", "what it does", "defaults", "paper"):
        table.add_column(column, overflow="fold", no_wrap=column in ("method", "place"))
    for row in methods_as_data():
        defaults = ", ".join(f"{key}={value!r}" for key, value in row["defaults"].items())
        table.add_row(
            row["class"], row["place"], row["about"], defaults, row["paper"].split(".")[0] + _year(row["paper"])
        )
    Console().print(table)


def _year(citation: str) -> str:
    return f" {citation.rstrip('.')[-4:]}"
