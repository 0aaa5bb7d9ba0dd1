"""Shared parts of command files: apps, connection options, name checks, repeated options.

A command that connects to a broker takes `broker: BrokerConnector` as its first parameter and is decorated
with `client_command`, which replaces that parameter by the connection options. So every such command has the
same options, defined and explained once.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", re.ASCII)
TOPIC_NAME_RULE: Final = (
    "use up to 249 ASCII letters, digits, dots, dashes and underscores, and not . or .. alone"
)
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
TIMEOUT_S_DEFAULT: Final = 10.0
TIMEOUT_S_MAX: Final = 86_400.0
GROUP_NAME_BYTES_MAX: Final = 32_767
"""Limit of Kafka's strings with a 16-bit length."""
URL_DEFAULT: Final = "http://127.0.0.1:8080"

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, help="How long the broker may take to answer.")
]
"""For commands that use HTTP only; `client_command` declares the option of the others."""


def new_app(**options: Any) -> typer.Typer:
    """Create an app with plain help, which is faster than rich help and readable in a pipe."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def examples(*rows: tuple[str, str]) -> str:
    """Return the last section of a command's help: tasks, each with its command line."""
    # \b keeps the formatter from wrapping a paragraph, so that users can copy the command unchanged.
    return "\n\n".join(["Examples:", *(f"\b\n{wish}:\n    {command}" for wish, command in rows)])


def _options(
    bootstrap: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_BOOTSTRAP", metavar="HOST:PORT,...", help="Brokers to connect to first."
        ),
    ] = BOOTSTRAP_DEFAULT,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=TIMEOUT_S_MAX, help="How long the broker may take to answer."
        ),
    ] = TIMEOUT_S_DEFAULT,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Connect with TLS and trust this authority (PEM).")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate to present to the broker (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of that certificate (PEM).")
    ] = None,
) -> None:
    """Declare the connection options in the form that typer reads. Never called."""


def client_command(function: Callable[..., None]) -> Callable[..., None]:
    own = list(inspect.signature(function).parameters.values())
    assert own[0].name == "broker", "the first parameter is the broker to talk to"
    connection = list(inspect.signature(_options).parameters.values())

    @wraps(function)
    def run(**values: Any) -> None:
        from penstock.cli.broker_connector import connector_of

        options = {parameter.name: values.pop(parameter.name) for parameter in connection}
        function(connector_of(**options), **values)

    keyword_only = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own[1:] + connection]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword_only}
    return run


@contextmanager
def errors_of_option(option: str) -> Iterator[None]:
    """Convert a ValueError, whose text is a sentence, to the error for a wrong value of this option."""
    try:
        yield
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from problem


def topic_names(given: Any) -> Any:
    """Validate topic names in arguments before any request is sent.

    The rule is that of every Kafka broker. Bytes that are not UTF-8 would otherwise fail in the encoder, or
    in librdkafka's C code.
    """
    for name in [given] if isinstance(given, str) else given or ():
        if not name:
            raise typer.BadParameter("the name of a topic cannot be empty")
        if not is_utf8(name):
            raise typer.BadParameter(f"{name!a} cannot be the name of a topic: it is not UTF-8")
        if TOPIC_NAME.fullmatch(name) is None:
            raise typer.BadParameter(f"{name!r} cannot be the name of a topic: {TOPIC_NAME_RULE}")
    return given


def group_names(given: Any) -> Any:
    """Validate consumer group names in arguments."""
    for name in [given] if isinstance(given, str) else given or ():
        if not is_utf8(name):
            raise typer.BadParameter(f"{name!a} cannot be the name of a group: it is not UTF-8")
        if not 1 <= len(name.encode()) <= GROUP_NAME_BYTES_MAX:
            raise typer.BadParameter(f"the name of a group has 1 to {GROUP_NAME_BYTES_MAX} bytes")
    return given


def is_utf8(text: str) -> bool:
    """Return whether the argument was valid UTF-8: Python decodes other bytes as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def parse_settings(items: Sequence[str], option: str) -> dict[str, str]:
    """Parse repeated key=value options; the last value of a key wins."""
    pairs = parse_pairs(items, option)
    for _, value in pairs:
        if not is_utf8(value):
            raise typer.BadParameter(f"{value!a} is not UTF-8", param_hint=option)
    return dict(pairs)


def parse_pairs(items: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Parse repeated key=value options, in which a key may repeat."""
    pairs = []
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise typer.BadParameter(f"{item!r} is not key=value", param_hint=option)
        if not is_utf8(key):
            raise typer.BadParameter(f"{key!a} is not UTF-8", param_hint=option)
        pairs.append((key.strip(), value))
    return pairs
