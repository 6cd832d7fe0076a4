"""The figures of a study, one file each. A figure that would have nothing to show is left out."""

from __future__ import annotations

from steadytune.report.study.comparisons import Comparisons
from steadytune.report.study.figures.best_of_n import best_of_n
from steadytune.report.study.figures.cost import cost
from steadytune.report.study.figures.curves import curves
from steadytune.report.study.figures.distances import distances
from steadytune.report.study.figures.distribution import distribution
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.grids import grids
from steadytune.report.study.figures.sweeps import sweeps
from steadytune.report.study.telling import Telling

__all__ = ["Figure", "figures"]


def figures(compared: Comparisons) -> list[Figure]:
    """In the order of a report."""
    tell = Telling(compared)
    made = [distribution(tell), *curves(tell), best_of_n(tell), *sweeps(tell), *grids(tell), *distances(tell)]
    made += cost(tell)
    return [figure for figure in made if figure is not None]
