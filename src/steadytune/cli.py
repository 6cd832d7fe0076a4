"""The command line. Nothing heavy is imported before a command needs it: `steadytune --help` answers at once."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from steadytune import __version__
from steadytune.errors import SteadytuneError

app = typer.Typer(
    name="steadytune",
    help="Dependable fine-tuning of pretrained transformers on small datasets.",
    epilog="Example:  steadytune methods",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


@app.command(epilog="Example:  steadytune methods --json | python -m json.tool")
def methods(as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """List every method with its paper, the place of a run it acts in, and its defaults."""
    from steadytune.listing import methods_as_data, print_methods

    if as_json:
        typer.echo(json.dumps(methods_as_data(), indent=2))
    else:
        print_methods()


@app.command(epilog="Example:  steadytune demo --model bert-base-uncased")
def demo(
    model: Annotated[str, typer.Option(help="A Hugging Face name, a directory, or builtin:minilm.")] = "builtin:minilm",
) -> None:
    """Apply each method to an encoder and show what it changed."""
    from steadytune.demo import run_demo

    run_demo(model)


def main() -> None:
    try:
        app()
    except SteadytuneError as error:
        typer.echo(f"steadytune: {error}", err=True)
        sys.exit(2)
