"""`steadytune demo`: what every method changes on a small encoder, a fit on the bundled data, and a small study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from steadytune.effects import effect, shown_methods
from steadytune.fitting.command import run_fit
from steadytune.fitting.plan import SHARE
from steadytune.methods.base import Method
from steadytune.models import load_model, load_tokenizer
from steadytune.recipe import Recipe
from steadytune.report.study.answer import answer
from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.write import write_report
from steadytune.study.command import run_study
from steadytune.study.folder import read_results
from steadytune.tasks import acceptability
from steadytune.tasks.base import Task

ROWS = 16  # of the batch that methods are shown on
SEEDS = 3
# The recommended recipe, cut so that all of the demo takes under five minutes on two cores.
SETTINGS: dict[str, Any] = {"steps": 72, "lr": 2e-4, "max_length": 64, "evaluations": 3}
STUDY = """\
study: Does bias correction matter?
about: Figure 2 of the few-sample paper in two minutes. Is this sentence English?
base: {{preset: recommended, model: {model}, lr: 2e-4, steps: 64, max_length: 64, evaluations: 4}}
tasks:
  sentences: {{acceptability: 1600, validation: 100, test: 300}}
variants:
  corrected: {{}}
  not corrected: {{add: [{{method: adamw, correct_bias: false}}]}}
seeds: 3
"""


def run_demo(model: str = "builtin:minilm", *, out: str | Path = "demo-out", methods_only: bool = False) -> int:
    """Prints the table of methods and, unless `methods_only`, fits the bundled data, runs a study, and says where all
    of it is."""
    console = Console()
    encoder, batch = _encoder_and_batch(model)
    size = sum(p.numel() for p in encoder.parameters()) / 1e6
    console.print(f"[bold]What each method changes[/bold] on {model} ({size:.1f}M parameters), {ROWS} sentences\n")
    console.print(effects_table(encoder, batch))
    if methods_only:
        return 0
    del encoder
    data = acceptability.write(Path(out) / "acceptability", validation=200, test=600)
    console.print(
        f"\n[bold]A fit[/bold]: is this sentence English? The recommended recipe, shortened; {SEEDS} seeds.\n"
    )
    code = run_fit(
        str(data),
        text=["sentence"],
        label="label",
        validation=SHARE,  # of no account: the data comes with files of its own
        test=SHARE,
        recipe="recommended",
        methods=[],
        changes={"model": model, **SETTINGS},
        seeds=SEEDS,
        out=str(Path(out) / "fit"),
        fresh=False,
        dry_run=False,
        as_json=False,
        quiet=False,
        metric=None,
        kind=None,
        positive=None,
        missing="error",
        skip_ragged=False,
    )
    return code or _study(model, Path(out), console)


def _study(model: str, out: Path, console: Console) -> int:
    """Two recipes, three seeds each, and the page that compares them."""
    console.print("\n[bold]A study[/bold]: the same with and without Adam's bias correction, 3 seeds each.\n")
    file = out / "bias-correction.yaml"
    file.write_text(STUDY.format(model=json.dumps(model)), encoding="utf-8")
    code = run_study(
        str(file),
        out=str(out / "study"),
        on="local",
        address=None,
        workers=None,
        per_gpu=None,
        threads=1,
        retry_failed=False,
        as_json=False,
        quiet=False,
    )
    results = read_results(out / "study")
    page = write_report(results, out / "study")
    console.print()
    for sentence in answer(compare_all(results)).sentences():
        console.print(sentence, highlight=False, markup=False)
    console.print(f"\nstudy        {file}\nreport       {page}", highlight=False, markup=False)
    return code


def effects_table(model: nn.Module, batch: dict[str, Any]) -> Table:
    """One line per method, by place."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("place", no_wrap=True, style="dim")
    table.add_column("method", no_wrap=True)
    table.add_column("what it changed", overflow="fold")
    previous = ""
    for item in shown_methods():
        table.add_row("" if item.place == previous else item.place, _shown(item), effect(item, model, batch))
        previous = item.place
    return table


def _shown(method: Method) -> str:
    """The method with its first setting, which says most, as `--method` takes it: mixout:p=0.7."""
    settings = [f"{key}={value}" for key, value in vars(method).items() if value is not None]
    return f"{method.name}:{settings[0]}" if settings else method.name


def _encoder_and_batch(name: str) -> tuple[nn.Module, dict[str, Any]]:
    examples = acceptability.generate(ROWS)
    labels = (acceptability.ACCEPTABLE, acceptability.UNACCEPTABLE)
    task = Task("acceptability", "classification", "accuracy", labels, ("sentence",), "label")
    recipe = Recipe(model=name)
    tokenizer = load_tokenizer(recipe)
    model, _ = load_model(recipe, task, 0, tokenizer)
    batch = dict(tokenizer([example.sentence for example in examples], padding=True, return_tensors="pt"))
    batch["labels"] = torch.tensor([labels.index(example.label) for example in examples])
    return model, batch
