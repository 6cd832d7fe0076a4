"""A ledger with a clock that does what a test says."""

import json

from steadytune.study.outcome import Outcome

DONE = Outcome("finished", {"value": 1})


class Clock:
    """Both of a ledger's clocks, at will."""

    def __init__(self):
        self.now, self.slept = 1_000_000.0, 0.0

    def time(self):
        return self.now

    def steady(self):
        return self.now - self.slept

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds


def plan_specs(ledger, *specs):
    """Trials t0, t1, ... of these specs."""
    ledger.plan([(f"t{number}", json.dumps(spec), number) for number, spec in enumerate(specs)])


def plan(ledger, *keys):
    return ledger.plan([(key, json.dumps({"is": key}), rank) for rank, key in enumerate(keys)])


def row(ledger, key="a"):
    (found,) = ledger.rows(keys=[key])
    return found
