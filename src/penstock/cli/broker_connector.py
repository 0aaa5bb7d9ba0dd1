"""Connection of a command to the cluster, and the sentences that users read when a request fails.

Every command uses the wire client (`penstock.wire`) for administration, metadata, offsets, groups and the
cluster. Only records go through librdkafka, in `penstock produce` and `penstock consume`
(cli/records/librdkafka.py).

Rule 1: the first connection is tried once at each address, so that a wrong address is reported at once, with
        the reason.
Rule 2: a request to leaders or to a coordinator is retried until --timeout, as wire/retry_policy.py decides.
        Other requests are sent once: after a lost reply, a retried change would be rejected as done already.
"""

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import typer

from penstock.cli.main import with_full_stop
from penstock.config.listeners import PORT_MAX, Address, parse_address
from penstock.errors import CommandFailed, ErrorCode
from penstock.host.blocking_stream import ConnectionProblem, TcpNetwork, TlsFiles
from penstock.protocol.messages.metadata import METADATA, MetadataRequest
from penstock.protocol.schema import Api, Request, Response
from penstock.types import TopicPartition
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.cluster_metadata import Leader
from penstock.wire.cluster_session import ClusterSession, LeaderOperation, PartitionOutcome
from penstock.wire.connection_pool import AttemptFailed, BrokerConnection, ConnectionPool, Network
from penstock.wire.errors import WireError
from penstock.wire.retry_policy import Remedy, RequestFailure, error_name, failure_of

CLIENT_ID: Final = "penstock-cli"
_ELSEWHERE: Final = "Name another broker with --bootstrap or PENSTOCK_BOOTSTRAP."
_LEADERLESS_SHOWN_MAX: Final = 5

Input = TypeVar("Input")
Output = TypeVar("Output")


class BrokerConnector(NamedTuple):
    """Broker addresses and connection settings."""

    addresses: tuple[Address, ...]
    timeout_s: float
    tls: TlsFiles | None = None
    network: Network | None = None
    """Network of the client; None: the real one."""

    @contextmanager
    def client(self) -> Iterator["BrokerClient"]:
        """Connect to the first address that accepts the connection."""
        network = self.network or _CommandNetwork(self.tls, self.timeout_s)
        connections = ConnectionPool(
            network,
            self.addresses,
            CLIENT_ID,
            connect_s_max=self.timeout_s,
            answer_s_max=self.timeout_s,
        )
        session = ClusterSession(network, connections, self.timeout_s)
        try:
            yield BrokerClient(session, self._first_connected(session))
        finally:
            session.close()

    def _first_connected(self, session: ClusterSession) -> Address:
        failures = []
        for address in self.addresses:
            try:
                session.connection_to_broker(address, session.deadline("connecting"))
                return address
            except AttemptFailed as failed:
                failures.append(failed.failure)
        raise CommandFailed("\n".join(failure_sentences(failures)))


class BrokerClient:
    """Requests of a command to brokers of the cluster. Every failure is a CommandFailed."""

    def __init__(self, session: ClusterSession, address: Address) -> None:
        self.session = session
        self.address = address
        """Broker that was connected first."""

    def ask(self, api: Api[Request, Response], message: Request, *, at: Address | None = None) -> Response:
        """Send a request once, to the broker `at` or to the one that was connected first."""
        with failures_explained():
            broker = self.session.connection_to_broker(at or self.address, self.session.deadline(api.name))
            return self.session.exchange(broker, api, message)

    def brokers(self) -> dict[int, Address]:
        """Return the available brokers of the cluster by id."""
        answer = self.ask(METADATA, MetadataRequest(topics=[], allow_auto_topic_creation=False))
        return {node.node_id: Address(node.host, node.port) for node in answer.brokers}

    def ask_controller(
        self,
        api: Api[Request, Response],
        message: Request,
        results_of: Callable[[Response], Sequence[Any]],
        what: str,
    ) -> Sequence[Any]:
        """Send a change to the controller; again if a broker did nothing because it is not the controller."""
        deadline = self.session.deadline(what)
        with failures_explained(what):
            while True:
                controller = self.session.controller(deadline)
                results = results_of(self.session.exchange(controller, api, message))
                if all(result.error_code != ErrorCode.NOT_CONTROLLER for result in results):
                    return results
                self.session.recover(deadline, failure_of(ErrorCode.NOT_CONTROLLER), ())

    def leaders(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, Leader | RequestFailure]:
        """Return the leader of each partition at this moment, or why it is unknown."""
        with failures_explained():
            return self.session.leaders_of(partitions, self.session.deadline("looking up leaders"))

    def run_on_leaders(
        self, operation: LeaderOperation[Input, Output], work: Mapping[TopicPartition, Input], what: str
    ) -> dict[TopicPartition, Output]:
        """Run an operation on the leaders of all partitions, with retries, and return its results."""
        deadline = self.session.deadline(what)
        with failures_explained(what):
            try:
                return self.session.run_on_leaders(deadline, _EndsAtDamage(operation), work)
            except WireError:
                view = self.session.view
                if leaderless := leaderless_in({partition: view.leader_of(partition) for partition in work}):
                    raise CommandFailed(f"{what}: {leaderless_text(leaderless)}.") from None
                raise

    def retry(self, attempt: Callable[[], Output], what: str) -> Output:
        """Run `attempt` until it no longer raises AttemptFailed, at most until --timeout."""
        with failures_explained(what):
            return self.session.retry(self.session.deadline(what), attempt)

    def ask_coordinator(
        self,
        group_id: str,
        api: Api[Request, Response],
        message: Request,
        code_of: Callable[[Response], int],
        what: str,
    ) -> Response:
        """Send a request to the group's coordinator, and again while the coordinator loads or moves."""

        def ask(broker: BrokerConnection) -> Response:
            answer = self.session.exchange(broker, api, message)
            failure = failure_of(code_of(answer))
            if failure.remedy in (Remedy.RETRY, Remedy.FIND_COORDINATOR):
                raise AttemptFailed(failure)
            return answer

        with failures_explained(what):
            return self.session.run_on_coordinator(self.session.deadline(what), group_id, ask)


class _EndsAtDamage(LeaderOperation[Input, Output]):
    """An operation that is not retried after a storage error: users should learn of damage at once."""

    def __init__(self, operation: LeaderOperation[Input, Output]) -> None:
        self._operation = operation

    def send(self, broker: BrokerConnection, work: Mapping[TopicPartition, Input]) -> PendingResponse[Any]:
        return self._operation.send(broker, work)

    def outcomes(self, answer: Any) -> Iterator[PartitionOutcome[Output]]:
        for partition, failure, result in self._operation.outcomes(answer):
            if failure is not None and failure.code == ErrorCode.KAFKA_STORAGE_ERROR:
                failure = failure._replace(remedy=Remedy.GIVE_UP)
            yield partition, failure, result


# Sentences


@contextmanager
def failures_explained(what: str = "") -> Iterator[None]:
    """Convert failures of the wire client; `what` names the request, as in `topic orders was not created`."""
    try:
        yield
    except AttemptFailed as failed:
        raise CommandFailed(failure_sentence(failed.failure, what)) from failed
    except WireError as error:
        raise CommandFailed(failure_sentence(error.failure, what) if error.failure else str(error)) from error


def failure_sentence(failure: RequestFailure, what: str = "") -> str:
    said = failure.what
    if failure.partition is not None and failure.code != ErrorCode.NONE:
        said = reported_error(failure.code, failure.partition)
    sentence = with_full_stop(f"{what}: {said}" if what else said)
    # The advice about an error code repeats what commands say better; that about a connection is theirs.
    return f"{sentence} {failure.advice}" if failure.advice and failure.code == ErrorCode.NONE else sentence


def failure_sentences(failures: Sequence[RequestFailure]) -> list[str]:
    """Return a sentence for each failure; advice that several share follows the last of them."""
    advice_to_come = [{later.advice for later in failures[place + 1 :]} for place in range(len(failures))]
    return [
        failure_sentence(failure._replace(advice="") if failure.advice in to_come else failure)
        for failure, to_come in zip(failures, advice_to_come, strict=True)
    ]


def reported_error(code: int, partition: TopicPartition) -> str:
    """Return the text of a partition's error, and where to look for details; without a full stop."""
    if code == ErrorCode.KAFKA_STORAGE_ERROR:
        return (
            f"the broker reports a storage error for {partition}: see its log; "
            "`penstock dump-log --verify` shows damage"
        )
    return f"the broker reports {error_name(code)} for {partition}"


def leaderless_in(leaders: Mapping[TopicPartition, Leader | RequestFailure]) -> list[TopicPartition]:
    return [
        partition
        for partition, found in sorted(leaders.items())
        if isinstance(found, RequestFailure) and found.code == ErrorCode.LEADER_NOT_AVAILABLE
    ]


def leaderless_text(partitions: list[TopicPartition]) -> str:
    """Name the partitions without a leader, without a full stop."""
    shown = ", ".join(map(str, partitions[:_LEADERLESS_SHOWN_MAX]))
    more = ", ..." if len(partitions) > _LEADERLESS_SHOWN_MAX else ""
    return f"no broker leads {shown}{more}: `penstock cluster status` shows which brokers are away"


class _CommandNetwork(TcpNetwork):
    """The network, whose errors come with the options of a command that may help."""

    def __init__(self, tls: TlsFiles | None, timeout_s: float) -> None:
        super().__init__(tls)
        self._is_tls = tls is not None
        self._timeout_s = timeout_s

    def problem(self, error: OSError) -> ConnectionProblem:
        found = super().problem(error)
        match error:
            case ConnectionRefusedError():
                remedy = f"Start one with `penstock serve`. {_ELSEWHERE}"
            case TimeoutError():
                found = found._replace(what=f"no answer within {self._timeout_s:g} s")
                remedy = f"Allow more with --timeout. {_ELSEWHERE}"
            case ssl.SSLCertVerificationError():
                remedy = "Give the authority that signed it with --tls-ca."
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ConnectionError() if self._is_tls:
                remedy = "It may want another certificate: see --tls-cert."
            case ssl.SSLError():
                remedy = "Check that this port is for TLS, and --tls-*."
            case ConnectionError():
                remedy = (
                    "If it expects TLS, give --tls-ca. "
                    "Check that --bootstrap names the port for Kafka clients, not the one for HTTP."
                )
            case socket.gaierror():
                remedy = f"Check the name. {_ELSEWHERE}"
            case _:
                remedy = _ELSEWHERE
        return found._replace(remedy=remedy)


# Options


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
            raise typer.BadParameter(
                f"{entry!r} is not host:port, with a port from 1 to {PORT_MAX}", param_hint="--bootstrap"
            )
    return tuple(address for _, address in addresses if address is not None)
