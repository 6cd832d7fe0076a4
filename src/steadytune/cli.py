"""The command line. Nothing heavy is imported before a command needs it: `steadytune --help` answers at once.

Exit codes: 0 done; 1 every seed failed; 2 something about the input cannot be used (a sentence says what); 130 and 143
stopped by Ctrl-C and SIGTERM, with a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from steadytune import __version__
from steadytune.cli_paper import paper
from steadytune.cli_study import compare, study
from steadytune.errors import SteadytuneError

app = typer.Typer(
    name="steadytune",
    help="Dependable fine-tuning of pretrained transformers on small datasets.",
    epilog="Example:  steadytune fit reviews.csv --text text --label label",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(study, name="study")
app.add_typer(paper, name="paper")
app.command(epilog="Example:  steadytune compare table1-study:mixout table1-study:standard")(compare)

# What commands share, and the panels that group the many options of `fit` in its help.
DATA, RECIPE, OUTPUT = "Data", "Recipe", "Output"
Text = Annotated[
    list[str] | None,
    typer.Option(help="Column of the text; twice for pairs.", metavar="COLUMN", rich_help_panel=DATA),
]
SkipRagged = Annotated[
    bool, typer.Option("--skip-ragged", help="Leave out rows with too few or many cells.", rich_help_panel=DATA)
]
MaxLength = Annotated[int | None, typer.Option(help="Tokens per row; longer ones are cut.", rich_help_panel=RECIPE)]
Remote = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that a model comes with.", rich_help_panel=RECIPE)
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=OUTPUT)]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"steadytune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Dependable fine-tuning of pretrained transformers on small datasets."""


@app.command(epilog="Example:  steadytune fit reviews.csv --text text --label label --method mixout:p=0.7")
def fit(
    file: Annotated[str, typer.Argument(help="A csv, tsv, jsonl or parquet file, a GLUE folder, hub:owner/name, ...")],
    text: Text = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the class or number.", metavar="COLUMN", rich_help_panel=DATA)
    ] = None,
    validation: Annotated[
        str,
        typer.Option(help="Rows to choose on: a file, or a share.", metavar="FILE|SHARE", rich_help_panel=DATA),
    ] = "0.15",
    test: Annotated[
        str,
        typer.Option(help="Rows to report on: a file, a share, or none.", metavar="FILE|SHARE", rich_help_panel=DATA),
    ] = "0.15",
    kind: Annotated[
        str | None, typer.Option(help="classification or regression, if unclear.", rich_help_panel=DATA)
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="accuracy, f1, macro_f1, mcc; spearman, pearson, rmse.", rich_help_panel=DATA),
    ] = None,
    positive: Annotated[str | None, typer.Option(help="The class that f1 is about.", rich_help_panel=DATA)] = None,
    missing: Annotated[str, typer.Option(help="Rows without a label: error or drop.", rich_help_panel=DATA)] = "error",
    skip_ragged: SkipRagged = False,
    recipe: Annotated[
        str, typer.Option(help="A preset or a YAML file.", metavar="NAME|FILE", rich_help_panel=RECIPE)
    ] = "recommended",
    method: Annotated[
        list[str] | None,
        typer.Option(help="Add a method, as mixout:p=0.7; repeatable.", metavar="METHOD", rich_help_panel=RECIPE),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A Hugging Face name or directory.", rich_help_panel=RECIPE)] = None,
    start_from: Annotated[
        str | None,
        typer.Option(help="A fit or model whose body to start from.", metavar="DIR", rich_help_panel=RECIPE),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many runs.", rich_help_panel=RECIPE)] = 5,
    steps: Annotated[int | None, typer.Option(help="Steps per run.", rich_help_panel=RECIPE)] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows.", rich_help_panel=RECIPE)] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.", rich_help_panel=RECIPE)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step.", rich_help_panel=RECIPE)] = None,
    max_length: MaxLength = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.", rich_help_panel=RECIPE)] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="On a GPU, the same bits every time, which takes longer; on a CPU always so.",
            rich_help_panel=RECIPE,
        ),
    ] = False,
    trust_remote_code: Remote = False,
    out: Annotated[
        str | None,
        typer.Option(help="Directory for the results; by default FILE's name with -fit.", rich_help_panel=OUTPUT),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on with an earlier run, or anew.", rich_help_panel=OUTPUT)
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and write nothing.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune on labelled rows over several seeds, and say how good, how sure and how stable the result is."""
    changes = {
        "model": model,
        "start_from": start_from,
        "steps": steps,
        "epochs": epochs,
        "lr": lr,
        "batch_size": batch_size,
        "max_length": max_length,
        "precision": precision,
        "trust_remote_code": trust_remote_code or None,
    }
    with _interruptible():
        from steadytune.fitting.command import run_fit

        code = run_fit(
            file,
            text=text,
            label=label,
            validation=_share_or_file(validation),
            test=_share_or_file(test),
            recipe=recipe,
            methods=method or [],
            changes={name: value for name, value in changes.items() if value is not None},
            seeds=seeds,
            out=out,
            fresh=not resume,
            deterministic=deterministic,
            dry_run=dry_run,
            as_json=as_json,
            quiet=quiet,
            metric=metric,
            kind=kind,
            positive=positive,
            missing=missing,
            skip_ragged=skip_ragged,
        )
    raise typer.Exit(code)


@app.command(epilog="Example:  steadytune predict reviews-fit new.csv -o predictions.csv")
def predict(
    model: Annotated[str, typer.Argument(help="A directory that fit wrote, or any Hugging Face classifier.")],
    file: Annotated[str, typer.Argument(help="A csv, tsv, jsonl or parquet file, of any size.")],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="A .csv or .jsonl file; by default the screen.")
    ] = None,
    text: Text = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Column to carry over; repeatable. By default all of a csv or tsv file.", metavar="COLUMN"),
    ] = None,
    only_predictions: Annotated[bool, typer.Option(help="Carry over no columns, only row numbers.")] = False,
    format: Annotated[str | None, typer.Option(help="csv or jsonl, where the name does not say.")] = None,
    max_length: MaxLength = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    skip_ragged: SkipRagged = False,
    quiet: Quiet = False,
    trust_remote_code: Remote = False,
) -> None:
    """Predict every row of a file, with probabilities, in memory that does not grow with it."""
    with _interruptible():
        from steadytune.predicting import predict_command

        predict_command(
            model,
            file,
            sys.stdout if out is None else Path(out),
            text=text,
            keep=[] if only_predictions else keep,
            format=format,
            max_length=max_length,
            device=device,
            skip_ragged=skip_ragged,
            quiet=quiet,
            trust_remote_code=trust_remote_code,
        )


@app.command(epilog="Example:  steadytune methods --json | python -m json.tool")
def methods(as_json: AsJson = False) -> None:
    """List every method with its paper, the place of a run it acts in, and its defaults."""
    from steadytune.listing import methods_as_data, print_methods

    if as_json:
        typer.echo(json.dumps(methods_as_data(), indent=2))
    else:
        print_methods()


@app.command(epilog="Example:  steadytune demo --methods-only")
def demo(
    model: Annotated[str, typer.Option(help="A Hugging Face name, a directory, or builtin:minilm.")] = "builtin:minilm",
    out: Annotated[str, typer.Option(help="Directory for the demo's data and results.")] = "demo-out",
    methods_only: Annotated[bool, typer.Option("--methods-only", help="Only show what each method changes.")] = False,
) -> None:
    """Show what each method changes on an encoder, then fit it on a small dataset that comes with steadytune."""
    with _interruptible():
        from steadytune.demo import run_demo

        code = run_demo(model, out=out, methods_only=methods_only)
    raise typer.Exit(code)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end a command with their usual exit codes, and let it clean up first."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("steadytune: interrupted.", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None


def _share_or_file(value: str) -> str | float | None:
    """`0.15` is a share of the rows, `none` no such split, anything else a file."""
    if value.lower() == "none":
        return None
    try:
        return float(value)
    except ValueError:
        return value


# Which extra brings a package that some command needs and the core does not.
_EXTRAS = {"scipy": "report", "matplotlib": "report", "pyarrow": "data", "datasets": "data", "ray": "ray"}


def main() -> None:
    try:
        app()
    except SteadytuneError as error:
        typer.echo(f"steadytune: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        typer.echo(f"steadytune: This needs {package}: pip install 'steadytune[{_EXTRAS[package]}]'.", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
