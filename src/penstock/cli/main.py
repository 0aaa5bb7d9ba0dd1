"""The `penstock` command.

Strategy: `serve` and `check-config` read their few flags with argparse; every command that talks to a
broker is built with typer, which is nicer to write and costs 0.15 s and 10 MB before it does
anything. A broker carries neither (docs/adr/0014).

Rule 1: what a person can act on is a sentence on stderr; only a defect of ours is a traceback.
Rule 2: exit code 2 means that what was typed or a setting is wrong, which is found out before anything
        is done; 1 that it could not be done; 130 that Ctrl-C came before the end.
Rule 3: a reader that closes the pipe (`| head`) has what it wanted: that ends a command quietly.
Rule 4: what a command needs is imported where Ctrl-C is already understood, which is to say below.
"""

import sys

EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 130
BROKER_COMMANDS = {"serve": "penstock.cli.server.serve", "check-config": "penstock.cli.server.check_config"}


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _main() -> None:
    from contextlib import suppress

    from penstock.cli.streams import OutputFailed, reliable_streams
    from penstock.errors import CommandFailed, ConfigError, CorruptData, StorageFailed, StorageFull

    try:
        with reliable_streams():
            _run(sys.argv[1:])
    except OutputFailed as problem:
        sys.exit(0 if problem.reader_closed else f"penstock: {problem}")
    except ConfigError as problem:
        with suppress(OSError):  # where nobody can be told, the code still says it
            print(f"penstock: {problem}", file=sys.stderr)
        sys.exit(EXIT_WRONG_USE)
    except (CommandFailed, CorruptData, StorageFailed, StorageFull) as problem:
        sys.exit(f"penstock: {with_full_stop(str(problem))}")


def _run(arguments: list[str]) -> None:
    import signal
    from importlib import import_module

    name = arguments[0] if arguments else ""
    if name not in BROKER_COMMANDS:
        import_module("penstock.cli.client_app").app()
        return
    before = signal.getsignal(signal.SIGTERM)
    if name == "serve":
        # Until the broker takes over: nothing was made yet, so there is nothing to stop.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        import_module(BROKER_COMMANDS[name]).main(arguments[1:])
    finally:
        signal.signal(signal.SIGTERM, before)


def with_full_stop(text: str) -> str:
    """With a full stop, unless it ends as a sentence does already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


if __name__ == "__main__":
    main()
