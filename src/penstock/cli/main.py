"""The `penstock` command: each subcommand is a file beside this one."""

import sys

import typer

from penstock import __version__
from penstock.cli import serve
from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull

app = typer.Typer(
    name="penstock",
    help="A message queue that speaks Apache Kafka's wire protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


serve.add_to(app)


def main() -> None:
    """Errors that a person can act on are one sentence and exit code 1; the rest is a traceback."""
    try:
        app()
    except (ConfigError, CorruptData, StorageFailed, StorageFull) as problem:
        sys.exit(f"penstock: {problem}")


if __name__ == "__main__":
    main()
