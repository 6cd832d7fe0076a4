"""Layer-wise learning-rate decay.

    lr(block i) = lr · d^(N + 1 - i),      head and pooler at lr, embeddings (i = 0) at lr · d^(N + 1)

Lower blocks hold general knowledge, so they should move less. (Howard & Ruder 2018; few-sample paper, section 7.)

Relations: d = 1 is one learning rate for all; freezing what lies below block k is the limit d -> 0 below k.
Caveats: each group carries `lr` itself, so any scheduler works (timm's `lr_scale` would be read only by timm's own).
A tied parameter has one learning rate, that of its lowest place: tied output embeddings move like the embeddings. In
an encoder-decoder the decoder's blocks are counted on top of the encoder's. The few-sample code gives head and pooler
no weight decay; here they are decayed like other weights, and `group["name"]` says which groups to change for the
paper's way.
"""

from __future__ import annotations

from torch import Tensor, nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import Layers, find_layers
from steadytune.methods.base import FEW_SAMPLE, Method, ParamGroup, Site, check_at_least, method
from steadytune.methods.weight_decay import decayed_names


def layerwise_lr(model: nn.Module, lr: float, decay: float = 0.95, weight_decay: float = 0.0) -> list[ParamGroup]:
    """Parameter groups with lr(part) = lr · d^(N + 1 - depth(part)), for any torch optimiser.

    Every trainable parameter is in exactly one group. Biases and norms are in groups of their own, without decay.

    Args:
        model: any model that `find_layers` knows.
        lr: of the head and the pooler.
        decay: d in (0, 1], per layer downwards.
        weight_decay: of all parameters but biases and norms.
    """
    check_at_least("lr", lr, 0.0, "layerwise_lr")
    check_at_least("weight_decay", weight_decay, 0.0, "layerwise_lr")
    _check_decay(decay, "layerwise_lr")
    decayed = decayed_names(model)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise NoEffect(f"layerwise_lr: no parameter of {type(model).__name__} requires a gradient.")
    groups: list[ParamGroup] = [
        {"params": [p for name, p in trained if name in decayed], "lr": lr, "weight_decay": weight_decay, "name": ""},
        {
            "params": [p for name, p in trained if name not in decayed],
            "lr": lr,
            "weight_decay": 0.0,
            "name": "no decay",
        },
    ]
    return split_by_depth(groups, find_layers(model), decay)


def split_by_depth(groups: list[ParamGroup], layers: Layers, decay: float) -> list[ParamGroup]:
    """Each group as one group per part, bottom to top, with its own lr · d^(N + 1 - depth(part)); other keys stay."""
    part_of = {p: part for part in layers.parts() for p in layers.parameters(part).values()}
    split: list[ParamGroup] = []
    for number, group in enumerate(groups):
        if "lr" not in group:
            raise SteadytuneError(
                f"LayerwiseLR: parameter group {number} carries no 'lr' to decay; write it into the group."
            )
        name = group.get("name", f"group {number}" if len(groups) > 1 else "")
        by_part: dict[str | int, list[Tensor]] = {part: [] for part in layers.parts()}
        for p in group["params"]:
            if p not in part_of:
                raise SteadytuneError(
                    f"LayerwiseLR: parameter group {number} holds a parameter of shape {tuple(p.shape)} that is not "
                    "the model's."
                )
            by_part[part_of[p]].append(p)
        for part, params in by_part.items():
            if params:
                label = f"block {part}" if isinstance(part, int) else part
                factor = decay ** (layers.count + 1 - layers.depth(part))
                split.append(
                    {
                        **group,
                        "params": params,
                        "lr": group["lr"] * factor,
                        "name": ", ".join(filter(None, [label, name])),
                    }
                )
    return split


@method("layerwise_lr", place="groups", paper=FEW_SAMPLE, items="V20", null={"decay": 1.0})
class LayerwiseLR(Method):
    """Give lower layers smaller learning rates: each layer the one above it times `decay`."""

    decay: float = 0.95  # d in (0, 1], per layer downwards; 1 is one learning rate for all

    def __post_init__(self) -> None:
        _check_decay(self.decay, "LayerwiseLR")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"learning rate per layer"})

    def check(self, site: Site) -> None:
        if self.is_null():
            return
        layers = site.layers
        trained = {part for part in layers.parts() if any(p.requires_grad for p in layers.parameters(part).values())}
        if len({layers.depth(part) for part in trained}) < 2:
            raise NoEffect(
                f"LayerwiseLR: the trainable parameters of {type(site.model).__name__} all lie at one depth, so one "
                "learning rate is all there is."
            )

    def groups(self, groups: list[ParamGroup], site: Site) -> list[ParamGroup]:
        return groups if self.is_null() else split_by_depth(groups, site.layers, self.decay)


def _check_decay(decay: float, owner: str) -> None:
    check_at_least("decay", decay, 0.0, owner)
    if not 0.0 < decay <= 1.0:
        raise SteadytuneError(
            f"{owner}: decay must lie in (0, 1], not {decay!r}; 1 is one learning rate for all layers."
        )
