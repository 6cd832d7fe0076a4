"""The time left of a study: by the steps of what runs, and by what its variants took."""

import json

import pytest

from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome
from steadytune.study.status import read_status

NOW = 1_000_000.0


class Clock:
    now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def study(tmp_path):
    """A ledger with two plain and two slow trials that wait, and its clock."""
    clock = Clock()
    Ledger.create(tmp_path / "ledger.sqlite", {"name": "s"}).close()
    with Ledger.open(tmp_path / "ledger.sqlite", clock=clock, steady=clock) as ledger:
        specs = [("plain", 0), ("slow", 0), ("plain", 1), ("slow", 1)]
        rows = [
            (f"{variant}-{seed}", json.dumps({"task": "t", "variant": variant, "content": {"streams": {"a": seed}}}), n)
            for n, (variant, seed) in enumerate(specs)
        ]
        ledger.plan(rows)
        yield ledger, clock, lambda: read_status(tmp_path, now=clock.now)


def _says(ledger, claim, step, seconds):
    assert ledger.beat(claim, 1e6, {"step": step, "steps": 100, "seconds": seconds, "loss": 1.0, "validation": None})


def test_nothing_is_known_before_the_first_step(study):
    ledger, _, status = study
    assert status().seconds_left is None
    ledger.claim("w", 1e6)
    assert status().seconds_left is None


def test_what_runs_says_how_long_its_variant_takes(study):
    ledger, clock, status = study
    plain, slow = (ledger.claim(name, 1e6) for name in "ab")
    clock.now += 20
    _says(ledger, plain, 20, 20.0)
    _says(ledger, slow, 10, 20.0)
    # Each has a lane: 80 s and 180 s of their own are left, and those that wait take 100 s and 200 s.
    assert [round(run.left) for run in status().running] == [80, 180]
    assert status().seconds_left == pytest.approx((80 + 180 + 100 + 200) / 2)


def test_steps_of_an_earlier_attempt_count_with_their_own_seconds(study):
    ledger, clock, status = study
    plain = ledger.claim("a", 1e6)
    clock.now += 1
    _says(ledger, plain, 90, 90.0)  # from its checkpoint: 89 seconds lie before this claim
    assert status().running[0].left == pytest.approx(10.0)


def test_a_trial_that_starts_takes_as_long_as_its_variant_did(study):
    ledger, clock, status = study
    plain, slow = (ledger.claim(name, 1e6) for name in "ab")
    clock.now += 100
    assert ledger.finish(plain, Outcome("finished", {}))
    clock.now += 100
    assert ledger.finish(slow, Outcome("finished", {}))
    assert status().seconds_left == pytest.approx(100 + 200), "one at a time, where nothing runs"
    for name in "cd":
        ledger.claim(name, 1e6)
    clock.now += 50
    assert status().seconds_left == pytest.approx((50 + 150) / 2)
    clock.now += 100
    assert status().seconds_left == pytest.approx((0 + 50) / 2), "never less than nothing"


def test_all_ended_is_no_time(study):
    ledger, _, status = study
    for name in "abcd":
        claim = ledger.claim(name, 1e6)
        assert ledger.finish(claim, Outcome("finished", {}))
    assert status().seconds_left == 0.0
