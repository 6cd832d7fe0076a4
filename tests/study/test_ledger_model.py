"""Any story of a ledger ends as in a model of it in plain Python."""

import shutil

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_stories import Clock, plan
from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome

operations = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), st.integers(0, 4)),
        st.tuples(st.just("claim"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["beat", "finish", "diverge", "fail", "release"]), st.integers(0, 30)),
        st.tuples(st.just("died"), st.integers(0, 2)),
        st.tuples(st.just("pass"), st.sampled_from([10.0, 61.0])),
        st.tuples(st.just("retry"), st.just(0)),
    ),
    max_size=40,
)


class Model:
    """The same as the ledger, in plain Python."""

    def __init__(self):
        self.trials, self.now = {}, 0.0

    def die(self, trial):
        trial["deaths"] += 1
        trial.update(status="failed" if trial["deaths"] == 3 else "pending", holder=None)

    def claim(self, claim_number, worker):
        for trial in self.trials.values():
            if trial["status"] == "running" and trial["until"] < self.now:
                self.die(trial)
        for key in sorted(self.trials):
            trial = self.trials[key]
            if trial["status"] == "pending":
                trial.update(status="running", holder=claim_number, worker=worker, until=self.now + 60.0)
                trial["attempts"] += 1
                return key
        return None


@settings(max_examples=30, deadline=None)
@given(operations)
def test_any_story_ends_as_in_the_model(tmp_path_factory, story):
    clock, model, claims = Clock(), Model(), []
    path = tmp_path_factory.mktemp("story") / "ledger.sqlite"
    Ledger.create(path, {}).close()
    with Ledger.open(path, clock=clock.time, steady=clock.steady) as ledger:
        for step, (what, number) in enumerate(story):
            if what == "plan":
                plan(ledger, *"abcde"[: number + 1])
                for key in "abcde"[: number + 1]:
                    fresh = {"status": "pending", "attempts": 0, "deaths": 0, "holder": None, "value": None}
                    model.trials.setdefault(key, fresh)
            elif what == "claim":
                claim = ledger.claim(f"w{number}-{step}", 60.0)
                assert (claim and claim.key) == model.claim(len(claims), f"w{number}-{step}")
                if claim is not None:
                    claims.append((claim, f"w{number}-{step}"))
            elif what == "died":
                if number < len(claims):
                    worker = claims[-1 - number][1]
                    hit = [k for k, t in model.trials.items() if t["status"] == "running" and t["worker"] == worker]
                    assert ledger.died(worker, "x") == hit
                    for key in hit:
                        model.die(model.trials[key])
            elif what == "pass":
                clock.now += number
                model.now += number
            elif what == "retry":
                failed = [key for key, trial in model.trials.items() if trial["status"] == "failed"]
                assert sorted(ledger.retry_failed()) == sorted(failed)
                for key in failed:
                    model.trials[key].update(status="pending", deaths=0)
            elif number < len(claims):
                claim, _ = claims[number]
                trial = model.trials[claim.key]
                holds = trial["holder"] == number
                if what == "beat":
                    assert ledger.beat(claim, 60.0) is holds
                    trial.update({"until": model.now + 60.0} if holds else {})
                    continue
                if what in ("finish", "diverge"):
                    status = "finished" if what == "finish" else "diverged"
                    assert ledger.finish(claim, Outcome(status, {"value": step})) is holds
                else:
                    status = "failed" if what == "fail" else "pending"
                    said = ledger.fail(claim, "x") if what == "fail" else ledger.release(claim)
                    assert said is holds
                if holds:
                    trial.update(status=status, holder=None, value=step if what in ("finish", "diverge") else None)
        found = {each.key: (each.status, each.attempts, each.deaths) for each in ledger.rows()}
        assert found == {k: (t["status"], t["attempts"], t["deaths"]) for k, t in model.trials.items()}
        values = {key: outcome.result["value"] for key, outcome in ledger.outcomes()}
        assert values == {key: trial["value"] for key, trial in model.trials.items() if trial["value"] is not None}
        counted = ledger.counts()
        assert sum(counted.values()) == len(model.trials)
        ledger.check()
    shutil.rmtree(path.parent)
