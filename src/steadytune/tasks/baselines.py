"""What a task scores without learning, computed from the rows (V8, X3). The first baseline is the one to beat.

| kind | baselines |
|---|---|
| classes | the commonest class of train, always; guessing uniformly at random |
| numbers | the mean of train, always (a correlation of 0, by convention) |
| translation | the source, copied |
| summaries | the first three sentences (lead-3), one a line |
| language model | word frequencies of train (unigram): a per-word perplexity, to compare with per-word ones only |

Ties for the commonest class (balanced samples have nothing else) go to the positive class where the metric is F1,
since always saying "no" scores 0 and would flatter every run, and else to the first class. That gives the paper's
81.3 | 81.2 and 49.1.
"""

import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np

from steadytune.tasks.base import Baseline, Rows, Task


def compute(task: Task, splits: dict[str, Rows]) -> tuple[Baseline, ...]:
    train = splits["train"]
    if task.kind == "regression" and train.labels is not None:
        mean = float(np.mean(train.labels))
        return (_scored(f"always {mean:.4g}, the mean of train", task, splits, lambda rows: np.full(len(rows), mean)),)
    if task.kind in ("classification", "image"):
        best = commonest(task, train)
        name = f"always {task.labels[best]!r}, the commonest class of train"
        majority = _scored(name, task, splits, lambda rows: np.full(len(rows), best))
        chance = {split: _chance(task, rows) for split, rows in splits.items() if split != "train"}
        return majority, Baseline("uniform random guesses", **chance)
    if task.kind == "translation":
        return (_scored("the source, copied", task, splits, lambda rows: [texts[0] for texts in rows.texts]),)
    if task.kind == "summarization":
        return (_scored("the first three sentences", task, splits, lambda rows: [lead(t[0]) for t in rows.texts]),)
    scores = {split: unigram_perplexity(train, rows) for split, rows in splits.items() if split != "train"}
    return (Baseline("word frequencies of train (unigram, add-one)", **scores),)


def _scored(name: str, task: Task, splits: dict[str, Rows], predict: Callable[[Rows], object]) -> Baseline:
    scores = {}
    for split, rows in splits.items():
        if split != "train":
            truth = rows.labels if rows.labels is not None else list(rows.targets or ())
            scores[split] = task.score(truth, predict(rows))
    return Baseline(name, **scores)


def commonest(task: Task, train: Rows) -> int:
    """The index of the commonest class of train; ties as the module says."""
    counts = np.bincount(np.asarray(train.labels), minlength=len(task.labels))
    tied = np.flatnonzero(counts == counts.max())
    if task.metric == "f1" and task.positive is not None and task.labels.index(task.positive) in tied:
        return task.labels.index(task.positive)
    return int(tied[0])


def _chance(task: Task, rows: Rows) -> float:
    """The expected score of uniform guesses: accuracy 1/K; MCC 0; F1 of a class with share s: 2 s / (1 + K s)
    (precision s, recall 1/K; a ratio of expectations)."""
    classes = len(task.labels)
    shares = np.bincount(np.asarray(rows.labels), minlength=classes) / len(rows)
    f1 = 2 * shares / (1 + classes * shares)
    if task.metric == "f1" and task.positive is not None:
        return float(f1[task.labels.index(task.positive)])
    return {"accuracy": 1 / classes, "mcc": 0.0, "macro_f1": float(np.mean(f1))}[task.metric]


def lead(text: str, sentences: int = 3) -> str:
    """The first sentences, one a line."""
    return "\n".join(re.split(r"(?<=[.!?])\s+", text.strip())[:sentences])


def unigram_perplexity(train: Rows, rows: Rows) -> float:
    """exp(-1/N sum log p(w)) with p(w) = (count(w) + 1) / (tokens + words + 1): every unseen word counts as one
    more."""
    counts = Counter(word for texts in train.texts for word in texts[0].split())
    total = counts.total() + len(counts) + 1
    words = Counter(word for texts in rows.texts for word in texts[0].split())
    if not words:
        return math.inf
    nll = sum(times * (math.log(total) - math.log(counts[word] + 1)) for word, times in words.items())
    return math.exp(nll / words.total())
