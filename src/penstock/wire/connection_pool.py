"""The connection pool of a cluster client: one connection per broker, opened on first use.

Rule 1: a connection that failed in any way is closed and dropped; the next request opens a new one. The
        pool does not decide about retries.
Rule 2: an idle connection may have been closed by its broker, so it is checked before it is used again. A
        connection on which only discarded replies are outstanding is replaced.
Rule 3: a broker whose metadata did not help is used only after the other reachable brokers: it may be
        partitioned from the metadata store, and its metadata stay stale.
Rule 4: every network or protocol error leaves the pool as AttemptFailed, with its remedy.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from penstock.config.listeners import Address
from penstock.errors import ConfigError, ProtocolError
from penstock.host.blocking_stream import ConnectionProblem
from penstock.types import Buffer
from penstock.wire.blocking_client import BlockingClient
from penstock.wire.client_protocol import VersionMismatch
from penstock.wire.errors import WireError
from penstock.wire.retry_policy import Remedy, RequestFailure

CONNECT_S_MAX: Final = 10.0
ANSWER_S_MAX: Final = 30.0
"""Time limit for one broker's reply, even if the call has more time: another broker may reply."""


class NetworkStream(Protocol):
    def allow(self, timeout_s: float) -> None: ...

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def receive_into(self, room: memoryview) -> int: ...

    def is_stale(self) -> bool: ...

    def close(self) -> None: ...


class Network(Protocol):
    """The network and clock of a cluster client; `host.blocking_stream.TcpNetwork` is the real one."""

    def connect(self, host: str, port: int, *, timeout_s: float) -> NetworkStream: ...

    def problem(self, error: OSError) -> ConnectionProblem: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class AttemptFailed(Exception):
    """Raised when one attempt of a call fails."""

    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.what)
        self.failure = failure


class BrokerConnection(BlockingClient):
    """A connection and the address of its broker."""

    def __init__(self, address: Address, stream: NetworkStream, client_id: str) -> None:
        self.address = address
        self.stream = stream
        super().__init__(stream, client_id)


class ConnectionPool:
    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        client_id: str,
        *,
        connect_s_max: float = CONNECT_S_MAX,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        self._connect_s_max = connect_s_max
        self._answer_s_max = answer_s_max
        self._network = network
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._connected: dict[Address, BrokerConnection] = {}
        self._recently_failed: set[Address] = set()
        """Brokers whose last exchange failed. They come last, or an unresponsive one would be tried for
        ever."""
        self._deprioritized: dict[Address, int] = {}
        """Brokers whose metadata did not help, with an increasing number per event."""

    def connection_to(self, address: Address, timeout_s: float) -> BrokerConnection:
        """Return a usable connection to this broker, for a request of at most this duration."""
        found = self._connected.get(address)
        if found is not None and _is_unusable(found):
            self.drop(found)
            found = None
        if found is None:
            found = self._connect(address, timeout_s)
            self._connected[address] = found
        found.stream.allow(min(timeout_s, self._answer_s_max))
        return found

    def any(self, known: Iterable[Address], remaining_s: Callable[[], float]) -> BrokerConnection:
        """Connect to a broker that replies: first connected ones, then known ones, then bootstrap ones."""
        candidates = self.candidates(known)
        failures = []
        for tried, address in enumerate(candidates):
            try:
                # A share of the time for each candidate, so that unresponsive ones leave time for the rest.
                return self.connection_to(address, max(remaining_s(), 0.001) / (len(candidates) - tried))
            except AttemptFailed as failed:
                failures.append(failed.failure)
        raise AttemptFailed(_combined_failure(failures))

    def candidates(self, known: Iterable[Address]) -> list[Address]:
        """All known brokers, in the order in which to try them."""
        found = list(dict.fromkeys([*self._connected, *known, *self._bootstrap]))
        return sorted(
            found, key=lambda each: (each in self._recently_failed, self._deprioritized.get(each, 0))
        )

    def deprioritize(self, address: Address) -> None:
        """Prefer other brokers from now on: this broker's metadata did not help."""
        self._deprioritized[address] = max(self._deprioritized.values(), default=0) + 1

    @contextmanager
    def closing_on_failure(self, broker: BrokerConnection) -> Iterator[None]:
        """Close the connection if the block raises: a half-done exchange makes it unusable."""
        try:
            yield
            self._recently_failed.discard(broker.address)
        except BaseException as error:
            self.drop(broker)
            self._recently_failed.add(broker.address)
            if isinstance(error, OSError | ProtocolError | VersionMismatch):
                raise AttemptFailed(self._failure(broker.address, error, is_new=False)) from error
            raise

    def drop(self, broker: BrokerConnection) -> None:
        broker.stream.close()
        if self._connected.get(broker.address) is broker:
            del self._connected[broker.address]

    def close(self) -> None:
        for broker in list(self._connected.values()):
            self.drop(broker)

    def _connect(self, address: Address, timeout_s: float) -> BrokerConnection:
        timeout_s = min(timeout_s, self._connect_s_max)
        has_failed = address in self._recently_failed
        self._recently_failed.add(address)
        try:
            stream = self._network.connect(address.host, address.port, timeout_s=timeout_s)
        except ConfigError as error:
            raise WireError(f"TLS cannot be used: {error}") from error
        except OSError as error:
            raise AttemptFailed(self._failure(address, error, is_new=True)) from error
        try:
            connection = BrokerConnection(address, stream, self._client_id)
        except BaseException as error:
            stream.close()
            if isinstance(error, OSError | ProtocolError | VersionMismatch):
                raise AttemptFailed(self._failure(address, error, is_new=True)) from error
            raise
        if not has_failed:  # a broker that failed before may greet and then not reply again
            self._recently_failed.discard(address)
        return connection

    def _failure(self, address: Address, error: Exception, *, is_new: bool) -> RequestFailure:
        unreachable = f"cannot reach a broker at {address}"
        if isinstance(error, OSError):
            problem = self._network.problem(error)
            # An established connection proves that the settings are right, so its failure is transient.
            remedy = Remedy.FIND_LEADER if problem.may_pass or not is_new else Remedy.GIVE_UP
            return RequestFailure(f"{unreachable}: {problem.what}", remedy, advice=problem.remedy)
        if isinstance(error, VersionMismatch):
            advice = "Use a broker that offers it."
            return RequestFailure(f"{unreachable}: {error}", Remedy.GIVE_UP, advice=advice)
        what = f"{unreachable}: what answers there does not speak Kafka's protocol ({error})"
        remedy = Remedy.GIVE_UP if is_new else Remedy.FIND_LEADER
        advice = "Check that the port is the one for Kafka clients, not the one for HTTP."
        return RequestFailure(what, remedy, advice=advice)


def _is_unusable(broker: BrokerConnection) -> bool:
    return broker.is_abandoned or (broker.is_idle and broker.stream.is_stale())


def _combined_failure(failures: Sequence[RequestFailure]) -> RequestFailure:
    """Combine failures of several brokers: transient if one of them is."""
    hopeful = [failure for failure in failures if failure.remedy is not Remedy.GIVE_UP]
    remedy = Remedy.FIND_LEADER if hopeful else Remedy.GIVE_UP
    advice = next((failure.advice for failure in failures if failure.advice), "")
    return RequestFailure("; ".join(failure.what for failure in failures), remedy, advice=advice)
