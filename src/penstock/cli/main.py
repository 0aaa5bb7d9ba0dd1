"""Entry point of the `penstock` command.

`serve` and `check-config` parse their few flags with argparse. All commands that connect to a broker use
typer, which is more convenient and costs 0.15 s and 10 MB at start. A broker process loads neither of the two
(docs/adr/0014).

Rule 1: an error that users can fix is a sentence on stderr; only a bug in Penstock prints a traceback.
Rule 2: exit code 2 reports a wrong argument or setting, found before anything is done; 1 reports a failure;
        130 reports Ctrl-C, and 143 SIGTERM. SIGTERM raises what Ctrl-C raises, so that a command cleans up
        after either. `serve`, `cluster up` and pipelines, which run until then, install their own handlers.
Rule 3: if the reader closes the pipe (`| head`), the command ends without an error.
Rule 4: the modules of a command are imported inside `main`, where Ctrl-C is already handled.
"""

import sys

EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
BROKER_COMMANDS = {"serve": "penstock.cli.server.serve", "check-config": "penstock.cli.server.check_config"}


class Terminated(KeyboardInterrupt):
    """SIGTERM, at a place where Ctrl-C would be a KeyboardInterrupt."""


def main() -> None:
    try:
        _main()
    except Terminated:
        sys.exit(EXIT_TERMINATED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _main() -> None:
    from contextlib import suppress

    from penstock.cli.streams import OutputFailed, reliable_streams
    from penstock.errors import ConfigError, OperatorError

    try:
        with reliable_streams():
            _run(sys.argv[1:])
    except OutputFailed as problem:
        sys.exit(0 if problem.reader_closed else f"penstock: {problem}")
    except ConfigError as problem:
        with suppress(OSError):  # without a stderr, the exit code still reports it
            print(f"penstock: {problem}", file=sys.stderr)
        sys.exit(EXIT_WRONG_USE)
    except OperatorError as problem:
        sys.exit(f"penstock: {with_full_stop(str(problem))} {problem.remedy}".rstrip())


def _run(arguments: list[str]) -> None:
    import signal
    from importlib import import_module

    name = arguments[0] if arguments else ""
    before = signal.getsignal(signal.SIGTERM)
    if name == "serve":
        # Until the broker installs its own handler: nothing was created yet, so there is nothing to stop.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    elif before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        if name in BROKER_COMMANDS:
            import_module(BROKER_COMMANDS[name]).main(arguments[1:])
        else:
            import_module("penstock.cli.client_app").app()
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    raise Terminated


def with_full_stop(text: str) -> str:
    """Append a full stop, unless the text already ends with punctuation."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


if __name__ == "__main__":
    main()
