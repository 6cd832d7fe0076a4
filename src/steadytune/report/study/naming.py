"""Names from study files, made fit to be shown: no control characters, and not longer than there is room for."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from steadytune.report.words import METRIC_NAMES, number

# What no terminal, SVG or page should be handed: control characters, lone surrogates, what XML forbids, and the marks
# that turn the direction of all text around them.
_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]+"
)
WIDTH = 60


def clean(text: object) -> str:
    """The text on one line, without characters that act instead of being seen."""
    return _UNFIT.sub(" ", str(text)).strip() or "(no name)"


def short(text: object, width: int = WIDTH) -> str:
    """`clean`, with the middle left out where it is too long: beginnings and ends tell names apart."""
    whole = clean(str(text)[: 4 * width] + str(text)[-4 * width :] if len(str(text)) > 8 * width else text)
    if len(whole) <= width:
        return whole
    head = width // 2
    return whole[:head].rstrip() + "…" + whole[len(whole) - (width - 1 - head) :].lstrip()


def short_names(names: Iterable[str], width: int = WIDTH) -> dict[str, str]:
    """name -> what is shown for it; two names never look the same."""
    shown: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        candidate, count = short(name, width), 1
        while candidate in taken:
            count += 1
            candidate = f"{short(name, width - 3 - len(str(count)))} ({count})"
        shown[name] = candidate
        taken.add(candidate)
    return shown


def in_lines(names: Iterable[str], width: int, most: int = 3) -> dict[str, str]:
    """`short_names`, but a longer name is broken into up to `most` lines of that width where it has places for it."""
    every = list(names)
    whole, shorter = short_names(every, most * width), short_names(every, width)
    return {name: _broken(whole[name], width, most) or shorter[name] for name in every}


def _broken(text: str, width: int, most: int) -> str:
    """Empty where it does not fit."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    fits = len(lines) <= most and all(len(line) <= width for line in lines)
    return "\n".join(lines) if fits else ""


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, clean(metric.replace("_", " ")))


def spread(mean: float | None, std: float | None) -> str:
    """`0.712 ± 0.021`, both with the digits of the mean; without the second part for a single run."""
    if mean is None or std is None:
        return number(mean)
    return f"{number(mean)} ± {std:.{3 if abs(mean) < 10 else 2}f}"


def signed(value: float | None) -> str:
    """`+0.021`, `−0.004`."""
    if value is None:
        return number(value)
    digits = number(abs(value))
    return digits if not digits.strip("0.") else ("+" if value > 0 else "−") + digits


def p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def count_of(count: int, total: int) -> str:
    return f"{count:,} of {total:,}"


def listed(items: Sequence[str], most: int = 6) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 4 more`; with semicolons between items that have commas inside."""
    shown = list(items) if len(items) <= most else [*items[: most - 1], f"{len(items) - most + 1} more"]
    if len(shown) < 2:
        return "".join(shown)
    return ("; " if any("," in item for item in shown) else ", ").join(shown[:-1]) + " and " + shown[-1]
