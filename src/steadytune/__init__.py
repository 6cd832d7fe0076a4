"""steadytune: dependable fine-tuning of pretrained transformers on small datasets.

The public names are loaded on first use, so that `import steadytune` costs milliseconds and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> module that defines it. This table is the public interface.
_PUBLIC = {
    "AdamW": "methods.adamw",
    "Applied": "apply",
    "CheckpointAverage": "methods.averaging",
    "ConstantSchedule": "methods.schedules",
    "DoubledBatch": "methods.controls",
    "Dropout": "methods.dropout",
    "Ensemble": "methods.ensemble",
    "ExpectationLinearDropout": "methods.expectation_linear",
    "Fit": "fitting",
    "FitFailed": "fitting",
    "FraternalDropout": "methods.fraternal_dropout",
    "InverseSqrtSchedule": "methods.schedules",
    "Layers": "layers",
    "LayerwiseLR": "methods.layerwise_lr",
    "LinearSchedule": "methods.schedules",
    "Longer": "methods.longer",
    "Method": "methods.base",
    "Mixout": "methods.mixout",
    "Moment": "methods.base",
    "NLLOnly": "methods.controls",
    "NoEffect": "errors",
    "PolynomialSchedule": "methods.schedules",
    "PretrainedDecay": "methods.pretrained_decay",
    "RDrop": "methods.rdrop",
    "Recipe": "recipe",
    "Reinit": "methods.reinit",
    "SteadyTrainer": "integrations.trainer",
    "SteadytuneError": "errors",
    "Streams": "rng",
    "WeightDecay": "methods.weight_decay",
    "apply_": "apply",
    "average_checkpoints": "methods.averaging",
    "average_weights": "methods.averaging",
    "bias_ratio": "methods.adamw",
    "decay_penalty": "methods.weight_decay",
    "ensemble_logits": "methods.ensemble",
    "find_layers": "layers",
    "fit": "fitting",
    "fraternal_loss": "methods.fraternal_dropout",
    "layerwise_lr": "methods.layerwise_lr",
    "mixout": "methods.mixout",
    "mixout_": "methods.mixout",
    "predict": "predicting",
    "predict_file": "predicting",
    "rdrop_loss": "methods.rdrop",
    "reinit_": "methods.reinit",
    "remove_": "apply",
    "symmetric_kl": "methods.rdrop",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'steadytune' has no attribute {name!r}")
    value = getattr(import_module(f"steadytune.{_PUBLIC[name]}"), name)
    globals()[name] = value  # the next access is a plain lookup
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


if TYPE_CHECKING:  # the same names for type checkers and editors
    from steadytune.apply import Applied, apply_, remove_
    from steadytune.errors import NoEffect, SteadytuneError
    from steadytune.fitting import Fit, FitFailed, fit
    from steadytune.integrations.trainer import SteadyTrainer
    from steadytune.layers import Layers, find_layers
    from steadytune.methods.adamw import AdamW, bias_ratio
    from steadytune.methods.averaging import CheckpointAverage, average_checkpoints, average_weights
    from steadytune.methods.base import Method, Moment
    from steadytune.methods.controls import DoubledBatch, NLLOnly
    from steadytune.methods.dropout import Dropout
    from steadytune.methods.ensemble import Ensemble, ensemble_logits
    from steadytune.methods.expectation_linear import ExpectationLinearDropout
    from steadytune.methods.fraternal_dropout import FraternalDropout, fraternal_loss
    from steadytune.methods.layerwise_lr import LayerwiseLR, layerwise_lr
    from steadytune.methods.longer import Longer
    from steadytune.methods.mixout import Mixout, mixout, mixout_
    from steadytune.methods.pretrained_decay import PretrainedDecay
    from steadytune.methods.rdrop import RDrop, rdrop_loss, symmetric_kl
    from steadytune.methods.reinit import Reinit, reinit_
    from steadytune.methods.schedules import ConstantSchedule, InverseSqrtSchedule, LinearSchedule, PolynomialSchedule
    from steadytune.methods.weight_decay import WeightDecay, decay_penalty
    from steadytune.predicting import predict, predict_file
    from steadytune.recipe import Recipe
    from steadytune.rng import Streams
