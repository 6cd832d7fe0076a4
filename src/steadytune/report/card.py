"""The model card: README.md beside the weights, in the form the Hugging Face hub reads.

Everything that came from a file or a command line is escaped: a label called `<script>` or `| x |` stays a label.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

import yaml

from steadytune.report import words
from steadytune.report.record import FitRecord

_PIPELINES = {"classification": "text-classification", "regression": "text-classification"}
_PIPELINES |= {"image": "image-classification", "translation": "translation", "summarization": "summarization"}
_PIPELINES |= {"language-model": "text-generation"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]#+!|~$])")
_UPSTREAM = {"builtin:minilm": "sentence-transformers/all-MiniLM-L6-v2"}  # what the hub calls it
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def escape(value: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", html.escape(_CONTROL.sub(" ", str(value)), quote=False))


def code(value: object) -> str:
    """Text as inline code; a fence longer than any run of backticks inside it."""
    text = _CONTROL.sub(" ", str(value))
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    inner = f" {text} " if text.startswith("`") or text.endswith("`") else text
    return f"{fence}{inner}{fence}".replace("|", "\\|")


def make_card(record: FitRecord) -> str:
    """The whole README.md."""
    parts = [
        f"---\n{_front_matter(record)}---",
        f"# {escape(record.name)}",
        *(escape(sentence) for sentence in words.verdict(record)),
        _use(record),
        "## Scores",
        _scores(record),
        "## Data",
        _data(record),
        "## Recipe",
        _recipe(record),
        "## Citations",
        _list(f"{escape(each.text)} <{each.url}> ({code(each.key)})" for each in record.citations)
        or "The recipe uses no method from a paper.",
        f"Made with steadytune {escape(record.versions.get('steadytune', ''))}"
        f"{f', {escape(record.created)}' if record.created else ''}. "
        + ", ".join(
            f"{escape(name)} {escape(version)}" for name, version in record.versions.items() if name != "steadytune"
        )
        + ".",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(record: FitRecord) -> str:
    matter: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": _PIPELINES.get(record.kind, "text-classification"),
        "tags": ["steadytune", *sorted({item["method"] for item in record.recipe.get("methods", [])})],
        "metrics": [record.metric],
    }
    base = _UPSTREAM.get(record.model, record.model)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not base.startswith("."):
        matter["base_model"] = base
    best = record.best
    if best is not None and best.test is not None:
        matter["model-index"] = [
            {
                "name": record.name,
                "results": [
                    {
                        "task": {"type": matter["pipeline_tag"]},
                        "dataset": {"name": record.name, "type": record.name, "split": "test"},
                        "metrics": [{"type": record.metric, "value": round(best.test, 6)}],
                    }
                ],
            }
        ]
    return yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)


def _use(record: FitRecord) -> str:
    if record.kind not in ("classification", "regression"):
        return ""
    example = '"some text"' if len(record.text_columns) < 2 else '{"text": "first text", "text_pair": "second text"}'
    extra = ', function_to_apply="none"' if record.kind == "regression" else ""
    return (
        "```python\nfrom transformers import pipeline\n\n"
        f'classify = pipeline("text-classification", "path/to/this/directory"{extra})\nclassify({example})\n```'
    )


def _scores(record: FitRecord) -> str:
    rows = [
        [
            str(seed.seed),
            words.number(seed.validation),
            words.number(seed.test),
            "–" if seed.best_step is None else str(seed.best_step),
            escape(words.status(record, seed)),
        ]
        for seed in record.seeds
    ]
    for name, pick in (("mean", "mean"), ("standard deviation", "std")):
        spreads = [record.spread("validation"), record.spread("test")]
        rows.append([name, *(words.number(getattr(spread, pick)) for spread in spreads), "", ""])
    for baseline in record.baselines:
        scores = [words.number(baseline.validation), words.number(baseline.test)]
        rows.append(["baseline", *scores, "", escape(baseline.name)])
    name = escape(words.metric(record))
    table = _table(["seed", f"validation {name}", f"test {name}", "best step", ""], rows)
    interval = record.interval
    if interval is None or interval.low is None or interval.high is None:
        return table
    return table + (
        f"\n\nThe {interval.confidence:.0%} interval of the kept model on test, {words.number(interval.low)} to "
        f"{words.number(interval.high)}, is an {escape(interval.method)} ({interval.rows:,} rows). The kept seed has "
        "the best score on validation; test was used for no choice."
    )


def _data(record: FitRecord) -> str:
    rows = []
    for split in record.splits:
        shown, others = words.classes(split.classes)
        classes = ", ".join([*(f"{escape(name)}: {count:,}" for name, count in shown), *([others] if others else [])])
        rows.append([split.name, f"{split.rows:,}", classes, code(split.file), code(split.fingerprint[:16])])
    table = _table(["split", "rows", "classes", "file", "sha256 of the rows"], rows)
    columns = ", ".join(code(column) for column in record.text_columns) or "–"
    facts = [
        f"Text from {columns}, label from {code(record.label_column)}.",
        f"Fingerprint of all splits: {code(record.fingerprint)}.",
        f"Training rows that repeat an earlier one: {record.duplicates:,}. Rows of validation or test that stand in an "
        f"earlier split too: {record.leaks:,}.",
    ]
    return table + "\n\n" + _list([*facts, *(escape(note) for note in record.notes)])


def _recipe(record: FitRecord) -> str:
    about = f": {escape(record.recipe_about)}" if record.recipe_about else ""
    shown = [f"{escape(name)}: {code(value)}" for name, value in words.settings(record)]
    return f"{escape(record.recipe_name)}{about}\n\n" + _list([*shown, f"key: {code(record.recipe_key)}"])


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
