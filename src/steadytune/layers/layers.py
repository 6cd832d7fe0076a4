"""The answer: which part of one model each of its parameters and modules is."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from torch import nn

from steadytune.errors import SteadytuneError
from steadytune.layers.families import EMBEDDINGS, FAMILIES, FEED_FORWARD_OUT, HEAD, LAST, PLAIN, POOLER, Part
from steadytune.layers.placing import (
    fed_in_block,
    fed_in_chain,
    find_chain,
    find_stacks,
    find_tops,
    last_block,
    place_beside_,
    place_blocks_,
    place_chain_,
    put_,
    same_input,
)
from steadytune.module_tree import Node, read_tree


@dataclass(frozen=True, eq=False)
class Layers:
    """Where each parameter and module of one model belongs. Names are those of the model that was given."""

    family: str  # the `model_type` of a family in the table; "sequential"; "generic" when found by its shape alone
    count: int  # N, the number of distinct blocks
    model: nn.Module = field(repr=False)
    _kind: str = field(repr=False)  # the class of the bare model, for messages
    _part_of: dict[str, Part] = field(repr=False)  # every placed module and parameter
    _tops: dict[str, Part] = field(repr=False)  # the topmost modules only
    _top_stack: int = field(repr=False)  # the first block that counts from the top: the decoder's, if there is one
    _shared_by: int = field(repr=False)  # ALBERT: how many layers share the blocks; 0 elsewhere
    _fed: frozenset[str] = field(repr=False)
    _unclear: frozenset[Part] = field(repr=False)  # blocks in which no feed-forward output was recognised
    _same_input: tuple[tuple[str, ...], ...] = field(repr=False)

    def part(self, name: str) -> Part:
        """The part of a parameter or module, by its full name. A module that spans several parts has none."""
        prefix = name
        while prefix and prefix not in self._part_of:  # added since (an adapter): it goes with the module that holds it
            prefix = prefix.rpartition(".")[0]
        if prefix in self._part_of and (prefix == name or _exists(self.model, name)):
            return self._part_of[prefix]
        if not _exists(self.model, name):
            near = difflib.get_close_matches(name, self._part_of, n=1, cutoff=0.0)[0]
            raise SteadytuneError(f"{self._kind} has no parameter or module {name!r}. The nearest is {near!r}.")
        inside = {part for known, part in self._part_of.items() if not name or known.startswith(f"{name}.")}
        if len(inside) == 1:
            return inside.pop()
        raise SteadytuneError(f"{name!r} of {self._kind} spans several parts: ask for the modules inside it.")

    def depth(self, part: Part) -> int:
        """Embeddings 0, block i is i, pooler and head N + 1."""
        if part == EMBEDDINGS:
            return 0
        if part in (POOLER, HEAD):
            return self.count + 1
        if isinstance(part, int) and not isinstance(part, bool) and 1 <= part <= self.count:
            return part
        blocks = f"the blocks 1 to {self.count}"
        raise SteadytuneError(
            f"{self._kind} has no part {part!r}: parts are {EMBEDDINGS!r}, {blocks}, {POOLER!r} and {HEAD!r}."
        )

    def parameters(self, part: Part) -> dict[str, nn.Parameter]:
        """The parameters of a part by full name. A tied one is listed once, at its lowest place."""
        wanted = self._rank(part)
        lowest: dict[int, tuple[int, str, nn.Parameter]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            rank = self._rank(self.part(name))
            if id(parameter) not in lowest or rank < lowest[id(parameter)][0]:
                lowest[id(parameter)] = (rank, name, parameter)
        return {name: parameter for rank, name, parameter in lowest.values() if rank == wanted}

    def modules(self, part: Part) -> dict[str, nn.Module]:
        """The topmost modules that hold a part's parameters, by full name."""
        self.depth(part)
        return {name: self.model.get_submodule(name) for name, its in self._tops.items() if its == part}

    def parts(self) -> list[Part]:
        """The parts that exist, bottom to top. A head whose only weight is tied to the embeddings does exist."""
        there = {self.part(name) for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return sorted(there, key=self._rank)

    @property
    def top_count(self) -> int:
        """How many blocks count from the top: all of them, or those of the decoder (V10)."""
        return self.count - self._top_stack + 1

    def top_blocks(self, count: int) -> list[int]:
        """The top `count` blocks, lowest first; in an encoder-decoder those of the decoder only (V10)."""
        there = self.top_count
        if 0 <= count <= there:
            return list(range(self.count - count + 1, self.count + 1))
        where = " in its decoder, the only ones that count from the top" if self._top_stack > 1 else ""
        shared = f" (its {self._shared_by} layers share blocks)" if self._shared_by else ""
        raise SteadytuneError(
            f"Cannot take the top {count} blocks of {self._kind}: there are {there}{where}{shared}. "
            f"Ask for 0 to {there}."
        )

    def fed_by_activation(self, name: str) -> bool:
        """Is this the Linear that consumes the feed-forward activation, as `output.dense` of a BERT block? (M9)"""
        if name not in self._part_of and not _exists(self.model, name):
            self.part(name)  # raises, and says the nearest name
        if self._part_of.get(name) in self._unclear:
            raise SteadytuneError(
                f"Cannot tell which Linear of block {self._part_of[name]} of {self._kind} consumes the feed-forward "
                f"activation: none has a name that is known. Choose the modules by name instead."
            )
        return name in self._fed

    def same_input(self) -> list[tuple[str, ...]]:
        """Linear modules that read the same tensor: (query, key, value); (key, value) where the query reads another.

        Caveat: DeBERTa with `share_att_key` calls query and key a second time, on the relative positions.
        """
        return list(self._same_input)

    def _rank(self, part: Part) -> int:
        return self.depth(part) + (part == HEAD)


def find_layers(model: nn.Module) -> Layers:
    """Place every parameter of `model`, or raise an error that names those that could not be placed."""
    root = read_tree(model, "", Node())
    core = next((node for node in root.walk() if node.model_type), root)  # the Hugging Face model, if there is one
    base = core.child(getattr(core.module, "base_model_prefix", "")) or core
    if not base.model_type or "embeddings" in core.children:  # core itself is the base (DINOv3's has a `model` inside)
        base = core
    family, kind = FAMILIES.get(core.model_type, PLAIN), type(root.module).__name__

    part_of: dict[str, Part] = {}
    stacks = find_stacks(base, bool(core.model_type))
    top_stack = place_blocks_(stacks, family.group, part_of)
    chain = [] if stacks else find_chain(root)
    place_chain_(chain, part_of)
    if stacks:
        place_beside_(base, stacks, part_of)
        exceptions: dict[Node | None, Part] = {base.child(name): part for name, part in family.places.items()}
        if base is not core:
            exceptions |= {core.child(name): POOLER for name, feeds in family.poolers if core.child(feeds)}
        for node, part in exceptions.items():
            if node and node.parent:
                put_(node, last_block(node.parent, part_of) if part == LAST else part, part_of)
    _refuse_lost(model, kind, stacks, part_of)

    blocks = [node for node in root.walk() if isinstance(part_of.get(node.full), int)] if stacks else []
    fed = {name for node in blocks for name in fed_in_block(node)} | set(fed_in_chain(chain))
    clear = {part_of[name] for name in fed} | {part for name, part in part_of.items() if FEED_FORWARD_OUT.search(name)}
    return Layers(
        family=(core.model_type if core.model_type in FAMILIES else "generic") if stacks else "sequential",
        count=max((part for part in part_of.values() if isinstance(part, int)), default=0),
        model=model,
        _kind=kind,
        _part_of=part_of,
        _tops=find_tops(root, part_of, set()),
        _top_stack=top_stack,
        _shared_by=int(core.module.config.num_hidden_layers) if family.group else 0,  # type: ignore
        _fed=frozenset(fed),
        _unclear=frozenset(part_of[node.full] for node in blocks if node.is_linear) - clear,
        _same_input=tuple(group for node in blocks for group in same_input(node)) if family.one_input else (),
    )


def _refuse_lost(model: nn.Module, kind: str, stacks: list[Node], part_of: dict[str, Part]) -> None:
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if not names:
        raise SteadytuneError(f"{kind} has no parameters, so there is nothing to place or to train.")
    lost = [name for name in names if name not in part_of]
    if lost:
        which = f"{len(lost)} of {len(names)} parameters of {kind}"
        some = ", ".join(lost[:4]) + (" and so on" if lost[4:] else "")
        raise SteadytuneError(
            f"Cannot place {which} beside the blocks in {' and '.join(repr(stack.full) for stack in stacks)}: {some}. "
            f"Give their modules telling names (embeddings, norm, pooler, head), or add {kind} to {__package__}."
            if stacks
            else f"Cannot place {which}: {some}. It has no ModuleList of equal blocks and is not an nn.Sequential. "
            f"Put its blocks in one nn.ModuleList, or add {kind} to {__package__}."
        )


def _exists(model: nn.Module, name: str) -> bool:
    every = (model.named_modules, model.named_parameters, model.named_buffers)
    return any(name == known for named in every for known, _ in named(remove_duplicate=False))
