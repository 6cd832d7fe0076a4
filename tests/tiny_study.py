"""A small study file for tests: two variants, two seeds, one task, beside an encoder and a table of reviews."""

import yaml

from tiny_text import reviews, save_encoder, write_csv

SETTINGS = {"preset": "standard", "model": "encoder", "steps": 12, "lr": 3e-3, "max_length": 32, "evaluations": 3}
PLAIN = {
    "study": "tiny",
    "base": SETTINGS,
    "tasks": {"reviews": {"file": "reviews.csv"}},
    "variants": {"standard": {}, "mixout": {"add": [{"method": "mixout", "p": 0.3}]}},
    "seeds": 2,
}


def furnish(folder):
    """What a study file names: the encoder and the reviews."""
    save_encoder(folder / "encoder")
    write_csv(folder / "reviews.csv", reviews(120))
    return folder


def write(world, name, **changes):
    path = world / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**PLAIN, **changes}, sort_keys=False))
    return path
