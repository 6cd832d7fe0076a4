"""Fit: from a file of labelled rows to a model one can trust.

    made = steadytune.fit("reviews.csv", text="text", label="label", out="reviews-fit")
    made.scores                     # one record per seed
    made.model, made.tokenizer      # the best by validation
    print(made.report())            # how good, how sure, how stable

Read in this order: `plan` (what will be done), `seeds` (the runs), `outputs` (what is left behind), and this file,
which joins them. Everything that can be refused is refused before the first file is written.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from steadytune.apply import apply_
from steadytune.engine.encode import Encoder, encode
from steadytune.engine.processes import join
from steadytune.errors import SteadytuneError
from steadytune.fitting import outputs
from steadytune.fitting.plan import SHARE, Place, Plan, load_data, make_plan, make_recipe
from steadytune.fitting.seeds import Listener, run_seeds
from steadytune.methods.base import Method
from steadytune.models import load_model
from steadytune.predicting import Prediction, predict
from steadytune.recipe import Recipe
from steadytune.report.record import FitRecord, SeedRecord
from steadytune.rng import Streams
from steadytune.signals import Stopped, stop_on_signals
from steadytune.tasks.base import Data
from steadytune.tasks.files import SUFFIXES
from steadytune.tasks.records import HUB

__all__ = ["Fit", "FitFailed", "Stopped", "fit"]


class FitFailed(SteadytuneError):
    """Every seed diverged, so there is no model. The records are kept."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model, and what is known about it."""

    record: FitRecord
    out: Path
    _temporary: Any = field(default=None, repr=False)  # where no `out` was given: lives as long as this object

    @property
    def scores(self) -> tuple[SeedRecord, ...]:
        """Each seed's status, validation and test score."""
        return self.record.seeds

    @cached_property
    def model(self) -> Any:
        """The kept model in eval mode: the best of all seeds on validation."""
        import transformers

        config = transformers.AutoConfig.from_pretrained(self.model_directory)
        with outputs.quiet():
            return getattr(transformers, config.architectures[0]).from_pretrained(self.model_directory).eval()

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model_directory)

    @property
    def model_directory(self) -> Path:
        return self.out / outputs.MODEL

    def predict(self, texts: Sequence[str | Sequence[str]]) -> list[Prediction]:
        """Predictions of the kept model for new texts, or pairs of texts."""
        return predict(self.model_directory, texts)

    def report(self, kind: str = "text") -> str:
        """How good, how sure, how stable: as "text" for a terminal, "html" (one page) or "card" (Markdown)."""
        if kind == "text":
            from steadytune.report.terminal import as_text, result

            return as_text(result(self.record))
        if kind == "html":
            from steadytune.report.page import make_page

            return make_page(self.record)
        if kind == "card":
            from steadytune.report.card import make_card

            return make_card(self.record)
        raise SteadytuneError(f"A report is made as text, html or card, not {kind!r}.")


def fit(
    file: Place | Data,
    *,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    validation: Place | float | None = SHARE,
    test: Place | float | None = SHARE,
    model: str | None = None,
    recipe: str | Recipe = "recommended",
    methods: Sequence[str | Method] = (),
    changes: Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 5,
    out: Place | None = None,
    fresh: bool = False,
    metric: str | None = None,
    kind: str | None = None,
    positive: str | None = None,
    missing: str = "error",
    skip_ragged: bool = False,
    device: str | None = None,
    deterministic: bool = False,
    listener: Listener | None = None,
) -> Fit:
    """Fine-tune on labelled rows over several seeds, keep the best by validation, and report it on test rows.

    file: a csv, tsv, jsonl or parquet file, a GLUE folder, a datasets directory, hub:owner/name, or a `Data` made by
    steadytune.tasks. validation, test: files of their own, or shares of the rows. model: a Hugging Face name, a
    directory, or builtin:minilm. recipe: a preset's name, a YAML file, or a Recipe; `changes` are settings of it to
    change ({"steps": 200, "lr": 1e-4}), `methods` are added to it ("mixout:p=0.7" or Mixout(p=0.7)). out: where the
    results go (without it, in a directory that is gone with the returned object); running the same call again goes on
    where an earlier one stopped, or with `fresh` starts anew. deterministic: on a GPU, the
    same bits every time, which takes longer.
    """
    data = load_data(
        file,
        text=text,
        label=label,
        validation=validation,
        test=test,
        metric=metric,
        kind=kind,
        positive=positive,
        missing=missing,
        skip_ragged=skip_ragged,
    )
    settings = {**(changes or {}), **({} if model is None else {"model": model})}
    plan = make_plan(data, make_recipe(recipe, methods, settings), seeds)
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="steadytune-")
        out = temporary.name
    check_plan(plan, Path(out), fresh)
    return run_plan(
        plan,
        Path(out),
        fresh=fresh,
        device=device,
        deterministic=deterministic,
        listener=listener,
        temporary=temporary,
    )


def run_plan(
    plan: Plan,
    out: Path,
    *,
    fresh: bool = False,
    device: str | None = None,
    deterministic: bool = False,
    listener: Listener | None = None,
    temporary: Any = None,
) -> Fit:
    """The plan, after `check_plan`, carried out in the directory `out`."""
    record = plan.record()
    encoded = encode(plan.data, plan.recipe)
    record = dataclasses.replace(record, notes=(*record.notes, *encoded.notes))
    processes = join(device)
    with outputs.locked(out, processes.first), stop_on_signals() as stop:
        if processes.first:
            if fresh:
                outputs.clear_(out)
            record = outputs.with_date_of_first(out, record)
            outputs.write_record(out, record)
        processes.agree([False])  # nobody trains before the first process has made room

        def save(now: FitRecord) -> None:
            if processes.first:
                outputs.write_record(out, now)

        record, kept = run_seeds(
            plan,
            encoded,
            out,
            record,
            stop=stop,
            device=device,
            deterministic=deterministic,
            listener=listener or Listener(),
            save=save,
        )
        if record.status == "stopped":
            save(record)
            raise Stopped(stop.signal, f"Stopped, with a checkpoint in {out}. The same command goes on from there.")
        if processes.first:
            if kept is None:
                outputs.write_page(out, record)
            else:
                outputs.write_results(out, record, plan, encoded, kept)
            save(record)  # last: a record that says "finished" has everything beside it
        processes.agree([False])  # nobody leaves, or reads, before all is written
    if kept is None:
        raise FitFailed(
            f"All {len(plan.seeds)} seeds failed: the loss became infinite or not a number. Their records are in "
            f"{out}. Lower the learning rate (--lr), or look at the rows."
        )
    return Fit(record, out, temporary)


def check_plan(plan: Plan, out: Path, fresh: bool = False) -> None:
    """Look at the directory, load the model, apply the methods: what cannot be done is said before a write."""
    outputs.check_out(out, plan.record(), fresh)
    seed, task = plan.seeds[0], plan.data.task
    model, _ = load_model(plan.recipe, task, seed, Encoder.of(plan.recipe, task).tokenizer)
    applied = apply_(model.train(), plan.recipe.methods, streams=Streams(seed, seed, seed))
    applied.optimizer(plan.recipe.lr, plan.recipe.weight_decay)
    plan.steps()


def default_out(file: Place) -> Path:
    """reviews.csv -> reviews-fit, in the working directory."""
    name = str(file).removeprefix(HUB).split(":")[0].rstrip("/" + os.sep)
    stem = Path(name).name.removesuffix(".gz")
    stem = next((stem.removesuffix(suffix) for suffix in SUFFIXES if stem.endswith(suffix)), stem)
    return Path(f"{stem or 'steadytune'}-fit")
