"""What every method of the place `loss` uses: calling a model, its task's loss, and its noise. No method lives here.

    task             outputs          labels                 loss (a mean, as Hugging Face models compute it)
    classification   [B, C]           int [B]                cross-entropy over rows whose label is not -100
    regression       [B, 1] or [B]    float [B]              mean squared error
    multilabel       [B, C]           float [B, C]           binary cross-entropy over all B*C
    token            [B, T, C]        int [B, T]             cross-entropy over positions whose label is not -100
    causal-lm        [B, T, C]        int [B, T]             the same, position t against label t + 1
    seq2seq          [B, T, C]        int [B, T]             as token: the decoder's inputs are already shifted

Label smoothing is torch's: (1 - ε) NLL + ε/C Σ_c -log p_c, which is also what R-Drop's own fairseq code computes.
Today's fairseq spreads ε over the other C - 1 classes; that is the same loss with ε C/(C - 1) given here.
Caveats: losses that a model adds by itself (the router of a mixture of experts) are not part of `nll`. A batch in
which every label is -100 has no mean: its loss is NaN, here as in torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from steadytune.errors import SteadytuneError
from steadytune.methods.dropout import dropout_sites

KINDS = ("classification", "regression", "multilabel", "token", "causal-lm", "seq2seq")
IGNORED = -100

# Which Hugging Face classes shift the labels. Decoders cut out of encoder-decoder models, XLNet and XLM do not.
_UNSHIFTED_LM = re.compile(
    r"^(Bart|BigBirdPegasus|Blenderbot|BlenderbotSmall|Marian|MBart|Mvp|Pegasus|PLBart|TrOCR|Whisper)ForCausalLM$"
    r"|^XLNetLMHeadModel$|WithLMHeadModel$|ForMaskedLM$|ForTokenClassification$"
)
_SHIFTED_LM = re.compile(r"ForCausalLM$|LMHeadModel$|ForConditionalGeneration$|MarianMTModel$")
_OTHER_NOISE = re.compile(r"(^|_)layerdrop$|^drop_prob$|^drop_path(_rate)?$|jitter_noise$")


# --- calling a model


def unwrap(model: Any) -> nn.Module:
    """The model inside torch.compile, DistributedDataParallel and its kin, and PEFT."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and [name for name, _ in model.named_children()] == ["module"]:
            inner = model.module
        if inner is None and callable(getattr(model, "get_base_model", None)):
            inner = model.get_base_model()
        if not isinstance(inner, nn.Module) or inner is model:
            return model
        model = inner


def labels_of(batch: Mapping[str, Any]) -> Tensor:
    labels = batch.get("labels")
    if not isinstance(labels, Tensor):
        spans = (
            " Question answering (start_positions, end_positions) is not supported."
            if "start_positions" in batch
            else ""
        )
        raise SteadytuneError(f"The batch has no tensor named 'labels'; it has {', '.join(map(str, batch))}.{spans}")
    return labels


def call(model: nn.Module, batch: Mapping[str, Any], again: bool = False) -> Any:
    """One forward without the labels; an encoder-decoder gets the decoder inputs that it would have made from them.

    `again` says that the step has had a forward of this model.
    """
    if again:
        _keep_buffers(model)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    prepare = getattr(unwrap(model), "prepare_decoder_input_ids_from_labels", None)
    given = {"decoder_input_ids", "decoder_inputs_embeds"} & inputs.keys()
    if prepare is not None and not given and batch.get("labels") is not None:
        inputs["decoder_input_ids"] = prepare(labels=batch["labels"])
    return model(**inputs)


def _keep_buffers(model: nn.Module) -> None:
    """DDP sends its first process's buffers before every forward. Within a step there is nothing new in them, and
    before torch 2.13 a backward pass refuses what has been written over since its forward."""
    for each in (model, getattr(model, "_orig_mod", None)):
        if isinstance(each, DistributedDataParallel):
            each.require_forward_param_sync = False  # the forward sets it anew


def logits_of(outputs: Any) -> Tensor:
    """The predictions in what a model returned: a tensor, something with `logits`, or a tuple that begins with them."""
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, (tuple, list)) and outputs:
        found = outputs[0]
    if isinstance(found, Tensor):
        return found
    if getattr(outputs, "start_logits", None) is not None:
        raise SteadytuneError(
            "Question answering (start and end logits) is not supported: there is no one set of logits."
        )
    raise SteadytuneError(f"The model returned {type(outputs).__name__} without logits; use a model with a task head.")


def plain_loss(model: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
    """One forward and the plain loss: the model's own where it takes labels, the task's otherwise."""
    if "labels" in inspect.signature(unwrap(model).forward).parameters:
        outputs = model(**batch)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if loss is None and isinstance(outputs, (tuple, list)):
            loss = outputs[0]
        if isinstance(loss, Tensor) and loss.ndim == 0:
            return loss, outputs
    labels = labels_of(batch)
    outputs = call(model, batch)
    logits = logits_of(outputs)
    return nll(logits, labels, kind_of(model, logits, labels)), outputs


# --- the task


def kind_of(model: nn.Module | None, logits: Tensor, labels: Tensor) -> str:
    """Which row of the table above this is, from shapes, types and what the model says of itself; or an error."""
    base = None if model is None else unwrap(model)
    config = getattr(base, "config", None)
    problem = getattr(config, "problem_type", None)
    whole = not (labels.is_floating_point() or labels.dtype == torch.bool)
    if logits.ndim == 3 and whole and labels.shape == logits.shape[:2]:
        return "token" if base is None or config is None else _token_kind(base)
    if logits.ndim in (1, 2) and labels.shape[:1] == logits.shape[:1]:
        single = logits.ndim == 1 or logits.shape[1] == 1
        if problem == "regression" or (single and problem is None and (config is not None or not whole)):
            if labels.numel() == logits.numel():
                return "regression"
        elif labels.shape == logits.shape and (problem == "multi_label_classification" or not whole):
            return "multilabel"
        elif labels.numel() == logits.shape[0] and whole and not single:
            return "classification"
    raise SteadytuneError(
        f"Cannot tell the task: outputs of shape {list(logits.shape)} and {labels.dtype} labels of shape "
        f"{list(labels.shape)} fit none of classification (whole numbers [B]), regression (one output, floats [B]), "
        "multilabel (floats [B, C]) and tokens (whole numbers [B, T])."
    )


def _token_kind(model: nn.Module) -> str:
    names = [cls.__name__ for cls in type(model).__mro__]
    if any(map(_UNSHIFTED_LM.search, names)):
        return "token"
    if any(map(_SHIFTED_LM.search, names)):
        return "seq2seq" if getattr(model.config, "is_encoder_decoder", False) else "causal-lm"
    raise SteadytuneError(
        f"Cannot tell whether {type(model).__name__} compares position t with label t or with label t + 1. Use a model "
        "whose class is named ...ForCausalLM, ...ForMaskedLM, ...ForTokenClassification or ...ForConditionalGeneration."
    )


def aligned(labels: Tensor, kind: str) -> Tensor:
    """Labels (or a mask over them) at the positions that predict them; a language model's last position has none."""
    if kind != "causal-lm":
        return labels
    return functional.pad(labels, (0, 1), value=0 if labels.dtype == torch.bool else IGNORED)[..., 1:]


def kept(labels: Tensor, kind: str) -> Tensor | None:
    """Which rows or positions count: true where there is a label. None where all of them do."""
    return None if kind in ("regression", "multilabel") else aligned(labels, kind) != IGNORED


def full_precision(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of the values where the mask is true; 0 where it is true nowhere."""
    if mask is None:
        return values.mean()
    mask = mask.reshape(values.shape).to(values.device)
    return values.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def nll(logits: Tensor, labels: Tensor, kind: str, label_smoothing: float = 0.0) -> Tensor:
    """The task's loss, as in the table above."""
    logits, labels = full_precision(logits), labels.to(logits.device)
    if kind in ("regression", "multilabel"):
        if label_smoothing:
            raise SteadytuneError(f"Label smoothing is for classes; a {kind} task has none. Set label_smoothing to 0.")
        labels = labels.to(logits.dtype)
        if kind == "regression":
            return functional.mse_loss(logits.reshape(labels.shape), labels)
        return functional.binary_cross_entropy_with_logits(logits, labels)
    flat = aligned(labels, kind).flatten().long()
    return functional.cross_entropy(logits.flatten(0, -2), flat, ignore_index=IGNORED, label_smoothing=label_smoothing)


# --- noise


def is_mixed(module: Any) -> bool:
    """Whether the layer is one of mixed_layers.py and draws: at p = 0 it is plain, at p = 1 it is its target."""
    return getattr(type(module), "is_mixed", False) and 0.0 < module.p < 1.0


def noise(model: nn.Module, resting: bool = False) -> Iterator[tuple[str, bool]]:
    """(name, whether one draw serves the whole batch) of each source. Parts in eval are silent if the model trains;
    `resting`: they count too, as before training, when nobody has called `train()` yet."""
    every = resting or not model.training
    active = [(name, module) for name, module in model.named_modules() if module.training or every]
    yield from ((name, True) for name, module in active if is_mixed(module))
    for module, attribute, name in dropout_sites(model):
        if 0.0 < getattr(module, attribute) < 1.0 and (module.training or every):
            yield name, False
    for name, module in active:
        for attribute, value in vars(module).items():
            if isinstance(value, float) and value > 0.0 and _OTHER_NOISE.search(attribute):
                yield f"{name}.{attribute}", attribute.endswith("layerdrop")


def noise_sources(model: nn.Module, resting: bool = False) -> list[str]:
    """Names of everything in the model that is random in training: dropout of any kind, and mixed layers."""
    return [name for name, _ in noise(model, resting)]
