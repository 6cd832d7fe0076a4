"""Which part of a model is what: embeddings, block 1..N, pooler, head.

    embeddings -> block 1 -> ... -> block N -> pooler -> head        depth: 0, 1, ..., N, N + 1, N + 1

This is the only file that knows architectures. The idea, for any transformer:

1. Wrappers (DDP, torch.compile, FSDP, PEFT) are seen through: a wrapper and what it wraps are one node of the tree.
2. The *stack* is the longest ModuleList of equal blocks (two of them in an encoder-decoder); its items are the blocks.
3. Everything else hangs beside the stack, on one of its ancestors. Outside Hugging Face's base model it is a pooler or
   the head. Inside, its name says what it is, with whether it was registered before or after the stack.
4. What still has no place is refused by name. A parameter in no part would be trained, decayed or re-initialised
   silently wrong, and the experiment with it.

A norm after the last block belongs to that block. The pooler is the dense layer between the last block and the output
projection: `classifier.dense` in RoBERTa (ACCEPTANCE D12), but nothing in ELECTRA, XLNet, BART and T5 (V10).
Relations: re-init asks `top_blocks`, layer-wise learning rates ask `depth`, mixout asks `fed_by_activation`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from torch import nn

from steadytune.errors import SteadytuneError
from steadytune.module_tree import Node, join, read_tree

EMBEDDINGS, POOLER, HEAD = "embeddings", "pooler", "head"
Part = str | int  # a block is its number, 1..N from the bottom


# --- what is known about architectures: data, no code -----------------------------------------------------------------

_LAST = "the last block of the stack it belongs to"


@dataclass(frozen=True)
class _Family:
    """How an architecture differs from the rules below."""

    places: dict[str, Part] = field(default_factory=dict)  # by name inside the base model
    poolers: tuple[tuple[str, str], ...] = (  # outside it: the pooler, and the projection it feeds. Both, or no pooler.
        ("classifier.dense", "classifier.out_proj"),  # RoBERTa, XLM-R, CamemBERT, MPNet
        ("pre_classifier", "classifier"),  # DistilBERT
        ("dense", "classifier"),  # EuroBERT
        ("head", "classifier"),  # ModernBERT, whose masked-language model has a `head` too, but feeds a `decoder`
    )
    group: str = ""  # the list of blocks inside an item of the stack, where layers share blocks
    one_input: bool = True  # query, key and value read the same tensor


_PLAIN = _Family()
_FAMILIES: dict[str, _Family] = {
    "albert": _Family(group="albert_layers"),
    "deberta": _Family(places={"encoder.LayerNorm": EMBEDDINGS}),  # the norm of the relative positions
    "deberta-v2": _Family(places={"encoder.LayerNorm": EMBEDDINGS, "encoder.conv": 1}),  # the conv runs beside block 1
    "electra": _Family(poolers=()),
    "mobilebert": _Family(one_input=False),  # its value reads around the bottleneck
    "lfm2": _Family(places={"embedding_norm": _LAST}),  # in spite of its name
    "t5gemma": _Family(places={"encoder.norm": _LAST, "decoder.norm": _LAST}),  # registered before the blocks
    # Nothing special: these follow the rules, and the tests hold them to it.
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert", "mpnet"], _PLAIN),
    **dict.fromkeys(["modernbert", "xlnet", "bart", "mbart", "marian", "pegasus", "t5", "mt5"], _PLAIN),
    **dict.fromkeys(["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "opt"], _PLAIN),
    **dict.fromkeys(["vit", "deit", "beit"], _PLAIN),
}

_NAMES = [  # of what hangs beside the stack: registered where, called what, is which part. The first match counts.
    ("anywhere", r"pool", POOLER),
    ("anywhere", r"(?:final|post|last)_?(?:layer_?)?norm|(?:norm|ln)_f$|ln_post|ln_out", _LAST),
    ("anywhere", r"hc_head|unembed|project_out", _LAST),
    ("anywhere", r"emb|^wte$|^wpe$|^shared$|token|^pos(?!t)|patch|relative_|rel_pos|prompt", EMBEDDINGS),
    ("anywhere", r"project_in|per_layer|altup", EMBEDDINGS),
    ("parameter", r"^cls$|^pe$", EMBEDDINGS),
    ("anywhere", r"(?:^|_)head|classif|^score$|^cls$|qa_out|logit|^lm_|predict|(?:output|text|visual)_proj", HEAD),
    ("before", r"conv|stem|feature|input|norm|^ln", EMBEDDINGS),
    ("after", r"norm|^ln", _LAST),
    ("after, in a model of your own", r"^fc|^out|linear|dense|proj|^decoder$", HEAD),
]  # fmt: skip
# The Linear of a block that consumes the feed-forward activation (LoRA's A matrix reads the same one).
_FEED_FORWARD_OUT = re.compile(
    r"\.(?<!attention\.)(?<!attn\.)(?:output\.dense|ffn\.lin2|ffn_output|mlp\.c_proj|down_proj|wo|fc2|ff\.layer_2|mlp\.Wo|linear2"
    r"|dense_4h_to_h|fc_out|output_dense|feed_forward\.output|pwconv2|w2|w_out|linear_2)(?:\.lora_A\.\w+)?$"
)
_QKV = [
    tuple(form.format(name) for name in names)
    for names in (("query", "key", "value"), ("q", "k", "v"))
    for form in ("{}", "{}_proj", "{}_lin", "to_{}", "w{}")
]
_CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn", re.IGNORECASE)  # there the query reads another input


# --- the answer -------------------------------------------------------------------------------------------------------


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
    family, kind = _FAMILIES.get(core.model_type, _PLAIN), type(root.module).__name__

    part_of: dict[str, Part] = {}
    stacks = _stacks(base, bool(core.model_type))
    top_stack = _place_blocks(stacks, family.group, part_of)
    chain = [] if stacks else _chain(root)
    _place_chain(chain, part_of)
    if stacks:
        _place_beside(base, stacks, part_of)
        exceptions: dict[Node | None, Part] = {base.child(name): part for name, part in family.places.items()}
        if base is not core:
            exceptions |= {core.child(name): POOLER for name, feeds in family.poolers if core.child(feeds)}
        for node, part in exceptions.items():
            if node and node.parent:
                _put(node, _last_block(node.parent, part_of) if part == _LAST else part, part_of)
    _refuse_lost(model, kind, stacks, part_of)

    blocks = [node for node in root.walk() if isinstance(part_of.get(node.full), int)] if stacks else []
    fed = {name for node in blocks for name in _fed_in_block(node)} | set(_fed_in_chain(chain))
    clear = {part_of[name] for name in fed} | {part for name, part in part_of.items() if _FEED_FORWARD_OUT.search(name)}
    return Layers(
        family=(core.model_type if core.model_type in _FAMILIES else "generic") if stacks else "sequential",
        count=max((part for part in part_of.values() if isinstance(part, int)), default=0),
        model=model,
        _kind=kind,
        _part_of=part_of,
        _tops=_tops(root, part_of, set()),
        _top_stack=top_stack,
        _shared_by=int(core.module.config.num_hidden_layers) if family.group else 0,  # type: ignore
        _fed=frozenset(fed),
        _unclear=frozenset(part_of[node.full] for node in blocks if node.is_linear) - clear,
        _same_input=tuple(group for node in blocks for group in _same_input(node)) if family.one_input else (),
    )


# --- placing ----------------------------------------------------------------------------------------------------------


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
            f"Give their modules telling names (embeddings, norm, pooler, head), or add {kind} to {__name__}."
            if stacks
            else f"Cannot place {which}: {some}. It has no ModuleList of equal blocks and is not an nn.Sequential. "
            f"Put its blocks in one nn.ModuleList, or add {kind} to {__name__}."
        )


def _stacks(base: Node, hugging_face: bool) -> list[Node]:
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


def _put(node: Node, part: Part, part_of: dict[str, Part]) -> None:
    part_of |= dict.fromkeys(node.names(), part)


def _place_blocks(stacks: list[Node], group: str, part_of: dict[str, Part]) -> int:
    """Number the blocks from the bottom. Returns the first number in the last stack."""
    numbers: dict[int, int] = {}  # by identity: a block that is used several times is one block
    first = 1
    for stack in stacks:
        first = len(numbers) + 1
        for item in stack.children.values():
            for block in item.children[group].children.values() if group else (item,):
                _put(block, numbers.setdefault(id(block.module), len(numbers) + 1), part_of)
    return first


def _place_beside(base: Node, stacks: list[Node], part_of: dict[str, Part]) -> None:
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
                part = EMBEDDINGS if not passed else _LAST if "Norm" in type(child.module).__name__ else HEAD
            if part is None and not child.has_parameters:  # a dropout, an activation
                part = _LAST if passed else EMBEDDINGS
            if part is not None:
                _put(child, _last_block(passed or holder, part_of) if part == _LAST else part, part_of)
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
        part for at, name, part in _NAMES if (at == "anywhere" or where.startswith(at)) and re.search(name, step, re.I)
    )
    return next(fits, None)


def _last_block(node: Node, part_of: dict[str, Part]) -> int:
    return max(part for below in node.walk() if isinstance(part := part_of.get(below.full), int))


def _chain(node: Node) -> list[Node]:
    """The layers of a perceptron in order: (nested) Sequentials, or a module that holds them. Empty if it is none."""
    if isinstance(node.module, nn.Linear):
        return [node]
    if not isinstance(node.module, nn.Sequential):
        # Of several, only Sequentials before one that says it is the head: else the order of use would be a guess.
        *body, last = [step for step, child in node.children.items() if child.has_parameters] or [""]
        ordered = not body or _part_by_name(last, "after, in a model of your own") == HEAD
        plain = all(isinstance(node.children[step].module, nn.Sequential) for step in body)
        own = any(module._parameters for _, module in node.spots)
        if not last or own or not ordered or not plain or not _chain(node.children[last]):
            return []
    return [layer for child in node.children.values() for layer in (_chain(child) or [child])]


def _place_chain(chain: list[Node], part_of: dict[str, Part]) -> None:
    """Block i is the i-th layer with weights, and the norm, activation, dropout after it. The last one is the head."""
    number, embedded, last = 0, False, sum(node.starts_block for node in chain)
    for node in chain:
        number += node.starts_block
        embedded = embedded or "Embedding" in type(node.module).__name__
        part: Part = max(number, 1)
        _put(node, EMBEDDINGS if embedded and not number else HEAD if part == last else part, part_of)


def _tops(node: Node, part_of: dict[str, Part], seen: set[int]) -> dict[str, Part]:
    """The topmost modules that are of one part; of a module that was cut (RoBERTa's classifier), its children."""
    parts = {part_of.get(full) for below in node.walk() for full, _ in below.spots}
    if len(parts) > 1 or None in parts:
        return {full: part for child in node.children.values() for full, part in _tops(child, part_of, seen).items()}
    tops: dict[str, Part] = {}
    for full, module in node.spots:
        if node.has_parameters and id(module) not in seen and not any(full.startswith(f"{top}.") for top in tops):
            tops[full] = part_of[full]
        seen.add(id(module))
    return tops


# --- inside a block ---------------------------------------------------------------------------------------------------


def _fed_in_block(node: Node) -> list[str]:
    if isinstance(node.module, nn.Sequential):
        return _fed_in_chain(_chain(node))
    return [full for full, _ in node.spots] if node.has_parameters and _FEED_FORWARD_OUT.search(node.name) else []


def _fed_in_chain(chain: list[Node]) -> list[str]:
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


def _same_input(node: Node) -> list[tuple[str, ...]]:
    for names in _QKV:
        readers = [node.children[name] for name in names if name in node.children and node.children[name].is_linear]
        if len(readers) == 3:
            return [tuple(reader.spots[-1][0] for reader in readers[1 if _CROSS.search(node.name) else 0 :])]
    return []


def _exists(model: nn.Module, name: str) -> bool:
    every = (model.named_modules, model.named_parameters, model.named_buffers)
    return any(name == known for named in every for known, _ in named(remove_duplicate=False))
