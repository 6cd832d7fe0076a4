"""A model as a tree of named modules, without its wrappers: what `layers/` reads architectures from.

DDP, torch.compile, FSDP, activation checkpointing and PEFT wrap modules in modules. Here a wrapper and what it wraps
are one node, which knows its name in the bare model and every name it has in the model that was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

_STACK = re.compile(r"(?:^|[._])(?:h|layers?|blocks?|groups|stages)$")  # Hugging Face's can be one block, or a mixture
_WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer", "original_module"}


@dataclass(eq=False)
class Node:
    """A module of the bare model, its children in registration order. Its wrappers are spots of the same node."""

    name: str = ""  # as in the bare model
    parent: Node | None = None
    spots: list[tuple[str, nn.Module]] = field(default_factory=list)  # (full name, module), outermost first
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def full(self) -> str:
        return self.spots[0][0]

    @property
    def module(self) -> nn.Module:
        return self.spots[-1][1]

    @property
    def has_parameters(self) -> bool:
        return any(True for _ in self.spots[0][1].parameters())

    @property
    def is_linear(self) -> bool:
        return any(kind is nn.Linear or kind.__name__ == "Conv1D" for kind in type(self.module).__mro__)

    @property
    def starts_block(self) -> bool:
        return self.has_parameters and not re.search("Norm|PReLU|Embedding", type(self.module).__name__)

    @property
    def model_type(self) -> str:
        """Hugging Face's name of the architecture, or nothing. Inner modules hold a config too, but no prefix."""
        known = hasattr(type(self.module), "base_model_prefix")
        return str(getattr(getattr(self.module, "config", None), "model_type", "")) if known else ""

    def is_stack(self, hugging_face: bool) -> bool:
        items = list(self.children.values())
        if not items or any(isinstance(item.module, nn.Embedding) or not item.has_parameters for item in items):
            return False
        equal = len(items) > 1 and len({type(item.module) for item in items}) == 1
        if isinstance(self.module, nn.ModuleList):
            return equal or (hugging_face and bool(_STACK.search(self.name)))
        # A Sequential of whole blocks (timm) is a stack too; a Sequential of single layers is a perceptron.
        whole = all(item.children and not isinstance(item.module, nn.Sequential) for item in items)
        return isinstance(self.module, nn.Sequential) and equal and whole

    def child(self, path: str) -> Node | None:
        node: Node | None = self
        for step in path.split("."):
            node = node.children.get(step) if node else None
        return node

    def ancestors(self) -> list[Node]:
        return [self.parent, *self.parent.ancestors()] if self.parent else []

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children.values():
            yield from child.walk()

    def names(self) -> Iterator[str]:
        """Every name, of module or parameter, at this node and below."""
        for node in self.walk():
            for full, module in node.spots:
                yield from (full, *(join(full, own) for own in module._parameters))


def read_tree(module: nn.Module, full: str, node: Node) -> Node:
    node.spots.append((full, module))
    for step, child in module._modules.items():
        if child is not None and _wraps(module, full, step):
            read_tree(child, join(full, step), node)
        elif child is not None:
            read_tree(child, join(full, step), node.children.setdefault(step, Node(join(node.name, step), node)))
    return node


def _wraps(module: nn.Module, full: str, step: str) -> bool:
    """Is this step of a name a wrapper's, and not the bare model's?"""
    peft = type(module).__module__.startswith("peft.") and step in {"base_model", "model", "modules_to_save"}
    alone = step == "module" and len(module._modules) == 1 and not module._parameters  # DDP, and all who do as it does
    return step in _WRAPPED or peft or alone or full.endswith(".modules_to_save")


def join(*steps: str) -> str:
    return ".".join(step for step in steps if step)
