"""The `penstock` command.

Strategy: `serve` and `check-config` read their few flags with argparse; every command that talks to a
broker is built with typer, which is nicer to write and costs 0.15 s and 10 MB before it does
anything. A broker carries neither (docs/adr/0014).

Rule 1: what a person can act on is one sentence on stderr and exit code 1 (2 when the command line
        itself is wrong); only a defect of ours is a traceback.
"""

import sys
from importlib import import_module
from typing import Final

from penstock.errors import CommandFailed, ConfigError, CorruptData, StorageFailed, StorageFull

EXIT_INTERRUPTED: Final = 130
BROKER_COMMANDS: Final = {"serve": "penstock.cli.serve", "check-config": "penstock.cli.check_config"}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        if name in BROKER_COMMANDS:
            import_module(BROKER_COMMANDS[name]).main(sys.argv[2:])
        else:
            import_module("penstock.cli.client_app").app()
    except (CommandFailed, ConfigError, CorruptData, StorageFailed, StorageFull) as problem:
        sys.exit(f"penstock: {problem}")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
