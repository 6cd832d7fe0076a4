"""Items that are computed at once: theorems, curves of a formula, the digits, and the tables of data and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steadytune.papers.catalogue import ITEMS, Cell
from steadytune.papers.experiment import UNFINISHED, Computed, Data, Say
from steadytune.papers.set_up import (
    data_table,
    data_verdicts,
    read_data,
    read_settings,
    settings_table,
    settings_verdicts,
)
from steadytune.papers.settings import Scale, Setting
from steadytune.papers.verdicts import Verdict

if TYPE_CHECKING:
    from steadytune.papers.samples import Sample
    from steadytune.report.study.figures import Figure

_QUICK: dict[Scale, float] = {"full": 20.0, "small": 10.0, "smoke": 1.0}


# torch and matplotlib are imported where they are needed: `paper list` needs neither.


def _theorem(setting: Setting, say: Say) -> Data:
    from steadytune.papers.theory import theorem

    return theorem.run(setting.scale).to_data()


def _theorem_verdicts(data: Data) -> list[Verdict]:
    from steadytune.papers.theory import theorem

    return theorem.theorem_claims(theorem.Theorem.from_data(data))


def _corollary_verdicts(data: Data) -> list[Verdict]:
    from steadytune.papers.theory import theorem

    return theorem.corollary_claims(theorem.Theorem.from_data(data))


def _theorem_figures(data: Data) -> list[Figure]:
    from steadytune.papers.theory import figures, theorem

    return [figures.theorem(theorem.Theorem.from_data(data))]


def _least_squares(setting: Setting, say: Say) -> Data:
    from steadytune.papers.theory import least_squares

    return least_squares.run(setting.scale).to_data()


def _least_squares_verdicts(data: Data) -> list[Verdict]:
    from steadytune.papers.theory import least_squares

    return least_squares.claims(least_squares.LeastSquares.from_data(data))


def _least_squares_figures(data: Data) -> list[Figure]:
    from steadytune.papers.theory import figures, least_squares

    return [figures.least_squares(least_squares.LeastSquares.from_data(data))]


def _adam_bias(setting: Setting, say: Say) -> Data:
    from steadytune.papers.theory import adam_bias

    return adam_bias.run(setting.scale).to_data()


def _adam_bias_verdicts(data: Data) -> list[Verdict]:
    """The module's own, and the values that the catalogue names."""
    import numpy as np

    from steadytune.methods.adamw import bias_ratio
    from steadytune.papers.claim_tests import judge
    from steadytune.papers.samples import Place, Sample
    from steadytune.papers.theory import adam_bias

    def read(cell: Cell) -> Sample:
        step = int(cell.column.removeprefix("t="))
        return Sample(Place(cell.row, cell.column), np.array([bias_ratio(step)]), exact=True)

    own = adam_bias.claims(adam_bias.AdamBias.from_data(data))
    claims = ITEMS["few-sample/figure-1"].claims
    return own + [judge(claim, read, lambda cell, statistic: None, full=True) for claim in claims]


def _adam_bias_figures(data: Data) -> list[Figure]:
    from steadytune.papers.theory import adam_bias, figures

    return [figures.adam_bias(adam_bias.AdamBias.from_data(data))]


def _bound(setting: Setting, say: Say) -> Data:
    from steadytune.papers.theory import rdrop_bound

    return rdrop_bound.run(setting.scale).to_data()


def _bound_verdicts(data: Data) -> list[Verdict]:
    from steadytune.papers.theory import rdrop_bound

    return rdrop_bound.claims(rdrop_bound.RDropBound.from_data(data))


def _bound_figures(data: Data) -> list[Figure]:
    from steadytune.papers.theory import figures, rdrop_bound

    return [figures.rdrop_bound(rdrop_bound.RDropBound.from_data(data))]


def _digits(setting: Setting, say: Say) -> Data:
    """EMNIST Digits to MNIST; USPS stands for EMNIST at the small scale, where nobody has put EMNIST."""
    from steadytune.papers import digits

    if setting.scale == "smoke":
        return digits.run("smoke", folder=setting.folder / UNFINISHED, say=say).to_data()
    emnist = setting.data / "emnist-digits"
    usps = setting.scale == "small" and not emnist.is_dir()
    source = setting.data / "usps" / "usps.npz" if usps else emnist
    target, folder = setting.data / "mnist", setting.folder / UNFINISHED
    return digits.run(setting.scale, source=source, target=target, folder=folder, say=say).to_data()


def _digits_verdicts(data: Data) -> list[Verdict]:
    from steadytune.papers import digits

    return digits.claims(digits.DigitsResult.from_data(data))


def _digits_samples(data: Data) -> dict[Cell, Sample]:
    from steadytune.papers import digits

    return digits.cells(digits.DigitsResult.from_data(data))


def _digits_figures(data: Data) -> list[Figure]:
    from steadytune.papers import digits

    return [digits.figure(digits.DigitsResult.from_data(data))]


def _drift_verdicts(data: Data) -> list[Verdict]:
    from steadytune.papers.drift import verdicts

    return verdicts(data)


def _drift_figures(data: Data) -> list[Figure]:
    from steadytune.papers.drift import figure

    return [figure(data)]


_DIGITS_TIME: dict[Scale, float] = {"full": 7200.0, "small": 1500.0, "smoke": 5.0}
_DIGITS: Any = {"seconds": _DIGITS_TIME, "reads_data": True}
COMPUTED: tuple[Computed, ...] = (
    Computed("mixout/theorem-1", "mixout/theorem", _theorem, _theorem_verdicts, _theorem_figures, seconds=_QUICK),
    Computed("mixout/corollary-1.1", "mixout/theorem", _theorem, _corollary_verdicts, _theorem_figures, seconds=_QUICK),
    Computed(
        *("mixout/figure-5", "mixout/figure-5", _least_squares, _least_squares_verdicts, _least_squares_figures),
        seconds=_QUICK,
    ),
    Computed(
        *("mixout/figure-2", "mixout/digits", _digits, _digits_verdicts, _digits_figures),
        samples=_digits_samples,
        **_DIGITS,
    ),
    Computed("mixout/equation-10", "mixout/digits", _digits, _drift_verdicts, _drift_figures, **_DIGITS),
    Computed(
        *("few-sample/figure-1", "few-sample/figure-1", _adam_bias, _adam_bias_verdicts, _adam_bias_figures),
        seconds=_QUICK,
    ),
    Computed(
        *("few-sample/table-3", "few-sample/table-3", read_data, data_verdicts),
        tables=data_table,
        seconds=_QUICK,
        reads_data=True,
    ),
    Computed(
        *("few-sample/table-6", "few-sample/table-6", read_settings, settings_verdicts),
        tables=settings_table,
        seconds=_QUICK,
    ),
    Computed(
        *("rdrop/proposition-b1", "rdrop/proposition-b1", _bound, _bound_verdicts, _bound_figures), seconds=_QUICK
    ),
)
