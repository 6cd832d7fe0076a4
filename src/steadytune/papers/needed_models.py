"""Whether the models that an item is run with can be had here: asked before its first run, not by each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.hub import can_be_had
from steadytune.papers.experiment import Shown
from steadytune.papers.experiments import find_experiment
from steadytune.papers.run import Workshop
from steadytune.papers.study_parts import in_order
from steadytune.study.status import LEDGER


def refuse_missing_models(id: str, workshop: Workshop) -> None:
    """Names of the hub, at full scale. A study that was begun had them, or knows its runs from elsewhere."""
    experiment = find_experiment(id)
    if workshop.scale != "full" or workshop.known or not isinstance(experiment, Shown):
        return
    parts = [
        part for part in in_order(experiment, workshop.scale) if not (workshop.folder(part.name) / LEDGER).exists()
    ]
    names = {name for part in parts for name in _named(part.make(workshop.setting(part.name)))}
    missing = sorted(name for name in names if not can_be_had(name))
    if missing:
        raise SteadytuneError(
            f"{id} is run with {' and '.join(missing)}, which this machine does not have, and the hub cannot be "
            f"reached. Name a directory for each, such as --model {missing[0]}=DIR."
        )


def _named(study: Mapping[str, Any]) -> set[str]:
    """Models that the base or a variant names; those with random weights, too: their configuration is read."""
    found = [study["base"], *study["variants"].values()]
    found += [task for each in found for task in each.get("tasks", {}).values()]
    return {str(each["model"]) for each in found if "model" in each}
