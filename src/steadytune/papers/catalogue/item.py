"""An entry of the catalogue: one table, figure, theorem or section of a paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue.claim import Claim


@dataclass(frozen=True)
class Paper:
    """A paper, as it is cited."""

    id: str
    authors: str
    title: str
    venue: str
    arxiv: str

    @property
    def citation(self) -> str:
        return f"{self.authors}: {self.title}. {self.venue}, arXiv:{self.arxiv}"


PAPERS: dict[str, Paper] = {
    paper.id: paper
    for paper in (
        Paper(
            "mixout",
            "Lee, Cho, Kang",
            "Mixout: Effective Regularization to Finetune Large-scale Pretrained Language Models",
            "ICLR 2020",
            "1909.11299",
        ),
        Paper(
            "few-sample",
            "Zhang, Wu, Katiyar, Weinberger, Artzi",
            "Revisiting Few-sample BERT Fine-tuning",
            "ICLR 2021",
            "2006.05987",
        ),
        Paper(
            "rdrop",
            "Liang, Wu, Li, Wang, Meng, Qin, Chen, Zhang, Liu",
            "R-Drop: Regularized Dropout for Neural Networks",
            "NeurIPS 2021",
            "2106.14448",
        ),
    )
}


@dataclass(frozen=True)
class Item:
    """One table or figure: what it shows, what it claims, which items of the acceptance list it answers."""

    id: str  # "mixout/table-1"; numbers of R-Drop are those of its appendix
    number: str  # as the paper calls it: "Table 1", "Figure 2 of the appendix"
    title: str
    items: tuple[str, ...]  # of the acceptance list: "M20", "M21"
    claims: tuple[Claim, ...] = ()
    kind: Literal["study", "theory", "set-up"] = "study"  # set-up: settings or data, nothing to measure
    split: Literal["validation", "test", ""] = ""  # whose score is reported; "": no score, or several
    runs_of: str = ""  # the id whose runs it shows, where it needs none of its own
    no_data: str = ""  # why there are no published numbers

    def __post_init__(self) -> None:
        if self.paper not in PAPERS:
            raise SteadytuneError(f"{self.id!r} does not begin with one of {', '.join(PAPERS)}.")

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]
