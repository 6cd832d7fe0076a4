"""Several forwards of one batch, each with its own noise: what R-Drop and its relatives are made of. No method here.

`concat` repeats the rows, [x; x], and runs one forward (R-Drop, sections 2.2 and C.1): faster, and dropout draws for
each row, so the halves are as independent as two forwards. That fails where rows are not independent: batch
normalisation sees the other half, and one mixout mask or one skipped layer serves both halves. `auto` then runs
separate forwards (`two`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.methods.base import Method, Site
from steadytune.methods.late_logits import LateLogits, logits_later
from steadytune.methods.loss import call, is_mixed, labels_of, logits_of, noise, noise_sources

FORWARDS = ("auto", "concat", "two")

_ONE_PER_CALL = {"cache_position", "head_mask", "decoder_head_mask", "cross_attn_head_mask"}  # have no batch dimension
_READABLE = ("torch.", "transformers.", "peft.", "steadytune.")  # whose modules say what noise they draw
_NO_NOISE = "every dropout is 0 and no layer is mixed. Add a method such as Dropout(p=0.1), or set it in the config."


def forwards(
    model: nn.Module,
    batch: Mapping[str, Any],
    owner: str,
    times: int = 2,
    forward: str = "auto",
    late_logits: bool = False,
) -> tuple[list[Tensor], Any]:
    """Logits of `times` stochastic forwards of the batch, and the outputs of the first. `owner` is named in errors.

    With `late_logits`, those of a large vocabulary are not computed before they are used (late_logits.py); inside a
    compiled function they are, since swapping a layer's forward would break the graph.
    """
    with logits_later(model, owner) if late_logits and not torch.compiler.is_compiling() else nullcontext():
        return _forwards(model, batch, owner, times, forward)


def _forwards(
    model: nn.Module, batch: Mapping[str, Any], owner: str, times: int, forward: str
) -> tuple[list[Tensor], Any]:
    if forward == "two" or (forward == "auto" and (_rows_interact(model) or _odd_one(batch) is not None)):
        outputs = [call(model, batch, again=number > 0) for number in range(times)]
        logits = [logits_of(each) for each in outputs]
        refuse_if_silent(model, owner, logits[0], logits[1])
        return logits, outputs[0]
    size = len(labels_of(batch))
    together = call(model, repeated(batch, times))
    rows = logits_of(together)
    if rows.shape[0] != times * size:
        raise SteadytuneError(
            f"{owner}: {times} copies of {size} rows went in, {rows.shape[0]} rows of logits came out. Is the batch "
            "the first dimension of every input? If not, use forward='two'."
        )
    logits = list(rows.chunk(times))
    refuse_if_silent(model, owner, logits[0], logits[1], together=True)
    return logits, _first_rows(together, size, times * size)


def repeated(batch: Mapping[str, Any], times: int) -> dict[str, Any]:
    """[x; x; ...]: every tensor with a batch dimension, repeated along it."""
    odd = _odd_one(batch)
    if odd is not None:
        raise SteadytuneError(
            f"The batch cannot be repeated row by row: '{odd}' does not have the {len(labels_of(batch))} rows of the "
            "labels. Use forward='two' (or 'auto', which does so by itself)."
        )
    size = len(labels_of(batch))
    return {
        name: torch.cat([value] * times) if name not in _ONE_PER_CALL and _has_rows(value, size) else value
        for name, value in batch.items()
    }


def refuse_if_silent(model: nn.Module, owner: str, logits_1: Tensor, logits_2: Tensor, together: bool = False) -> None:
    """`NoEffect` where two passes agree because nothing is random. Costs nothing where the model has a known source.

    Code that draws its noise in a way we cannot see is judged by its outputs: they differ.
    """
    if any(not (together and shared) for _, shared in noise(model)):
        return
    one, other = (each.hidden if isinstance(each, LateLogits) else each for each in (logits_1, logits_2))
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True):
        return
    if noise_sources(model):
        raise NoEffect(
            f"{owner}: forward='concat' gives both copies the same noise, because {type(model).__name__} draws it once "
            "per forward (mixout's masks, skipped layers). Use forward='two' or 'auto'."
        )
    raise NoEffect(f"{owner}: two passes of {type(model).__name__} are the same: {_NO_NOISE}")


def refuse_if_noiseless(method: Method, site: Site) -> None:
    """The same before any batch, from the modules alone, where no other method of the list could bring noise.

    A module that is neither torch's nor Hugging Face's may draw noise that cannot be seen here; the first batch tells.
    So it does where parts stay in eval: `from_pretrained` leaves a model there, and what wraps it (PEFT) is not.
    """
    others = getattr(site, "methods", None)
    if method.is_null() or others is None or any(other.place == "model" for other in others):
        return
    readable = all(type(module).__module__.startswith(_READABLE) for module in site.model.modules())
    if readable and not noise_sources(site.model, resting=True):
        name = type(site.model).__name__
        raise NoEffect(f"{type(method).__name__}: two passes of {name} would be the same: {_NO_NOISE}")


def _rows_interact(model: nn.Module) -> bool:
    """Batch normalisation, or noise that is drawn once for all rows."""
    return any(
        isinstance(module, _BatchNorm) or is_mixed(module) or vars(module).get("layerdrop")
        for module in model.modules()
    )


def _has_rows(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == size


def _odd_one(batch: Mapping[str, Any]) -> str | None:
    """The first value that is neither per row nor the same for all rows."""
    size = len(labels_of(batch))
    for name, value in batch.items():
        if isinstance(value, (list, tuple, Mapping)):
            return name
        fits = not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] in (1, size)  # 1 row serves them all
        if not fits and name not in _ONE_PER_CALL:
            return name
    return None


def _first_rows(outputs: Any, size: int, total: int) -> Any:
    """The outputs of the first `size` of `total` rows; what is not a tensor or a tuple of them (caches) is left out."""
    if isinstance(outputs, Tensor):
        return outputs[:size] if outputs.ndim > 0 and outputs.shape[0] == total else outputs
    if isinstance(outputs, Mapping):
        return type(outputs)(**{name: _first_rows(value, size, total) for name, value in outputs.items()})
    if isinstance(outputs, (tuple, list)):
        return type(outputs)(_first_rows(value, size, total) for value in outputs)
    logits = getattr(outputs, "logits", None)
    return None if logits is None else SimpleNamespace(logits=_first_rows(logits, size, total))
