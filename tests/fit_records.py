"""A fit record made by hand, with the kinds of seeds there are and names that try to break out."""

from steadytune.report.record import (
    BaselineRecord,
    CitationRecord,
    FitRecord,
    IntervalRecord,
    SeedRecord,
    SplitRecord,
)

NASTY = '<script>alert("x")</script> | `a` {{ 7 * 7 }} [b](javascript:0)'


def record(**changes):
    seeds = (
        SeedRecord(0, "finished", 400, 320, 0.801, 0.774, 0.79, 0.77, 31.2),
        SeedRecord(1, "finished", 400, 400, 0.823, 0.795, 0.823, 0.795, 30.8),
        SeedRecord(2, "diverged", 400, 40, 0.512, 0.498, None, None, 4.0, ("The loss was not a number at step 47.",)),
        SeedRecord(3, "finished", 400, 80, 0.5, 0.49, 0.5, 0.49, 30.1),
        SeedRecord(4, "finished", 400, 360, 0.815, 0.801, 0.811, 0.802, 31.0),
    )
    values = {
        "name": "reviews",
        "kind": "classification",
        "metric": "accuracy",
        "greater_is_better": True,
        "labels": ("bad", "good"),
        "text_columns": ("text",),
        "label_column": "label",
        "splits": tuple(
            SplitRecord(name, rows, "reviews.csv", "ab" * 32, {"bad": rows // 2, "good": rows - rows // 2})
            for name, rows in (("train", 700), ("validation", 150), ("test", 150))
        ),
        "fingerprint": "cd" * 32,
        "notes": ("3 training rows repeat an earlier row, 1 of them with another answer.",),
        "duplicates": 3,
        "leaks": 2,
        "baselines": (BaselineRecord("always 'good'", 0.52, 0.51), BaselineRecord("uniform random guesses", 0.5, 0.5)),
        "model": "builtin:minilm",
        "recipe_name": "recommended",
        "recipe_about": "bias-corrected AdamW and enough steps",
        "recipe": {"lr": 5e-5, "steps": 400, "methods": [{"method": "reinit", "layers": 1, "pooler": None}]},
        "recipe_key": "ef" * 32,
        "citations": (CitationRecord("zhang2021revisiting", "Zhang et al. Revisiting.", "https://example.org/1"),),
        "seeds": seeds,
        "versions": {"steadytune": "0.1.0", "torch": "2.13.0"},
        "status": "finished",
        "chosen": 1,
        "interval": IntervalRecord(0.73, 0.858, 0.95, "expanded percentile bootstrap over rows", 150),
        "created": "2026-01-02",
    }
    return FitRecord(**{**values, **changes})
