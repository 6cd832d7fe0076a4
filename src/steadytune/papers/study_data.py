"""A study as plain data: cut to some of its tasks or seeds, and written as the file that it is run from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from steadytune.config import load_yaml
from steadytune.errors import SteadytuneError
from steadytune.papers.experiment import Data
from steadytune.study.new_file import write_text


def only(study: Data, tasks: Collection[str]) -> Data:
    """The study with these tasks alone; as it is where it has none of them, as one whose model others start from.

    The same tasks of a study that was run with others are the same trials: what has been run is not run again.
    """
    if not set(tasks) & set(study["tasks"]):
        return study

    def kept(data: Mapping[str, Any]) -> Data:
        return {name: each for name, each in data.items() if name in tasks}

    variants = {
        name: {**variant, "tasks": kept(variant["tasks"])} if "tasks" in variant else variant
        for name, variant in study["variants"].items()
    }
    return {**study, "tasks": kept(study["tasks"]), "variants": variants}


def at_most(study: Data, seeds: int | None) -> Data:
    """The study with fewer seeds: the first of them, of a grid on both sides. More may follow."""
    if seeds is None:
        return study
    given = study["seeds"]
    fewer = {name: min(seeds, count) for name, count in given.items()} if isinstance(given, dict) else min(seeds, given)
    return {**study, "seeds": fewer}


def write_study(folder: Path, study: Data) -> Path:
    """`folder/study.yaml`; what it reads back as is what was meant."""
    from steadytune.study.folder import FILE

    path = folder / FILE
    write_text(path, yaml.dump(study, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))
    if load_yaml(path).data != study:
        raise SteadytuneError(f"{path} does not read back as it was written; this is a fault of steadytune.")
    return path


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # study files have none
