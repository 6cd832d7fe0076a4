"""`steadytune study ...` and `steadytune compare`: their options and help. What they do is in study/command.py."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steadytune.report.study.sides import Side

study = typer.Typer(
    help="Compare recipes over seeds and tasks: one YAML file, one command, one report.",
    epilog="Example:  steadytune study run table1.yaml && steadytune study report table1-study",
    no_args_is_help=True,
)


class On(enum.StrEnum):
    local = "local"
    ray = "ray"


File = Annotated[str, typer.Argument(help="A study file (YAML).", metavar="FILE")]
Place = Annotated[str, typer.Argument(help="A study's folder, or its file.", metavar="DIR|FILE")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes; by default one per core or GPU.")]
PerGpu = Annotated[
    str | None,
    typer.Option(help="Trials at a time on each GPU: a number, or auto for what it has room for.", metavar="K"),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads per trial; changes the last bits.")]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="On a GPU, the same bits every time, which takes longer; on a CPU always so."),
]
Known = Annotated[
    list[str] | None,
    typer.Option(
        help="Where runs are known already, which are not run again: a study's folder, a file of `study keep`, or a "
        "folder of such files. Give it again for more.",
        metavar="PATH",
    ),
]


@study.command(epilog="Example:  steadytune study plan table1.yaml --price 2.50")
def plan(
    file: File,
    workers: Workers = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Per hour, to estimate the cost.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show every trial of a study, with an estimate of time and cost. Writes nothing."""
    from steadytune.study.command import run_plan

    raise typer.Exit(run_plan(file, workers=workers, price=price, as_json=as_json, quiet=quiet))


@study.command(epilog="Example:  steadytune study run table1.yaml --workers 4; on a GPU: --per-gpu auto")
def run(
    file: File,
    out: Annotated[str | None, typer.Option(help="Folder of the study; by default FILE's name with -study.")] = None,
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
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a study. The same command again goes on where it stopped, whatever stopped it."""
    from steadytune.study.command import run_study

    raise typer.Exit(
        run_study(
            file,
            out=out,
            on="ray" if on is On.ray else "local",
            address=address,
            workers=workers,
            per_gpu=per_gpu,
            threads=threads,
            deterministic=deterministic,
            retry_failed=retry_failed,
            as_json=as_json,
            quiet=quiet,
            known=known or (),
        )
    )


@study.command(epilog="Example:  steadytune study status table1-study")
def status(place: Place, as_json: AsJson = False) -> None:
    """How many trials are done, running and failed, what is left, and the best so far."""
    from steadytune.study.command import run_status

    raise typer.Exit(run_status(place, as_json=as_json))


@study.command(epilog="Example:  steadytune study watch table1-study")
def watch(
    place: Place,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
) -> None:
    """A live view of a study that runs somewhere else, until it ends."""
    from steadytune.study.command import run_watch

    raise typer.Exit(run_watch(place, every=every))


@study.command(epilog="Example:  steadytune study report table1-study")
def report(place: Place, quiet: Quiet = False) -> None:
    """Write report.html, and its figures and tables as files."""
    from rich.console import Console

    from steadytune.report.study.write import write_report
    from steadytune.study.folder import read_results
    from steadytune.study.status import study_folder

    folder, console = study_folder(place), Console(quiet=quiet)
    with console.status("Reading the ledger, drawing figures"):
        page = write_report(read_results(folder), folder)
    for made in (page, page.parent / "figures", page.parent / "tables"):
        console.print(str(made), markup=False, highlight=False, soft_wrap=True)


@study.command(epilog="Example:  steadytune study export table1-study trials.csv")
def export(
    place: Place,
    target: Annotated[str, typer.Argument(help="A .csv, .jsonl or .parquet file.", metavar="OUT")],
) -> None:
    """Write one row per trial to a table."""
    from steadytune.study.command import run_export

    raise typer.Exit(run_export(place, target))


@study.command(epilog="Example:  steadytune study keep table1-study table1.runs.gz")
def keep(
    place: Place,
    target: Annotated[str, typer.Argument(help="A .runs.gz file; what it has already stays.", metavar="OUT")],
) -> None:
    """Keep the ended trials in a small file; `study run --known` takes them over, also on another machine."""
    from steadytune.study.command import run_keep

    raise typer.Exit(run_keep(place, target))


def compare(
    a: Annotated[str, typer.Argument(help="A fit's folder, or DIR:VARIANT of a study.", metavar="A")],
    b: Annotated[str, typer.Argument(help="What A is compared with.", metavar="B")],
    as_json: AsJson = False,
) -> None:
    """Is A better than B? Two fits, or two variants of studies: the answer, the tests behind it, and how sure it is."""
    import json

    from rich.console import Console

    from steadytune.report.study.compare import compare as compare_sides

    pair = compare_sides(_side(a), _side(b))
    if as_json:
        typer.echo(json.dumps(pair.as_data()))
    else:
        Console().print(pair.render(), highlight=False)


def _side(place: str) -> Side:
    """`reviews-fit`, `table1-study:mixout`, or a study of one variant."""
    from pathlib import Path

    from steadytune.errors import SteadytuneError
    from steadytune.report.study.sides import side_of_fit, side_of_variant
    from steadytune.study.folder import LEDGER, read_results
    from steadytune.study.status import study_folder

    cuts = [at for at, letter in enumerate(place) if letter == ":"]  # a name of a variant may have a colon too
    cut = next((at for at in cuts if Path(place[:at]).exists()), None)
    where, variant = (place, None) if Path(place).exists() or cut is None else (place[:cut], place[cut + 1 :])
    if not (study_folder(where) / LEDGER).exists():
        return side_of_fit(where)
    results = read_results(study_folder(where))
    reported = list(dict.fromkeys(name for _, name in results.reported))
    if variant is None and len(reported) != 1:
        raise SteadytuneError(f"{where} has several variants; say which, as {where}:{(reported or ['NAME'])[0]}")
    return side_of_variant(results, variant if variant is not None else reported[0])
