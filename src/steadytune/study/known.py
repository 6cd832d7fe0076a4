"""Runs that are known already: what somebody has run once is not run again.

A trial is known by its content (plan.py), what its key is a hash of. So its outcome may be taken over from
another study, or from a file that was kept of one, and a study that was begun on one machine is finished on another:

    keep(ledger, "figure-2.runs.gz")            # every trial that has ended, small enough for a repository
    taken = Known(["figure-2.runs.gz"]).hand_over_(other_ledger)

A kept file is gzipped JSON, one trial a line, without predictions and gradient norms; losses and distances have six
digits. Each line holds the content itself, so a trial is looked for by the hash of what it says, and not by a name that
somebody gave it. Only trials that wait are taken over: what this ledger runs or has ended stays.
Not for studies whose models are kept, nor for those that compare times.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Ledger
from steadytune.study.new_file import new_file
from steadytune.study.outcome import Outcome
from steadytune.study.plan import canonical
from steadytune.study.status import LEDGER

ENDING = ".runs.gz"
_ENDED = ("finished", "diverged")
_HEAD = {"steadytune": "kept runs", "format": 1}
_LONG, _LEFT_OUT = ("losses", "history"), "grad_norms"  # many numbers, one or several a step
_SCORES = ("validation", "step", "epoch", "lr")  # of an evaluation, as they are
_DIGITS = 6


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A trial that has ended, as a kept file has it."""

    content: str  # canonical JSON, what the key is a hash of
    outcome: Outcome

    @property
    def key(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    def line(self) -> str:
        plain = {"content": json.loads(self.content), "status": self.outcome.status, "result": self.outcome.result}
        return json.dumps(plain, separators=(",", ":"), allow_nan=False) + "\n"


def keep(ledger: Path, target: Path) -> int:
    """Add every trial that has ended in a ledger to a kept file, which is made where it is not there.

    What the file has already stays as it is. Returns how many runs it has then; equal runs are equal bytes.
    """
    runs = {run.key: run for run in _of_ledger(ledger)}
    if target.exists():
        runs |= {run.key: run for run in of_file(target)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise SteadytuneError(f"{target.parent} cannot be made: {why}. Name another folder to keep runs in.") from error
    with new_file(target) as hidden, open(hidden, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as stream:
        stream.write(f"{json.dumps(_HEAD)}\n".encode())
        for _, run in sorted(runs.items()):
            stream.write(run.line().encode())
    return len(runs)


def _of_ledger(path: Path) -> Iterator[KeptRun]:
    with Ledger.open(path, readonly=True) as ledger:
        specs = {row.key: row.spec for row in ledger.rows() if row.status in _ENDED}
        for key, outcome in ledger.outcomes():
            yield KeptRun(canonical(specs[key]["content"]), Outcome(outcome.status, _shortened(outcome.result)))


def of_file(path: Path) -> Iterator[KeptRun]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            head = json.loads(stream.readline(1000) or "null")
            if head != _HEAD:
                raise SteadytuneError(f"{path} is no file of kept runs, or one of a later version of steadytune.")
            for number, line in enumerate(stream, start=2):
                yield _read(json.loads(line), f"{path}, line {number}")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SteadytuneError(f"{path} is damaged, or no file of kept runs ({error}). Take another copy.") from error


def _read(data: Any, where: str) -> KeptRun:
    if not (
        isinstance(data, Mapping)
        and isinstance(data.get("content"), Mapping)
        and isinstance(data.get("result"), Mapping)
        and data.get("status") in _ENDED
    ):
        raise SteadytuneError(f"{where}: this is not a run that has ended.")
    return KeptRun(canonical(data["content"]), Outcome(data["status"], data["result"]))


class Known:
    """Where known runs are: folders of studies, their ledgers, kept files, or folders of kept files."""

    def __init__(self, places: Iterable[str | Path] = ()) -> None:
        self.sources = [source for place in places for source in _sources(Path(place))]
        self._asked: set[str] = set()  # trials that have been looked for: planning goes on while others run

    def hand_over_(self, ledger: Ledger) -> int:
        """Record the outcome of every trial that waits here and is known there. Returns how many."""
        wanted = {row.key for row in ledger.rows(status="pending")} - self._asked if self.sources else set()
        self._asked |= wanted
        taken = 0
        for source in self.sources:
            if wanted and source.resolve() != ledger.path.resolve():
                found = dict(_outcomes(source, wanted))
                taken += ledger.take_over(found.items(), str(source))
                wanted -= found.keys()
        return taken


def _outcomes(source: Path, wanted: Set[str]) -> Iterator[tuple[str, Outcome]]:
    """Of a ledger with all that it has, predictions included."""
    if source.name.endswith(ENDING):
        yield from ((run.key, run.outcome) for run in of_file(source) if run.key in wanted)
        return
    with Ledger.open(source, readonly=True) as ledger:
        for row in ledger.rows(keys=wanted):
            if row.status in _ENDED and (outcome := ledger.outcome(row.key)) is not None:
                yield row.key, outcome


def _sources(place: Path) -> Sequence[Path]:
    if place.is_file():
        return [place]
    if (place / LEDGER).is_file():
        return [place / LEDGER]
    found = sorted(place.glob(f"*{ENDING}"))
    if not found:
        raise SteadytuneError(f"{place} has no known runs: it is neither a study's folder nor one of *{ENDING} files.")
    return found


def _shortened(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in result.items() if name != _LEFT_OUT}
    return {name: _rounded(value) if name in _LONG else value for name, value in kept.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: each if name in _SCORES else _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
