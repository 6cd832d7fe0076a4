"""A study with texts that a page can bear: nothing endless, nothing invisible.

Names and notes come from files that others wrote. Here, once, before anything is said or drawn about a study: names
become short ones (naming.py), in longer texts control characters become visible signs, characters that turn the
direction of what follows are taken out, and what is too long is cut with its length told. Escaping is another matter,
and is left to whoever writes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from steadytune.report.study.naming import short, short_names
from steadytune.study.results import StudyResults, TaskInfo, TrialResult, Variant

LONGEST_TITLE, LONGEST_NOTE, LONGEST_ABOUT = 120, 300, 4_000
LONGEST_ERROR, LONGEST_COMMAND, LONGEST_FILE = 8_000, 2_000, 200_000
MOST_NOTES, MOST_VERSIONS = 20, 40

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# Control characters have pictures in Unicode (␀ is U+2400); overrides and isolates of direction have none.
_VISIBLE: dict[int, str] = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE |= {0x7F: "\N{SYMBOL FOR DELETE}", 0x2028: "\n", 0x2029: "\n"}
_VISIBLE |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], UNKNOWN)
_VISIBLE |= dict.fromkeys([0xFEFF, 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], UNKNOWN)


def visible(text: str) -> str:
    """The text with nothing in it that is not seen; lines stay lines."""
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def shortened(text: str, longest: int) -> str:
    """A text of at most about `longest` characters: its start, and how long it was."""
    if len(text) <= longest:
        return visible(text)
    return f"{visible(text[: longest * 3 // 4])}… ({len(text):,} characters)"


def shortened_error(text: str) -> str:
    """A traceback's start and, since what happened stands there, more of its end."""
    if len(text) <= LONGEST_ERROR:
        return visible(text)
    start, end = LONGEST_ERROR // 4, LONGEST_ERROR // 2
    return f"{visible(text[:start])}\n… ({len(text) - start - end:,} characters left out) …\n{visible(text[-end:])}"


def readable(results: StudyResults) -> StudyResults:
    """The same study, with texts that can be shown."""
    task_names = short_names(results.tasks)
    families = [variant.family for variant in results.variants.values()]
    chosen = [text for (_, family), variant in results.chosen.items() for text in (family, variant)]
    variant_names = short_names(dict.fromkeys([*results.variants, *families, results.baseline, *chosen]))
    return replace(
        results,
        name=short(results.name, LONGEST_TITLE),
        about=shortened(results.about, LONGEST_ABOUT),
        tasks={task_names[key]: _task(info, task_names[key]) for key, info in results.tasks.items()},
        variants={variant_names[key]: _variant(each, variant_names) for key, each in results.variants.items()},
        trials=[_trial(trial, task_names, variant_names) for trial in results.trials],
        baseline=variant_names[results.baseline],
        chosen={
            (task_names[task], variant_names[family]): variant_names[variant]
            for (task, family), variant in results.chosen.items()
        },
        text=shortened(results.text, LONGEST_FILE),
        command=shortened(results.command, LONGEST_COMMAND),
        folder=shortened(results.folder, LONGEST_NOTE),
    )


def _task(info: TaskInfo, called: str) -> TaskInfo:
    return replace(
        info,
        name=called,
        metric=short(info.metric),
        rows={short(split): count for split, count in info.rows.items()},
        baseline=replace(info.baseline, name=short(info.baseline.name)),
        fingerprint=shortened(info.fingerprint, LONGEST_NOTE),
        source=shortened(info.source, LONGEST_NOTE),
        notes=_notes(info.notes),
    )


def _variant(variant: Variant, called: Mapping[str, str]) -> Variant:
    point = {short(key): short(value) if isinstance(value, str) else value for key, value in variant.point.items()}
    return replace(variant, name=called[variant.name], family=called[variant.family], point=point)


def _trial(trial: TrialResult, tasks: Mapping[str, str], variants: Mapping[str, str]) -> TrialResult:
    return replace(
        trial,
        task=tasks[trial.task],
        variant=variants[trial.variant],
        error=shortened_error(trial.error),
        notes=_notes(trial.notes),
        versions=dict(list(_versions(trial.versions))[:MOST_VERSIONS]),
    )


def _notes(notes: Iterable[str]) -> tuple[str, ...]:
    found = [shortened(note, LONGEST_NOTE) for note in notes]
    left = len(found) - MOST_NOTES
    return (*found[:MOST_NOTES], f"… and {left:,} more notes.") if left > 0 else tuple(found)


def _versions(versions: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in versions.items():
        yield short(str(key)), short(str(value))
