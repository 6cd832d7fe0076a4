"""YAML files, strictly: what a recipe file says, and in which line.

    model: roberta-base
    preset: recommended              # start from a preset; what follows changes it
    lr: 2e-5                         # a number, as anybody would read it
    methods:
      - {method: mixout, p: 0.8}

Only plain data: texts, numbers, true, false, null, lists and mappings. Duplicate and unknown keys, tags, anchors and
aliases are refused with file and line. Words are words: `no`, `on` and `2020-01-01` are texts, not YAML 1.1's booleans
and dates, and 010 is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from steadytune.errors import SteadytuneError
from steadytune.recipe import Recipe, preset
from steadytune.strict import BadValue
from steadytune.strict import Path as Keys

_LARGEST = 1_000_000  # bytes; nobody writes a longer one by hand
_DEEPEST = 30

_STR, _NULL, _BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("str", "null", "bool", "int", "float"))
_READ: dict[str, Callable[[str], Any]] = {
    _STR: str,
    _NULL: lambda text: None,
    _BOOL: lambda text: text == "true",
    _INT: int,
    _FLOAT: float,
}


@dataclass(frozen=True)
class Document:
    """What a file holds, and where: `lines` has the line of every key and list item, by its path from the top."""

    file: str
    data: Any
    lines: dict[Keys, int] = field(repr=False)

    def where(self, path: Keys = ()) -> str:
        """`recipe.yaml, line 7`, for the setting that this path leads to, or what contains it."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}, line {self.lines[path]}" if path else self.file

    @contextmanager
    def blame(self, path: Keys = ()) -> Iterator[None]:
        """Errors about settings inside get the file and the line; `path` leads to what is being read."""
        try:
            yield
        except BadValue as error:
            raise SteadytuneError(f"{self.where((*path, *error.path))}: {error}") from error
        except SteadytuneError as error:
            raise SteadytuneError(f"{self.where(path)}: {error}") from error


def load_yaml(file: str | Path) -> Document:
    """The plain data of one YAML file, with lines; an error names the file and the line."""
    try:
        raw = Path(file).read_bytes()
        text = raw.decode("utf-8-sig")
    except IsADirectoryError as error:
        raise SteadytuneError(f"{file} is a folder; name the .yaml file.") from error
    except OSError as error:
        raise SteadytuneError(f"{file} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SteadytuneError(f"{file}, line {line}: not UTF-8. Save the file as UTF-8.") from error
    if len(raw) > _LARGEST:
        raise SteadytuneError(f"{file} has {len(raw)} bytes; a settings file has at most {_LARGEST}.")
    return parse_yaml(text, str(file))


def parse_yaml(text: str, file: str) -> Document:
    """The plain data of YAML text; errors call it `file`."""
    lines: dict[Keys, int] = {}
    try:
        node = _Loader(text).get_single_node()
        data = None if node is None else _plain(node, (), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}, line {mark.line + 1}" if mark else str(file)
        raise SteadytuneError(f"{place}: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise SteadytuneError(f"{file} is not YAML: {error}.") from error
    if data is None:
        raise SteadytuneError(f"{file} is empty.")
    return Document(file, data, lines)


def load_recipe(file: str | Path) -> Recipe:
    """The recipe that a file describes: settings of `Recipe`, by name, on top of its `preset` if it names one."""
    document = load_yaml(file)
    return recipe_of(document, document.data)


def recipe_of(document: Document, data: Any, path: Keys = ()) -> Recipe:
    """The recipe in a part of a document; `path` leads there."""
    with document.blame(path):
        if not isinstance(data, dict) or "preset" not in data:
            return Recipe.from_data(data)
        return preset(data["preset"]).updated({key: value for key, value in data.items() if key != "preset"})


def dump_recipe(recipe: Recipe) -> str:
    """A file that `load_recipe` reads back as the same recipe, every setting written down."""
    dumped: str = yaml.dump(recipe.to_data(), Dumper=_Dumper, sort_keys=False, width=120)
    return dumped


# What an unquoted word means. The same for reading and writing, so that a text that looks like a number gets quotes.
_NUMBER = "-+.0123456789"
_WORDS = [
    (_NULL, r"(?:null|~|)", ["n", "~", ""]),
    (_BOOL, r"(?:true|false)", ["t", "f"]),
    (_INT, r"[-+]?(?:0|[1-9][0-9]*)", [*_NUMBER]),
    (_FLOAT, r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?=[eE]))|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", [*_NUMBER]),
]
_BY_FIRST_LETTER: dict[str, list[Any]] = {}  # as PyYAML wants it
for _tag, _pattern, _letters in _WORDS:
    for _letter in _letters:
        _BY_FIRST_LETTER.setdefault(_letter, []).append((_tag, re.compile(rf"{_pattern}\Z")))


class _Loader(yaml.SafeLoader):
    """For its tree of nodes; no object is ever constructed by it. Tags, anchors and aliases are refused."""

    yaml_implicit_resolvers = _BY_FIRST_LETTER
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refused("anchors (&) and aliases (*) are not used here; write the value out", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _refused(f"the tag {event.tag} is not used here; only plain values are", event.start_mark)
        if self.depth >= _DEEPEST:
            raise _refused(f"settings are nested more than {_DEEPEST} deep", event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _BY_FIRST_LETTER

    def ignore_aliases(self, data: Any) -> bool:
        return True  # the loader refuses them


def _refused(message: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=mark)


def _plain(node: yaml.Node, path: Keys, lines: dict[Keys, int]) -> Any:
    """The value of a node, and the line of everything in it."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, number), lines) for number, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        try:
            return _READ[node.tag](node.value)
        except ValueError as error:  # a whole number of thousands of digits
            raise _refused(str(error), node.start_mark) from error
    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STR:
            raise _refused("a setting's name must be a word", key_node.start_mark)
        here = (*path, key_node.value)
        if key_node.value in made:
            raise _refused(f"{key_node.value!r} is given twice, first in line {lines[here]}", key_node.start_mark)
        lines[here] = key_node.start_mark.line + 1
        made[key_node.value] = _plain(value_node, here, lines)
    return made
