"""The same sentences and numbers for the terminal, the card and the page, so that they never disagree."""

from __future__ import annotations

from typing import Any

from steadytune.report.record import FitRecord

METRIC_NAMES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "macro_f1": "macro F1",
    "mcc": "Matthews correlation",
    "spearman": "Spearman correlation",
    "pearson": "Pearson correlation",
    "rmse": "root mean squared error",
    "bleu": "BLEU",
    "tokenized_bleu": "BLEU",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "rouge_lsum": "ROUGE-Lsum",
    "perplexity": "perplexity",
}


def number(value: float | None) -> str:
    """Three digits after the point for fractions; an en dash where there is nothing."""
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def metric(record: FitRecord) -> str:
    return METRIC_NAMES.get(record.metric, record.metric.replace("_", " "))


SHOWN = 12  # classes of a split that a page names


def classes(counts: dict[str, int]) -> tuple[list[tuple[str, int]], str]:
    """(the classes to name, with their rows; what to say of the others): of many, the commonest."""
    if len(counts) <= SHOWN:
        return list(counts.items()), ""
    shown = sorted(counts.items(), key=lambda item: -item[1])[:SHOWN]
    return shown, f"and {len(counts) - SHOWN} more"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def verdict(record: FitRecord) -> list[str]:
    """How good, how sure, how stable: the sentences to read if one reads nothing else."""
    best, baseline = record.best, record.baseline
    if best is None:
        return [f"All {len(record.seeds)} seeds failed: the loss became infinite or not a number. No model was kept."]
    said = []
    if best.test is not None:
        said.append(
            f"{metric(record)} {number(best.test)} on {test_rows(record)} that no choice was made on{_sure(record)}."
        )
        said.append(_against_baseline(record))
    else:
        said.append(
            f"{metric(record)} {number(best.validation)} on validation, where the model was chosen, so it flatters. "
            "There is no test split: nothing can be said about new rows."
        )
        if baseline is not None:
            said.append(f"Without learning ({baseline.name}): {number(baseline.validation)}.")
    said.append(stability(record))
    said = [sentence for sentence in said if sentence]
    return [sentence[0].upper() + sentence[1:] for sentence in said]


def _sure(record: FitRecord) -> str:
    interval = record.interval
    if interval is None:
        return ""
    if interval.low is None or interval.high is None:
        return f" (no interval: {interval.note})"
    return f" ({interval.confidence:.0%} interval {number(interval.low)} to {number(interval.high)})"


def _against_baseline(record: FitRecord) -> str:
    best, baseline, interval = record.best, record.baseline, record.interval
    if best is None or baseline is None or baseline.test is None:
        return ""
    told = f"Without learning ({baseline.name}): {number(baseline.test)}"
    if interval is None or interval.low is None or interval.high is None:
        return f"{told}."
    worst = interval.low if record.greater_is_better else interval.high
    if record.better(worst, baseline.test):
        return f"{told}, outside the interval: the model has learned something."
    if record.better(best.test, baseline.test):
        return f"{told}, inside the interval: these rows cannot tell the model from that."
    return f"{told}: the model is no better than that."


def stability(record: FitRecord) -> str:
    """Over the seeds: mean, spread, and how many failed."""
    split = "test" if record.spread("test").n else "validation"
    spread = record.spread(split)
    if spread.mean is None:
        return ""
    runs = plural(spread.n, "seed")
    told = f"Over {runs}: mean {number(spread.mean)}"
    if spread.std is not None:
        told += f", standard deviation {number(spread.std)}, from {number(spread.lowest)} to {number(spread.highest)}"
    told += f" on {split}"
    ends = []
    if record.failed:
        ends.append(f"{len(record.failed)} of {len(record.seeds)} seeds diverged and are not in the mean")
    if record.degenerate():
        ends.append(f"{len(record.degenerate())} of {len(record.seeds)} did not beat the baseline on validation")
    return "; ".join([told, *ends]) + "."


def test_rows(record: FitRecord) -> str:
    split = next((split for split in record.splits if split.name == "test"), None)
    return plural(split.rows, "test row") if split else "no test rows"


def status(record: FitRecord, seed: Any) -> str:
    """How a seed ended, in words."""
    if seed.status == "diverged":
        return "failed: diverged"
    if seed.status == "stopped":
        return "stopped"
    if record.above_baseline(seed) is False:
        return "not above baseline"
    return "kept" if seed.seed == record.chosen else ""


def settings(record: FitRecord) -> list[tuple[str, str]]:
    """The recipe as name and value, methods spelled as `--method` takes them; what is at its default of off is left
    out."""
    recipe = record.recipe
    shown = [("model", record.model)]
    for item in recipe.get("methods", []):
        values = ",".join(
            f"{key}={_plain(value)}" for key, value in item.items() if key != "method" and value is not None
        )
        shown.append(("method", f"{item['method']}:{values}" if values else item["method"]))
    for key in ("lr", "batch_size", "epochs", "steps", "min_steps", "weight_decay", "clip", "max_length", "precision"):
        if recipe.get(key) not in (None, 0, 0.0):
            shown.append((key.replace("_", " "), _plain(recipe[key])))
    for key in ("patience", "label_smoothing", "start_from", "micro_batches"):
        if recipe.get(key) not in (None, 0, 0.0, 1):
            shown.append((key.replace("_", " "), _plain(recipe[key])))
    return shown


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_plain(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
