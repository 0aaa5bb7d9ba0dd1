"""Connection of a command to a broker, and diagnosis of connection failures.

Commands use two clients. The wire client sends requests that any broker can answer (topics, leaders, sizes),
and reports a wrong address at once, with the reason. librdkafka sends requests that must reach a leader or
the controller, and transfers records.

Rule: every command uses `BrokerConnector.client` first. librdkafka reports a failure only after its whole
timeout, and without the reason.
"""

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from penstock.config.listeners import Address, parse_address
from penstock.errors import CommandFailed, ProtocolError
from penstock.host.blocking_stream import BlockingStream, TlsFiles, open_stream
from penstock.protocol.schema import Api, Request, Response
from penstock.wire.blocking_client import BlockingClient
from penstock.wire.client_protocol import VersionMismatch

CLIENT_ID: Final = "penstock-cli"


class BrokerConnector(NamedTuple):
    """Broker addresses and connection settings."""

    addresses: tuple[Address, ...]
    timeout_s: float
    tls: TlsFiles | None = None

    @contextmanager
    def client(self, address: Address | None = None) -> Iterator["BrokerClient"]:
        """Connect to `address`, or to the first configured address that accepts the connection."""
        stream, reached = self._connect((address,) if address else self.addresses)
        with stream:
            yield BrokerClient(self, stream, reached)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return librdkafka's configuration."""
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(map(str, self.addresses)),
            "client.id": CLIENT_ID,
            "socket.timeout.ms": max(int(self.timeout_s * 1000), 1000),
            "logger": _silent_logger(),
        }
        if self.tls is not None:
            settings["security.protocol"] = "SSL"
            names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
            settings |= {name: path for name, path in zip(names, self.tls, strict=True) if path is not None}
        return settings | more

    def unreachable(self, address: Address, problem: Exception) -> CommandFailed:
        what, remedy = _diagnosis(problem, self.timeout_s, is_tls=self.tls is not None)
        return CommandFailed(f"cannot reach a broker at {address}: {what}. {remedy}")

    def _connect(self, addresses: tuple[Address, ...]) -> tuple[BlockingStream, Address]:
        # Every address is tried; the error lists the reason for each of them.
        refusals: list[CommandFailed] = []
        for address in addresses:
            try:
                return self._open(address), address
            except OSError as problem:
                refusals.append(self.unreachable(address, problem))
        raise CommandFailed("\n".join(map(str, refusals)))

    def _open(self, address: Address) -> BlockingStream:
        return open_stream(address.host, address.port, timeout_s=self.timeout_s, tls=self.tls)


class BrokerClient:
    """Wire client whose failures become readable sentences."""

    def __init__(self, broker: BrokerConnector, stream: BlockingStream, address: Address) -> None:
        self._broker = broker
        self.address = address
        with self._failures_explained():
            self._client = BlockingClient(stream, CLIENT_ID)

    def ask(self, api: Api[Request, Response], message: Request) -> Response:
        with self._failures_explained():
            return self._client.ask(api, message)

    @contextmanager
    def _failures_explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ProtocolError, VersionMismatch) as problem:
            raise self._broker.unreachable(self.address, problem) from problem


def connector_of(
    *, bootstrap: str, timeout: float, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None
) -> BrokerConnector:
    """Create a connector from a command's options. Files are checked here, so that errors name the option."""
    if tls_key is not None and tls_cert is None:
        raise typer.BadParameter("give --tls-cert as well", param_hint="--tls-key")
    paths = [None if path is None else str(path) for path in (tls_ca, tls_cert, tls_key)]
    tls = TlsFiles(*paths) if any(paths) else None
    if tls is not None:
        _check_files(tls)
    return BrokerConnector(_addresses(bootstrap), timeout, tls)


def _check_files(tls: TlsFiles) -> None:
    from penstock.host.tls import authorities_problem, identity_problem

    if tls.ca is not None and (problem := authorities_problem(tls.ca)):
        raise typer.BadParameter(problem, param_hint="--tls-ca")
    if tls.certificate is not None and (problem := identity_problem(tls.certificate, tls.key)):
        raise typer.BadParameter(problem, param_hint="--tls-cert" if tls.key is None else "--tls-key")


def _addresses(bootstrap: str) -> tuple[Address, ...]:
    addresses = [(entry, parse_address(entry.strip())) for entry in bootstrap.split(",")]
    for entry, address in addresses:
        if address is None or not address.host or not address.port:
            raise typer.BadParameter(f"{entry!r} is not host:port", param_hint="--bootstrap")
    return tuple(address for _, address in addresses if address is not None)


def _diagnosis(problem: Exception, timeout_s: float, *, is_tls: bool) -> tuple[str, str]:
    """Return the problem and its remedy."""
    elsewhere = "Name another broker with --bootstrap or PENSTOCK_BOOTSTRAP."
    other_port = "Check that --bootstrap names the port for Kafka clients, not the one for HTTP."
    match problem:
        case ConnectionRefusedError():
            return "nothing listens there", f"Start one with `penstock serve`. {elsewhere}"
        case ssl.SSLCertVerificationError():
            why = problem.verify_message
            return (
                f"its certificate is not trusted ({why})",
                "Give the authority that signed it with --tls-ca.",
            )
        case ssl.SSLError():
            return (
                f"TLS failed ({problem.reason or problem})",
                "Check that this port is for TLS, and --tls-*.",
            )
        case TimeoutError():
            return f"no answer within {timeout_s:g} s", f"Allow more with --timeout. {elsewhere}"
        case ConnectionError() if is_tls:
            return "it closed the connection", "It may want another certificate: see --tls-cert."
        case ConnectionError():
            return "it closed the connection", f"If it expects TLS, give --tls-ca. {other_port}"
        case VersionMismatch():
            return str(problem), "Use a broker that offers it."
        case ProtocolError():
            return f"what answers there does not speak Kafka's protocol ({problem})", other_port
        case socket.gaierror():
            return "no such host is known", f"Check the name. {elsewhere}"
        case _:
            return str(getattr(problem, "strerror", None) or problem), elsewhere


def _silent_logger() -> logging.Logger:
    """Suppress librdkafka's own log lines on stderr; commands report the relevant errors themselves."""
    logger = logging.getLogger("penstock.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
