"""Which layers of a model mixout means: by role, or by a pattern of names. Never a silent skip."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import Tensor, nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import EMBEDDINGS, HEAD, find_layers
from steadytune.methods.mixed_layers import mixed_class, weight_name
from steadytune.methods.mixing import Mixed


def select_layers(model: nn.Module, layers: str = "paper", head: str = "none") -> dict[str, nn.Module]:
    """The layers that `Mixout(layers=..., head=...)` means, by name; `NoEffect` where that is none."""
    wanted = _by_role(model, layers, head) if layers in _ROLES else _by_pattern(model, layers)
    frozen = [name for name, module in wanted.items() if not getattr(module, weight_name(module)).requires_grad]
    chosen = {name: module for name, module in wanted.items() if name not in frozen}
    if not chosen:
        why = f"all {len(frozen)} that match are frozen" if frozen else "nothing matches"
        raise NoEffect(f"Mixout: no layer of {type(model).__name__} to mix with layers={layers!r}: {why}.")
    mixed = next((name for name, module in chosen.items() if isinstance(module, Mixed)), None)
    if mixed:
        raise SteadytuneError(f"Mixout: {mixed} is mixed already. Call remove_(model) before mixing again.")
    return chosen


_ROLES = ("paper", "linear", "all")
_LINEAR = ("Linear", "Conv1D", "NonDynamicallyQuantizableLinear", "MultiheadAttention")


def _by_role(model: nn.Module, layers: str, head: str) -> dict[str, nn.Module]:
    """paper: what dropout(0.1) regularises in BERT, so neither embeddings, nor the Linear fed by the activation, nor
    (unless asked for) the head (M9, section 5). linear: every linear layer, as the public code. all: whatever can be
    mixed."""
    wanted: dict[str, nn.Module] = {}
    parts = find_layers(model) if layers == "paper" or head == "mixout" else None
    for name, module in model.named_modules():
        is_lora = ".lora_A." in name
        owner = name.split(".lora_A.")[0]  # LoRA stands for the layer it adapts
        if ".lora_" in name and not is_lora:
            continue
        cls = mixed_class(module)
        if cls is None:
            _refuse_unmixable_linear(name, module)
            continue
        linear = isinstance(module, Mixed) or is_lora or type(module).__name__ in _LINEAR
        if layers == "all" or (layers == "linear" and linear):
            wanted[name] = module
        elif parts is not None and linear:
            part = parts.part(owner)
            in_body = part not in (HEAD, EMBEDDINGS) and not parts.fed_by_activation(owner)
            if (layers == "paper" and in_body) or (head == "mixout" and part == HEAD):
                wanted[name] = module
    return wanted


def _by_pattern(model: nn.Module, layers: str) -> dict[str, nn.Module]:
    patterns = [pattern.strip() for pattern in layers.split(",")]
    matched = {n: m for n, m in model.named_modules() if any(fnmatchcase(n, pattern) for pattern in patterns)}
    wanted: dict[str, nn.Module] = {}
    for name, module in matched.items():
        if mixed_class(module) is not None:
            wanted[name] = module
        else:
            _refuse_unmixable_linear(name, module)
    if not wanted:
        known = [name for name, module in model.named_modules() if mixed_class(module) is not None][:3]
        found = f"only {', '.join(list(matched)[:3])}, which cannot be mixed" if matched else "no module"
        raise NoEffect(
            f"Mixout: the pattern {layers!r} matches {found}. Patterns are matched against whole module names such as "
            f"{', '.join(known) or '(this model has no layer that can be mixed)'}; "
            "or use layers='paper', 'linear' or 'all'."
        )
    return wanted


def _refuse_unmixable_linear(name: str, module: nn.Module) -> None:
    """A linear layer that would be left out silently is an error: quantised weights, or a forward of its own."""
    weight = getattr(module, "weight", None)
    origin = type(module).__module__
    quantised = any(word in origin for word in ("quantized", "bitsandbytes", "quanto", "gptq", "awq", "torchao"))
    if isinstance(weight, Tensor) and type(module).__name__.endswith("Linear") and not weight.is_floating_point():
        quantised = True
    if quantised:
        raise SteadytuneError(
            f"Mixout: {name} is a quantised layer ({type(module).__name__}); its weights cannot be mixed. Load the "
            "model in float32 or bfloat16, or select other layers by a pattern."
        )
    if isinstance(module, nn.Linear):
        raise SteadytuneError(
            f"Mixout: {name} is a {type(module).__name__}, a linear layer with a forward of its own; steadytune cannot "
            "know how it uses its weight. Select other layers by a pattern."
        )
