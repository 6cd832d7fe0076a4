"""Makes ledger-2.sqlite and ledger-2.json, with the ledger itself, while 2 is the newest schema.

Before the schema changes: raise its number, keep these files, and add the next ones.
"""

import json
from pathlib import Path

import numpy as np

from steadytune.study.ledger import Ledger
from steadytune.study.ledger.schema import VERSION
from steadytune.study.outcome import Outcome

HERE = Path(__file__).parent


def main():
    assert VERSION == 2, "these files are of schema 2 and stay as they are"
    path = HERE / "ledger-2.sqlite"
    path.unlink(missing_ok=True)
    expected = {}
    with Ledger.create(path, {"name": "golden"}) as ledger:
        specs = {f"key{number}": {"value": number, "word": "ä"} for number in range(12)}
        ledger.plan([(key, json.dumps(spec), rank) for rank, (key, spec) in enumerate(specs.items())])
        for number in range(10):
            claim = ledger.claim(f"w{number}", 60.0, "machine")
            status = ["finished", "diverged", "failed", "running", "finished"][number % 5]
            expected[claim.key] = {"status": status, "spec": specs[claim.key]}
            if status == "running":
                ledger.beat(claim, 60.0, {"step": 3})
            elif status == "failed":
                ledger.fail(claim, "Traceback: no")
                expected[claim.key] |= {"error": "Traceback: no"}
            else:
                result = {"best": {"validation": number / 7}, "losses": [0.1 * number, None], "seconds": 400.0 + number}
                ledger.finish(claim, Outcome(status, result, {"test": np.array([number, number + 1])}))
                expected[claim.key] |= {"result": result, "test": [number, number + 1], "seconds": 400.0 + number}
    for key in ("key10", "key11"):
        expected[key] = {"status": "pending", "spec": specs[key]}
    (HERE / "ledger-2.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
