"""The `penstock` command.

Strategy: `serve` and `check-config` read their few flags with argparse; every command that talks to a
broker is built with typer, which is nicer to write and costs 0.15 s and 10 MB before it does
anything. A broker carries neither (docs/adr/0014).

Rule 1: what a person can act on is a sentence on stderr; only a defect of ours is a traceback.
Rule 2: exit code 2 means that what was typed or a setting is wrong, which is found out before anything
        is done; 1 that it could not be done; 130 that Ctrl-C came before the end.
Rule 3: a reader that closes the pipe (`| head`) has what it wanted: that ends a command quietly.
"""

import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

from penstock.cli.streams import OutputFailed, reliable_streams
from penstock.errors import CommandFailed, ConfigError, CorruptData, StorageFailed, StorageFull

EXIT_WRONG_USE: Final = 2
EXIT_INTERRUPTED: Final = 130
BROKER_COMMANDS: Final = {"serve": "penstock.cli.serve", "check-config": "penstock.cli.check_config"}


def main() -> None:
    try:
        with reliable_streams():
            _run(sys.argv[1:])
    except OutputFailed as problem:
        sys.exit(0 if problem.reader_left else f"penstock: {problem}")
    except ConfigError as problem:
        with suppress(OSError):  # where nobody can be told, the code still says it
            print(f"penstock: {problem}", file=sys.stderr)
        sys.exit(EXIT_WRONG_USE)
    except (CommandFailed, CorruptData, StorageFailed, StorageFull) as problem:
        sys.exit(f"penstock: {problem}")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _run(arguments: list[str]) -> None:
    name = arguments[0] if arguments else ""
    if name in BROKER_COMMANDS:
        import_module(BROKER_COMMANDS[name]).main(arguments[1:])
    else:
        import_module("penstock.cli.client_app").app()


if __name__ == "__main__":
    main()
