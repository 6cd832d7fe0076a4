"""How the parts of a model are told by its tree, the names in it and the order of registration."""

from __future__ import annotations

import re

from torch import nn

from steadytune.layers.families import (
    CROSS,
    EMBEDDINGS,
    FEED_FORWARD_OUT,
    HEAD,
    LAST,
    NAMES,
    POOLER,
    QKV,
    Part,
)
from steadytune.module_tree import Node, join


def find_stacks(base: Node, hugging_face: bool) -> list[Node]:
    """The longest stack, with its partner in an encoder-decoder, encoder first. Stacks inside blocks do not count."""

    def outermost(node: Node) -> list[Node]:
        if node.is_stack(hugging_face):
            return [node]
        return [stack for child in node.children.values() for stack in outermost(child)]

    def partners(one: Node, other: Node) -> bool:  # their names part as "...encoder..." and "...decoder..."
        steps = zip(one.name.split("."), other.name.split("."))
        first, second = next(((x, y) for x, y in steps if x != y), ("", ""))
        return "encoder" in first and "decoder" in second

    found = sorted(outermost(base), key=lambda node: -len(node.children))
    pairs = [pair for other in found[1:] for pair in ([found[0], other], [other, found[0]])]
    return next((pair for pair in pairs if partners(*pair)), found[:1])


def put_(node: Node, part: Part, part_of: dict[str, Part]) -> None:
    part_of |= dict.fromkeys(node.names(), part)


def place_blocks_(stacks: list[Node], group: str, part_of: dict[str, Part]) -> int:
    """Number the blocks from the bottom. Returns the first number in the last stack."""
    numbers: dict[int, int] = {}  # by identity: a block that is used several times is one block
    first = 1
    for stack in stacks:
        first = len(numbers) + 1
        for item in stack.children.values():
            for block in item.children[group].children.values() if group else (item,):
                put_(block, numbers.setdefault(id(block.module), len(numbers) + 1), part_of)
    return first


def place_beside_(base: Node, stacks: list[Node], part_of: dict[str, Part]) -> None:
    """Place what hangs on the ancestors of the stacks, as far as it can be told."""
    ancestors = {up for stack in stacks for up in stack.ancestors()}
    for holder in ancestors:
        outside = holder in base.ancestors()
        passed: Node | None = None  # the way to a stack, once we have passed it
        for step, child in holder.children.items():
            if child in ancestors or child in stacks:
                passed = child
                continue
            where = "before" if not passed else "after" if base.model_type else "after, in a model of your own"
            part = _part_outside(step, child) if outside else _part_by_name(step, where, child)
            if part is None and isinstance(holder.module, nn.Sequential):  # used in the order of registration
                part = EMBEDDINGS if not passed else LAST if "Norm" in type(child.module).__name__ else HEAD
            if part is None and not child.has_parameters:  # a dropout, an activation
                part = LAST if passed else EMBEDDINGS
            if part is not None:
                put_(child, last_block(passed or holder, part_of) if part == LAST else part, part_of)
        for full, module in holder.spots:
            for own in module._parameters:
                part = HEAD if outside else _part_by_name(own, "parameter")
                if part is not None:
                    part_of[join(full, own)] = part


def _part_outside(step: str, node: Node) -> Part | None:
    if any(inner.model_type for inner in node.walk()):
        return None  # a twin tower is neither below the first one nor above it
    if isinstance(node.module, nn.Embedding) or "prompt" in step:  # PEFT's prompts
        return EMBEDDINGS
    return POOLER if "pool" in step else HEAD


def _part_by_name(step: str, where: str, node: Node | None = None) -> Part | None:
    if node and isinstance(node.module, nn.Embedding):
        return EMBEDDINGS
    if node and "Pool" in type(node.module).__name__:  # SigLIP's `head`
        return POOLER
    fits = (
        part for at, name, part in NAMES if (at == "anywhere" or where.startswith(at)) and re.search(name, step, re.I)
    )
    return next(fits, None)


def last_block(node: Node, part_of: dict[str, Part]) -> int:
    return max(part for below in node.walk() if isinstance(part := part_of.get(below.full), int))


def find_chain(node: Node) -> list[Node]:
    """The layers of a perceptron in order: (nested) Sequentials, or a module that holds them. Empty if it is none."""
    if isinstance(node.module, nn.Linear):
        return [node]
    if not isinstance(node.module, nn.Sequential):
        # Of several, only Sequentials before one that says it is the head: else the order of use would be a guess.
        *body, last = [step for step, child in node.children.items() if child.has_parameters] or [""]
        ordered = not body or _part_by_name(last, "after, in a model of your own") == HEAD
        plain = all(isinstance(node.children[step].module, nn.Sequential) for step in body)
        own = any(module._parameters for _, module in node.spots)
        if not last or own or not ordered or not plain or not find_chain(node.children[last]):
            return []
    return [layer for child in node.children.values() for layer in (find_chain(child) or [child])]


def place_chain_(chain: list[Node], part_of: dict[str, Part]) -> None:
    """Block i is the i-th layer with weights, and the norm, activation, dropout after it. The last one is the head."""
    number, embedded, last = 0, False, sum(node.starts_block for node in chain)
    for node in chain:
        number += node.starts_block
        embedded = embedded or "Embedding" in type(node.module).__name__
        part: Part = max(number, 1)
        put_(node, EMBEDDINGS if embedded and not number else HEAD if part == last else part, part_of)


def find_tops(node: Node, part_of: dict[str, Part], seen: set[int]) -> dict[str, Part]:
    """The topmost modules that are of one part; of a module that was cut (RoBERTa's classifier), its children."""
    parts = {part_of.get(full) for below in node.walk() for full, _ in below.spots}
    if len(parts) > 1 or None in parts:
        return {
            full: part for child in node.children.values() for full, part in find_tops(child, part_of, seen).items()
        }
    tops: dict[str, Part] = {}
    for full, module in node.spots:
        if node.has_parameters and id(module) not in seen and not any(full.startswith(f"{top}.") for top in tops):
            tops[full] = part_of[full]
        seen.add(id(module))
    return tops


# --- inside a block ---------------------------------------------------------------------------------------------------


def fed_in_block(node: Node) -> list[str]:
    if isinstance(node.module, nn.Sequential):
        return fed_in_chain(find_chain(node))
    return [full for full, _ in node.spots] if node.has_parameters and FEED_FORWARD_OUT.search(node.name) else []


def fed_in_chain(chain: list[Node]) -> list[str]:
    """Each Linear right after an activation; a norm, a dropout or a reshape between them changes nothing."""
    fed: list[str] = []
    active = False
    for node in chain:
        if active and node.is_linear:
            fed += [full for full, _ in node.spots]
        if node.starts_block:
            active = False
        elif re.search(r"\.activations?$", type(node.module).__module__):
            active = True
    return fed


def same_input(node: Node) -> list[tuple[str, ...]]:
    for names in QKV:
        readers = [node.children[name] for name in names if name in node.children and node.children[name].is_linear]
        if len(readers) == 3:
            return [tuple(reader.spots[-1][0] for reader in readers[1 if CROSS.search(node.name) else 0 :])]
    return []
