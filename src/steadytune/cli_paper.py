"""`steadytune paper ...`: the papers' tables and figures, run and reported. What the commands do is in papers/."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from steadytune.cli_study import AsJson, Deterministic, Known, On, PerGpu, Quiet, Threads, Workers

paper = typer.Typer(
    help="The papers' tables and figures: run each as a study, and see what came out beside what was published.",
    epilog="Example:  steadytune paper run few-sample/figure-2 --scale small --data ../shared/data",
    no_args_is_help=True,
)


class Scale(enum.StrEnum):
    full = "full"
    small = "small"
    smoke = "smoke"


Ids = Annotated[
    list[str], typer.Argument(help="Tables or figures, such as mixout/table-1; see `paper list`.", metavar="ID...")
]
Out = Annotated[str, typer.Option(help="Folder for the runs of all tables and figures.")]
OUT = "paper-runs"


@paper.command("list", epilog="Example:  steadytune paper list mixout")
def list_(
    papers: Annotated[
        list[str] | None,
        typer.Argument(help="mixout, few-sample, rdrop, or ids.", metavar="[PAPER]..."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every table and figure: its id, what it shows, and what it costs at each scale."""
    from steadytune.papers.listing import print_list

    print_list(papers or [], as_json=as_json)


@paper.command(epilog="Example:  steadytune paper run mixout/table-1 --scale small --data ../shared/data")
def run(
    ids: Ids,
    scale: Annotated[Scale, typer.Option(help="The paper's set-up; one that fits one GPU; or a quick test.")],
    data: Annotated[
        str | None, typer.Option(help="Folder with glue/, mnist/, ...; by default $STEADYTUNE_DATA.", metavar="DIR")
    ] = None,
    out: Out = OUT,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A directory for a model of the hub: roberta-large=DIR.", metavar="NAME=DIR"),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="Only this dataset, such as CoLA; give it again for more.", metavar="NAME"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Report at most so many seeds; more may follow. Settings are chosen by all.", metavar="N"
        ),
    ] = None,
    on: Annotated[On, typer.Option(help="This machine, or a Ray cluster.")] = On.local,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster; without it, Ray's own default.", metavar="ADDRESS")
    ] = None,
    workers: Workers = None,
    per_gpu: PerGpu = None,
    threads: Threads = 1,
    deterministic: Deterministic = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Also run failed trials again.")] = False,
    known: Known = None,
    quiet: Quiet = False,
) -> None:
    """Run tables or figures, each as a study or several. The same command again goes on where it stopped."""
    from rich.console import Console

    from steadytune.papers.experiment import reads_data
    from steadytune.papers.experiments import find_experiment
    from steadytune.papers.needed_models import refuse_missing_models
    from steadytune.papers.run import Workshop, command, refuse_what_cannot_be_run, run_experiment
    from steadytune.study.command import run_study
    from steadytune.study.screen import duration

    asked = [find_experiment(id) for id in ids]  # before anything else is asked for
    found = _data(data, needed=scale is not Scale.smoke and any(reads_data(each) for each in asked))
    workshop = Workshop(
        Path(out), scale.value, found, _models(model or []), tuple(task or ()), tuple(known or ()), seeds
    )
    for id in ids:  # all of them, before the first is run
        refuse_what_cannot_be_run(id, workshop)
        if on is On.local:  # the nodes of a cluster have their own
            refuse_missing_models(id, workshop)
    console = Console(quiet=quiet)

    def run_file(file: Path, known: Sequence[str], alone: bool) -> int:
        return run_study(
            str(file),
            out=str(file.parent),
            on="ray" if on is On.ray else "local",
            address=address,
            workers=workers,
            per_gpu=None if alone else per_gpu,
            threads=threads,
            deterministic=deterministic,
            retry_failed=retry_failed,
            as_json=False,
            quiet=quiet,
            known=known,
        )

    def say(line: str) -> None:
        console.print(line, style="bold", markup=False, highlight=False, soft_wrap=True)

    code = 0
    for id in ids:
        began = time.perf_counter()
        code = run_experiment(id, workshop, run_file, say) or code
        say(f"{id} took {duration(time.perf_counter() - began)}.")
        if code > 1:  # stopped; failed trials are 1, and the other items may do without them
            raise typer.Exit(code)
    if code == 0:
        console.print()
        say(f"The report:  {command('report', ' '.join(ids), workshop)}")
    raise typer.Exit(code)


@paper.command(epilog="Example:  steadytune paper report mixout/table-1 --scale small")
def report(
    ids: Ids,
    scale: Annotated[Scale | None, typer.Option(help="Whose runs; by default the only ones there are.")] = None,
    out: Out = OUT,
    record: Annotated[
        str | None, typer.Option(help="Also keep a small record there: JSON, CSV, Markdown, SVG.", metavar="DIR")
    ] = None,
    note: Annotated[
        list[str] | None,
        typer.Option(help="A sentence to be said with it: what was different.", metavar="TEXT"),
    ] = None,
    pages: Annotated[bool, typer.Option(help="Also write report.html of every study behind it.")] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """A table or figure, or several, with the published numbers beside the measured ones, and every claim tested."""
    import json

    from rich.console import Console

    from steadytune.papers.report import PaperReport, make_report
    from steadytune.papers.report_files import print_report, write_files, write_pages
    from steadytune.papers.run import Workshop, make_folder, scale_of

    console = Console(quiet=quiet or as_json)
    made: list[PaperReport] = []
    for id in ids:  # all of them, before the first is written
        workshop = Workshop(Path(out), scale.value if scale is not None else scale_of(id, Path(out)))
        made.append(make_report(id, workshop, note or ()))
    if record is not None:
        make_folder(Path(record), "--record")
    for each in made:
        print_report(each, console)
        paths = write_files(each, each.workshop.folder(each.item.id) / "report")
        if record is not None:
            paths += write_files(each, Path(record), ("svg",))
        if pages:
            paths += write_pages(each.item.id, each.workshop)
        console.print()
        for path in paths:
            console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    if as_json:
        records = [each.record() for each in made]
        typer.echo(json.dumps(records if len(records) > 1 else records[0]))


@paper.command(epilog="Example:  steadytune paper keep docs/results/runs --scale small")
def keep(
    folder: Annotated[str, typer.Argument(help="Of kept runs; what is there already stays.", metavar="DIR")],
    scale: Annotated[Scale, typer.Option(help="Whose runs.")],
    out: Out = OUT,
    quiet: Quiet = False,
) -> None:
    """Keep all runs of a scale in small files, one a study; `paper run --known DIR` takes them over elsewhere."""
    from steadytune.papers.run import Workshop, keep_runs

    for path, count in keep_runs(Workshop(Path(out), scale.value), Path(folder)).items():
        if not quiet:
            typer.echo(f"{path}: {count} runs")


@paper.command(epilog="Example:  steadytune paper results docs/results")
def results(
    folder: Annotated[str, typer.Argument(help="Of records that `paper report --record` has made.", metavar="DIR")],
    quiet: Quiet = False,
) -> None:
    """Write DIR.md: all records on one page, claim by claim, and what has not been run."""
    from steadytune.papers.results_page import results_page
    from steadytune.study.new_file import write_text

    records = Path(folder)
    page = records.parent / f"{records.name}.md"
    write_text(page, results_page(records))
    if not quiet:
        typer.echo(str(page))


def _data(given: str | None, *, needed: bool) -> Path:
    from steadytune.errors import SteadytuneError

    found = Path(given or os.environ.get("STEADYTUNE_DATA") or "data")
    if needed and not found.is_dir():
        raise SteadytuneError(
            f"The data folder {found} does not exist. Name the one that holds glue/, mnist/, ... with --data DIR or in "
            "STEADYTUNE_DATA."
        )
    return found


def _models(given: list[str]) -> dict[str, str]:
    from steadytune.errors import SteadytuneError
    from steadytune.papers.settings import SMOKE_MODELS
    from steadytune.strict import nearest

    made = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals:
            raise SteadytuneError(f"--model is written NAME=DIR, not {text!r}.")
        if name not in SMOKE_MODELS:
            near = [each for each in SMOKE_MODELS if name and each.startswith(name)]
            meant = f"Did you mean {' or '.join(near)}?" if near else nearest(name, SMOKE_MODELS)
            raise SteadytuneError(f"--model {text}: no experiment has a model {name!r}. {meant}")
        if not folder or not Path(folder).is_dir():
            raise SteadytuneError(f"--model {text}: there is no directory {folder!r} with a model.")
        if not (Path(folder) / "config.json").is_file():  # else every run of it would fail alone
            raise SteadytuneError(f"--model {text}: {folder} has no config.json, so it is no model's directory.")
        made[name] = folder
    return made
