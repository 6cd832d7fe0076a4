"""Every table and figure of the three papers: what it shows, and what the paper claims with it. Light to import.

    ITEMS              id -> Item, in the order of the papers
    find("mixout/table-1")
    PAPERS             id -> Paper, with its citation

The published numbers themselves are data (steadytune.papers.published); rows, columns and settings are named alike here
and there. Theorems and sections whose experiment has no number have an id of their own: `mixout/theorem-1`,
`rdrop/section-c2`. The main paper of R-Drop is not among this project's sources: `rdrop/table-1` to `rdrop/table-5` and
its figures are those of the appendix.
"""

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue.claim import KINDS, QUANTITIES, Case, Cell, Claim, Kind, Quantity, Scope, direction
from steadytune.papers.catalogue.few_sample_appendix import FEW_SAMPLE_APPENDIX
from steadytune.papers.catalogue.few_sample_bias import FEW_SAMPLE_BIAS
from steadytune.papers.catalogue.few_sample_methods import FEW_SAMPLE_METHODS
from steadytune.papers.catalogue.item import PAPERS, Item, Paper
from steadytune.papers.catalogue.mixout import MIXOUT
from steadytune.papers.catalogue.rdrop import RDROP
from steadytune.strict import nearest

__all__ = [
    "ITEMS",
    "KINDS",
    "PAPERS",
    "QUANTITIES",
    "Case",
    "Cell",
    "Claim",
    "Item",
    "Kind",
    "Paper",
    "Quantity",
    "Scope",
    "direction",
    "find",
]

ITEMS: dict[str, Item] = {
    item.id: item for item in (*MIXOUT, *FEW_SAMPLE_BIAS, *FEW_SAMPLE_METHODS, *FEW_SAMPLE_APPENDIX, *RDROP)
}


def find(id: str) -> Item:
    """The item with this id."""
    if id not in ITEMS:
        raise SteadytuneError(f"There is no table or figure {id!r} in the catalogue. {nearest(id, ITEMS)}")
    return ITEMS[id]
