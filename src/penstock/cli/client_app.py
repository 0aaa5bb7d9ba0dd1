"""Registry of the commands that connect to a broker: each command has its own file.

This file has the names of all commands and a line of help for each. The file of a command is imported when
that command runs, so that `penstock --help` starts fast.

Rule: a command's file has `add_to(app)`, and imports heavy modules inside its functions.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.cli.command import examples, new_app
from penstock.cli.main import EXIT_TERMINATED, Terminated

COMMANDS: Final = {
    "serve": ("penstock.cli.server.serve", "Start a broker."),
    "topic": ("penstock.cli.topic", "Create, list, describe, alter, truncate and delete topics."),
    "produce": ("penstock.cli.records.produce", "Write records to a topic."),
    "consume": ("penstock.cli.records.consume", "Print the records of a topic."),
    "group": ("penstock.cli.group.app", "List, describe, reset and delete consumer groups."),
    "cluster": ("penstock.cli.cluster.app", "Run and look after a cluster of brokers."),
    "pipeline": ("penstock.cli.pipeline.app", "Run data pipelines on Spark."),
    "log-dirs": ("penstock.cli.log_dirs", "Show how much disk each partition takes."),
    "dump-log": ("penstock.cli.dump_log", "Print or verify the files of a log, without a broker."),
    "check-config": ("penstock.cli.server.check_config", "Check settings without starting a broker."),
}
EXAMPLES: Final = examples(
    ("A broker, its data in ./penstock-data", "penstock serve"),
    ("A record into it, from another terminal", "penstock produce orders --value '3 apples'"),
    ("And out again", "penstock consume orders"),
    ("What a command takes", "penstock consume --help"),
)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if near := get_close_matches(cmd_name, COMMANDS):
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {' or '.join(map(repr, near))}?")
            return None
        module = import_module(COMMANDS[cmd_name][0])
        if not hasattr(module, "add_to"):  # main.py runs these commands if they come first
            ctx.fail(f"{cmd_name} must come first: penstock {cmd_name} [OPTIONS]")
        holder = new_app()
        module.add_to(holder)
        return typer.main.get_group(holder).get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Terminated:  # the option parser would end with the exit code of Ctrl-C
            raise typer.Exit(EXIT_TERMINATED) from None
        except typer.BadParameter as rejection:
            rejection.message = in_plain_words(rejection.message)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def in_plain_words(rejection: str) -> str:
    """Translate an error message of the option parser into plain words for users."""
    words, _, _ = rejection.removeprefix("Value error, ").partition(", unable to parse")
    words = words.replace("Input should be", "it must be").replace("valid integer", "whole number")
    return words.replace("a valid number", "a number").rstrip(".")


app = new_app(
    name="penstock",
    cls=_Commands,
    help="A message queue that speaks Apache Kafka's wire protocol.",
    epilog=EXAMPLES,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit
