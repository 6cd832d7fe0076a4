"""From rows to numbers, once: token ids or pixels of every split, reused by every run of a recipe.

    encoded = encode(data, recipe)                  # tokenises train, validation and test
    train(recipe, encoded, Streams(init=0, ...))    # as often as one likes

    kind                         a row is                               what is learned
    classification, regression   one text, or a pair, cut to max_length   a class, a number
    image                        pixels as they are (uint8)               a class
    translation, summarization   the source's tokens                      the target's tokens, ending in the end token
    language-model               a block of max_length tokens             each next token

A language model's text is the lines joined by newlines. Its blocks overlap by one token, so that every token but the
first is predicted exactly once. Attention masks are not stored: they follow from the lengths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.models import load_config, load_pixels, load_tokenizer, position_limit, source
from steadytune.recipe import Recipe
from steadytune.tasks.base import Data, Rows, Task

TEXT_PAIRS = ("translation", "summarization")
_AT_ONCE = 1000  # rows handed to the tokenizer together
_LINES = 2000  # lines of a language model's text handed to the tokenizer as one text

Report = Callable[[str, int, int], None]  # (split, rows done, rows in all)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, end to end in one array."""

    values: np.ndarray
    ends: np.ndarray  # row i is values[ends[i] : ends[i + 1]]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | np.ndarray]) -> Ragged:
        parts = [np.asarray(row, dtype=np.int32) for row in rows]
        ends = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=ends[1:])
        return cls(np.concatenate([np.zeros(0, dtype=np.int32), *parts]), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.ends[row] : self.ends[row + 1]]

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends)

    def padded(self, rows: np.ndarray, width: int, fill: int, left: bool = False) -> np.ndarray:
        """int64 [rows, width]"""
        made = np.full((len(rows), width), fill, dtype=np.int64)
        for at, row in enumerate(rows):
            ids = self[row]
            made[at, width - len(ids) if left else 0 : width if left else len(ids)] = ids
        return made


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of one split as a model reads them."""

    inputs: Mapping[str, Ragged]  # input_ids, and token_type_ids where the model has them; empty for images
    pixels: np.ndarray | None  # uint8, as in Rows
    labels: np.ndarray | Ragged | None  # classes or numbers; the target's tokens; None where not known
    weights: np.ndarray  # what each row counts in a batch's mean: 1, or its predicted tokens
    sizes: np.ndarray  # [rows, 1 or 2]: tokens of the input, and of the target
    references: Sequence[str] = ()  # the targets as texts, to be scored against
    cut: int = 0  # rows that were longer than max_length

    def __len__(self) -> int:
        return len(self.sizes)

    def arrays(self) -> list[np.ndarray]:
        """All numbers, in a fixed order: what the fingerprint is over."""
        ragged = [self.inputs[name] for name in sorted(self.inputs)]
        found = [part for each in ragged for part in (each.values, each.ends)]
        labels = [self.labels.values, self.labels.ends] if isinstance(self.labels, Ragged) else [self.labels]
        return [part for part in (*found, self.pixels, *labels) if part is not None]


@dataclass(frozen=True)
class Pixels:
    """How an image becomes a model's input: size, channels, and (x / 255 - mean) / std."""

    size: tuple[int, int] | None  # (height, width); None keeps the images' own
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, config: Any, settings: Mapping[str, Any]) -> Pixels:
        size = getattr(config, "image_size", None)
        channels = int(getattr(config, "num_channels", 3))

        def each(name: str) -> tuple[float, ...]:
            value = settings.get(name, 0.5)
            many = [float(v) for v in value] if isinstance(value, (list, tuple)) else [float(value)]
            return tuple(many if len(many) == channels else [sum(many) / len(many)] * channels)

        pair = None if size is None else (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        return cls(pair, channels, each("image_mean"), each("image_std"))


@dataclass(frozen=True, eq=False)
class Encoder:
    """A tokenizer or pixel rule with its lengths: what turns rows into a `Split`, for training and for predicting."""

    task: Task
    tokenizer: Any = None
    max_length: int = 128
    max_target_length: int = 128
    pixels: Pixels | None = None

    @classmethod
    def of(cls, recipe: Recipe, task: Task) -> Encoder:
        config = load_config(recipe, task)
        if task.kind == "image":
            return cls(task, pixels=Pixels.of(config, load_pixels(recipe)))
        limit = position_limit(config)
        target = recipe.max_target_length or recipe.max_length
        for name, value in (("max_length", recipe.max_length), ("max_target_length", target)):
            if limit is not None and value > limit:
                raise SteadytuneError(
                    f"{name} is {value}, but {source(recipe)} has positions for {limit} tokens only: set it to at most "
                    f"{limit}."
                )
        if len(task.text_columns) > 2:
            raise SteadytuneError(f"A model reads one text or a pair, not {len(task.text_columns)}; join some columns.")
        return cls(task, load_tokenizer(recipe), recipe.max_length, target)

    def encode(self, rows: Rows, report: Callable[[int, int], None] | None = None) -> Split:
        """The rows as numbers. Labels and targets may be missing."""
        report = report or (lambda done, total: None)
        if self.task.kind == "image":
            ones = np.ones(len(rows), dtype=np.int64)
            return Split({}, rows.images, rows.labels, ones, ones[:, None])
        if self.task.kind == "language-model":
            return self._blocks(rows, report)
        inputs, cut = self._tokens(rows, report)
        lengths = inputs["input_ids"].lengths
        if self.task.kind not in TEXT_PAIRS or rows.targets is None:
            return Split(inputs, None, rows.labels, np.ones(len(rows), dtype=np.int64), lengths[:, None], cut=cut)
        targets = self._targets(rows.targets)
        sizes = np.stack([lengths, targets.lengths], axis=1)
        return Split(inputs, None, targets, targets.lengths, sizes, rows.targets, cut)

    def _tokens(self, rows: Rows, report: Callable[[int, int], None]) -> tuple[dict[str, Ragged], int]:
        names = [name for name in ("input_ids", "token_type_ids") if name in self.tokenizer.model_input_names]
        found: dict[str, list[Sequence[int]]] = {name: [] for name in names}
        cut = 0
        for texts in _slices(rows.texts, _AT_ONCE):
            columns = [list(column) for column in zip(*texts)]
            made = self.tokenizer(
                *columns,
                truncation=True,
                max_length=self.max_length,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids="token_type_ids" in names,
            )
            for name in names:
                found[name] += made[name]
            cut += sum(bool(each.overflowing) for each in made.encodings or ())
            report(len(found["input_ids"]), len(rows))
        filler = next(
            number
            for name in ("bos_token_id", "eos_token_id", "pad_token_id")
            if (number := getattr(self.tokenizer, name)) is not None
        )
        for at, ids in enumerate(found["input_ids"]):
            if not ids:  # an empty text, and a tokenizer that adds nothing: attention needs something to look at
                for name in names:
                    found[name][at] = [filler if name == "input_ids" else 0]
        return {name: Ragged.of(values) for name, values in found.items()}, cut

    def _targets(self, texts: Sequence[str]) -> Ragged:
        most, end = self.max_target_length, self.tokenizer.eos_token_id
        found: list[list[int]] = []
        for some in _slices(texts, _AT_ONCE):
            made = self.tokenizer(text_target=list(some), truncation=True, max_length=most, padding=False)["input_ids"]
            # Without an end token the model would never learn to stop.
            found += [ids if end is None or end in ids else [*ids[: most - 1], end] for ids in made]
        return Ragged.of(found)

    def _blocks(self, rows: Rows, report: Callable[[int, int], None]) -> Split:
        ids: list[np.ndarray] = []
        done = 0
        for lines in _slices(rows.texts, _LINES):
            done += len(lines)
            text = "\n".join(line for (line,) in lines) + ("\n" if done < len(rows) else "")
            made = self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
            ids.append(np.asarray(made, dtype=np.int32))
            report(done, len(rows))
        tokens = np.concatenate(ids)
        if len(tokens) < 2 or self.max_length < 2:
            raise SteadytuneError(f"{rows.source.file}: a language model needs at least two tokens to learn from.")
        starts = range(0, len(tokens) - 1, self.max_length - 1)
        blocks = Ragged.of(tokens[start : start + self.max_length] for start in starts)
        return Split({"input_ids": blocks}, None, blocks, blocks.lengths - 1, blocks.lengths[:, None])


@dataclass(frozen=True, eq=False)
class Encoded:
    """A task's splits as numbers, and what they were made with."""

    encoder: Encoder
    splits: Mapping[str, Split]
    source: str  # of the tokenizer
    data: str  # fingerprint of the rows
    notes: tuple[str, ...] = field(default=())

    @property
    def task(self) -> Task:
        return self.encoder.task

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over every number that training and scoring see."""
        digest = hashlib.sha256(f"steadytune encoded 1\n{self.data}\n{self.encoder.pixels}\n".encode())
        for name, split in self.splits.items():
            for part in split.arrays():
                digest.update(f"{name} {part.dtype.str} {part.shape}\n".encode())
                digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe whose model would read these numbers as something else."""
        if source(recipe) != self.source:
            raise SteadytuneError(
                f"The data was encoded for {self.source}, the recipe's model is {source(recipe)}; encode it again."
            )
        longest = (recipe.max_length, recipe.max_target_length or recipe.max_length)
        if self.encoder.pixels is None and longest != (self.encoder.max_length, self.encoder.max_target_length):
            raise SteadytuneError(
                f"The data was cut to {self.encoder.max_length} tokens and the recipe asks for {recipe.max_length}; "
                "encode it again."
            )


def encode(data: Data, recipe: Recipe, report: Report | None = None) -> Encoded:
    """Every split of the data, for the recipe's model. `report` hears how far it is."""
    encoder = Encoder.of(recipe, data.task)
    splits: dict[str, Split] = {}
    notes: list[str] = []
    for name, rows in data.splits().items():
        heard = None if report is None else (lambda done, total, name=name: report(name, done, total))
        splits[name] = encoder.encode(rows, heard)
        if splits[name].cut:
            notes.append(
                f"{splits[name].cut} of {len(rows)} {name} rows have more than {recipe.max_length} tokens and were cut."
            )
    return Encoded(encoder, splits, source(recipe), data.fingerprint, tuple(notes))


def _slices(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
