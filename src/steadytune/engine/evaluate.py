"""What a model predicts for a split, and how good that is by the task's own metric.

    made = predict(model, encoder, split)          # rows in their own order
    made.values                                    # classes, numbers, texts, or summed negative log-likelihoods
    score(encoder.task, split, made)

Rows of like length are computed together. The model is in eval mode for the time; nothing is drawn.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from steadytune.engine.batches import collate, round_up
from steadytune.engine.encode import TEXT_PAIRS, Encoder, Split
from steadytune.engine.processes import Processes
from steadytune.errors import SteadytuneError
from steadytune.methods.loss import IGNORED, aligned, call, kind_of, logits_of
from steadytune.tasks.base import Task

TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65536}
LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, eq=False)
class Predictions:
    """One split's predictions, in the order of its rows."""

    values: np.ndarray | list[str]  # class indices; numbers; texts; for a language model nll per block
    probabilities: np.ndarray | None = None  # [rows, classes]

    def finite(self) -> bool:
        numbers = self.values if self.probabilities is None else self.probabilities
        return isinstance(numbers, list) or bool(np.isfinite(numbers).all())


@dataclass(frozen=True)
class Search:
    """Beam search, for translation and summaries."""

    beams: int = 5
    length_penalty: float = 1.0


def autocast(precision: str, device: torch.device) -> Any:
    """fp32 is no autocast at all; bf16 and fp16 keep the weights in float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=LOW_PRECISION[precision])


@torch.no_grad()
def predict(
    model: nn.Module,
    encoder: Encoder,
    split: Split,
    *,
    precision: str = "fp32",
    search: Search = Search(),
    processes: Processes | None = None,
) -> Predictions:
    """Predictions for every row. With several processes each computes its share, and all know the result."""
    device = next(model.parameters()).device
    processes = processes or Processes(0, 1, device)
    was_training = model.training
    model.eval()
    try:
        with autocast(precision, device):
            found = _rows(model, encoder, split, device, search, processes)
    finally:
        model.train(was_training)
    array = processes.sum_array(found)
    if encoder.task.kind in TEXT_PAIRS:
        return Predictions([_text(encoder, ids) for ids in array])
    if encoder.task.kind in ("regression", "language-model"):
        return Predictions(array[:, 0])
    with np.errstate(invalid="ignore", over="ignore"):  # NaN stays NaN, and is seen by `score`
        exponentials = np.exp(array - array.max(axis=1, keepdims=True))
    return Predictions(array.argmax(axis=1), exponentials / exponentials.sum(axis=1, keepdims=True))


def score(task: Task, split: Split, predictions: Predictions) -> float:
    """The task's metric; NaN where a prediction is not a finite number, so that no such model looks good."""
    if not predictions.finite():
        return math.nan
    if task.kind in TEXT_PAIRS:
        return task.score(list(split.references), predictions.values)
    if task.kind == "language-model":
        return task.score(split.weights, predictions.values)
    return task.score(split.labels, predictions.values)


def _rows(
    model: nn.Module, encoder: Encoder, split: Split, device: torch.device, search: Search, processes: Processes
) -> np.ndarray:
    """[rows, outputs]: the rows of this process filled in, 0 elsewhere."""
    budget = TOKENS_AT_ONCE.get(device.type, 4096)
    if encoder.task.kind == "language-model":
        budget //= 8  # an output for every word of the vocabulary at every token
    order = np.lexsort((np.arange(len(split)), split.sizes.sum(1)))[::-1][processes.rank :: processes.count]
    found: np.ndarray | None = None
    at = 0
    while at < len(order):  # longest first: what does not fit shows at once
        width = int(round_up(split.sizes[order[at]]).sum())
        rows = order[at : at + max(1, budget // max(1, width))]
        try:
            made = _outputs(model, encoder, split, rows, device, search)
        except torch.OutOfMemoryError:
            made = None
        if made is None:  # outside the handler, which would keep the failed batch alive
            if len(rows) == 1:
                raise SteadytuneError(f"One row of {width} tokens does not fit into the memory of {device}.")
            torch.cuda.empty_cache()
            budget = len(rows) * width // 2
            continue
        if found is None:
            found = np.zeros((len(split), made.shape[1]), dtype=made.dtype)
        found[rows] = made
        at += len(rows)
    if found is None:  # fewer rows than processes: this one learns the width from a row of another
        if not len(split):
            raise SteadytuneError("There are no rows to predict.")
        made = _outputs(model, encoder, split, np.zeros(1, dtype=np.int64), device, search)
        found = np.zeros((len(split), made.shape[1]), dtype=made.dtype)
    return found


def _outputs(
    model: Any, encoder: Encoder, split: Split, rows: np.ndarray, device: torch.device, search: Search
) -> np.ndarray:
    if encoder.task.kind in TEXT_PAIRS:
        batch = collate(encoder, split, rows, device, labels=False)
        made = model.generate(
            **batch,
            num_beams=search.beams,
            length_penalty=search.length_penalty,
            max_new_tokens=encoder.max_target_length,
            do_sample=False,
        )
        ids = np.full((len(rows), encoder.max_target_length + 1), 0, dtype=np.int64)
        found = made[:, : ids.shape[1]].cpu().numpy()
        ids[:, : found.shape[1]] = found + 1  # 0 is what processes add up, and no token
        return ids
    if encoder.task.kind == "language-model":
        batch = collate(encoder, split, rows, device)
        return _nll(model, batch).double().cpu().numpy()[:, None]
    batch = collate(encoder, split, rows, device, labels=False)
    logits = logits_of(model(**batch)).double()
    return logits.reshape(len(rows), -1).cpu().numpy()


def _nll(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Summed negative log-likelihood of each row."""
    labels = batch["labels"]
    logits = logits_of(call(model, batch))
    wanted = aligned(labels, kind_of(model, logits, labels))
    losses = functional.cross_entropy(logits.float().transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
    return losses.double().sum(1)


def _text(encoder: Encoder, ids: np.ndarray) -> str:
    kept = [int(number) - 1 for number in ids if number > 0]
    return str(encoder.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)).strip()
