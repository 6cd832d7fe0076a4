"""Plain data into dataclasses, strictly: what recipes, study files and command-line settings have in common.

An unknown name is an error that offers the nearest valid one; a value of another type is an error, not a conversion
(only a whole number may stand where a float is meant). Each error carries the `path` of keys to the value it is about,
so that a reader of files can add the line.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from steadytune.errors import SteadytuneError

Path = tuple[str | int, ...]
T = TypeVar("T")


class BadValue(SteadytuneError):
    """A setting that cannot be used; `path` leads to it from the top of the data."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.path = path


def nearest(name: object, choices: Iterable[str]) -> str:
    """`Did you mean 'lr'?`, or the whole list where nothing is near."""
    options = list(choices)
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}?" if near else f"Choose from {', '.join(options)}."


def types_of(cls: type) -> dict[str, Any]:
    """The fields of a dataclass and their types, resolved."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def build(cls: type[T], data: Mapping[str, Any], owner: str, path: Path = ()) -> T:
    """cls(**data), with every name and type checked first. `owner` is what a message calls the thing."""
    hints = types_of(cls)
    for name in data:
        if name not in hints:
            raise BadValue(f"{owner} has no setting {name!r}. {nearest(name, hints)}", (*path, name))
    values = {name: convert(value, hints[name], f"{owner}: {name}", (*path, name)) for name, value in data.items()}
    try:
        return cls(**values)
    except SteadytuneError as error:  # right types, but the class refuses: about the first setting that it names
        own = getattr(error, "path", ()) or tuple(name for name in data if re.search(rf"\b{name}\b", str(error)))[:1]
        raise BadValue(str(error), (*path, *own)) from error


def convert(value: Any, hint: Any, owner: str, path: Path = ()) -> Any:
    """The value as its type wants it: the same, an int as float, a list as tuple; or an error."""
    for kind in _alternatives(hint):
        fits, made = _fit(value, kind)
        if fits:
            return made
    raise BadValue(f"{owner} must be {describe(hint)}, not {value!r}.", path)


def settings_from_text(cls: type, text: str, owner: str) -> dict[str, Any]:
    """`p=0.7,layers=all` as settings of a dataclass, by the types of its fields. A value may contain commas."""
    hints = types_of(cls)
    pieces: list[str] = []
    for piece in text.split(",") if text.strip() else []:
        if "=" in piece or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += "," + piece  # of a value such as betas=0.9,0.98
    values: dict[str, Any] = {}
    for piece in pieces:
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            raise BadValue(f"{owner}: {piece.strip()!r} is no setting. Write name=value, several with commas between.")
        if name in values:
            raise BadValue(f"{owner}: {name} is given twice.")
        if name not in hints:
            raise BadValue(f"{owner} has no setting {name!r}. {nearest(name, hints)}")
        values[name] = from_text(value, hints[name], f"{owner}: {name}")
    return values


def from_text(text: str, hint: Any, owner: str) -> Any:
    """The value that a piece of a command line stands for, by the field's type: `0.7`, `true`, `none`, `0.9,0.98`."""
    for kind in sorted(_alternatives(hint), key=lambda kind: (kind is str) - (kind is type(None))):  # text fits last
        fits, made = _fit(_read(text, kind), kind)
        if fits:
            return made
    raise BadValue(f"{owner} must be {describe(hint)}, not {text!r}.")


def describe(hint: Any) -> str:
    """A type in words: `a number or nothing`."""
    return " or ".join(_describe_one(kind) for kind in _alternatives(hint))


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "nothing (null)"}


def _describe_one(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is not Ellipsis:
            return f"a list of {len(parts)}, each {describe(parts[0])}"
        return "a list" if parts[0] not in _WORDS else f"a list, each {describe(parts[0])}"
    return _WORDS.get(kind) or f"a {kind.__name__}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fit(value: Any, kind: Any) -> tuple[bool, Any]:
    """(does the value belong to this one type, the value)"""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind), value
    if get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)):
            return False, None
        parts = get_args(kind)
        if parts[-1] is Ellipsis:  # tuple[str, ...]: any number of them
            parts = parts[:1] * len(value)
        if len(value) != len(parts):
            return False, None
        made = [_fit(item, part) for item, part in zip(value, parts)]
        return all(fits for fits, _ in made), tuple(item for _, item in made)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return True, float(value)
    if kind in _WORDS:
        return type(value) is kind, value  # not isinstance: True is an int to Python, and to nobody else
    return isinstance(kind, type) and isinstance(value, kind), value


def _read(text: str, kind: Any) -> Any:
    """What the text says if it is meant as this type; the text itself where it cannot be."""
    text = text.strip()
    if get_origin(kind) is tuple:
        items, parts = text.strip("()[]").split(","), get_args(kind)
        return [_read(item, parts[0]) for item in items]  # _fit counts them
    if kind is type(None):
        return None if text.lower() in ("none", "null") else text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text
