"""Connections to the brokers of a cluster, one each, made when they are needed.

Rule 1: a connection that failed in any way is closed and forgotten; the next who wants one gets a new
        one. Whether to try again is not decided here.
Rule 2: a connection that was left alone may have been closed by its broker: it is looked at before it
        is used again. One on which only unwanted answers are due is not waited for.
Rule 3: a broker whose word did not help is asked again only after the others that answer: it may be cut off
        from the metadata store, and say the same for ever.
Rule 4: any failure of the network or of the protocol leaves as Failed, with what it means.
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
"""One broker is waited for no longer than this, even by those who have more time: another may answer."""


class NetworkStream(Protocol):
    def allow(self, timeout_s: float) -> None: ...

    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def receive_into(self, room: memoryview) -> int: ...

    def is_stale(self) -> bool: ...

    def close(self) -> None: ...


class Network(Protocol):
    """The world that a cluster client lives in; `host.blocking_stream.TcpNetwork` is the real one."""

    def connect(self, host: str, port: int, *, timeout_s: float) -> NetworkStream: ...

    def problem(self, error: OSError) -> ConnectionProblem: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class AttemptFailed(Exception):
    """An attempt that did not succeed."""

    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.what)
        self.failure = failure


class BrokerConnection(BlockingClient):
    """A connection with its address."""

    def __init__(self, address: Address, stream: NetworkStream, client_id: str) -> None:
        self.address = address
        self.stream = stream
        super().__init__(stream, client_id)


class ConnectionPool:
    def __init__(self, network: Network, bootstrap: Sequence[Address], client_id: str) -> None:
        self._network = network
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._connected: dict[Address, BrokerConnection] = {}
        self._recently_failed: set[Address] = set()
        """Those that failed last. Others are asked first, or a silent one would be asked for ever."""
        self._deprioritized: dict[Address, int] = {}
        """Those whose word did not help, with the number of the last such word."""

    def connection_to(self, address: Address, timeout_s: float) -> BrokerConnection:
        """The connection to this broker, ready to be asked something that takes so long at the most."""
        found = self._connected.get(address)
        if found is not None and _is_unusable(found):
            self.drop(found)
            found = None
        if found is None:
            found = self._connect(address, timeout_s)
            self._connected[address] = found
        found.stream.allow(min(timeout_s, ANSWER_S_MAX))
        return found

    def any(self, known: Iterable[Address], remaining_s: Callable[[], float]) -> BrokerConnection:
        """One that answers: preferably one we talk to, then one we have heard of, then one we were told."""
        candidates = self.candidates(known)
        failures = []
        for tried, address in enumerate(candidates):
            try:
                # Those that are silent leave time for the ones after them.
                return self.connection_to(address, max(remaining_s(), 0.001) / (len(candidates) - tried))
            except AttemptFailed as failed:
                failures.append(failed.failure)
        raise AttemptFailed(_combined_failure(failures))

    def candidates(self, known: Iterable[Address]) -> list[Address]:
        """All that could be asked, in the order in which they should be."""
        found = list(dict.fromkeys([*self._connected, *known, *self._bootstrap]))
        return sorted(
            found, key=lambda each: (each in self._recently_failed, self._deprioritized.get(each, 0))
        )

    def deprioritize(self, address: Address) -> None:
        """Ask others first from now on: what this broker said of the cluster did not help."""
        self._deprioritized[address] = max(self._deprioritized.values(), default=0) + 1

    @contextmanager
    def closing_on_failure(self, broker: BrokerConnection) -> Iterator[None]:
        """Whatever ends an exchange in its midst leaves a connection that nobody can use."""
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
        timeout_s = min(timeout_s, CONNECT_S_MAX)
        self._recently_failed.add(address)  # until it has answered something
        try:
            stream = self._network.connect(address.host, address.port, timeout_s=timeout_s)
        except ConfigError as error:
            raise WireError(f"TLS cannot be used: {error}") from error
        except OSError as error:
            raise AttemptFailed(self._failure(address, error, is_new=True)) from error
        try:
            return BrokerConnection(address, stream, self._client_id)
        except BaseException as error:
            stream.close()
            if isinstance(error, OSError | ProtocolError | VersionMismatch):
                raise AttemptFailed(self._failure(address, error, is_new=True)) from error
            raise

    def _failure(self, address: Address, error: Exception, *, is_new: bool) -> RequestFailure:
        if isinstance(error, OSError):
            problem = self._network.problem(error)
            # A connection that worked until now was not set up wrongly.
            remedy = Remedy.FIND_LEADER if problem.may_pass or not is_new else Remedy.GIVE_UP
            return RequestFailure(f"the broker at {address}: {problem.what}", remedy, advice=problem.remedy)
        if isinstance(error, VersionMismatch):
            return RequestFailure(
                f"the broker at {address}: {error}", Remedy.GIVE_UP, advice="Use one that offers it."
            )
        what = f"what answers at {address} does not speak Kafka's protocol ({error})"
        remedy = Remedy.GIVE_UP if is_new else Remedy.FIND_LEADER
        return RequestFailure(what, remedy, advice="Check that the port is the one for Kafka clients.")


def _is_unusable(broker: BrokerConnection) -> bool:
    return broker.is_abandoned or (broker.is_idle and broker.stream.is_stale())


def _combined_failure(failures: Sequence[RequestFailure]) -> RequestFailure:
    """Of several brokers: there is hope as long as there is for one of them."""
    hopeful = [failure for failure in failures if failure.remedy is not Remedy.GIVE_UP]
    remedy = Remedy.FIND_LEADER if hopeful else Remedy.GIVE_UP
    advice = next((failure.advice for failure in failures if failure.advice), "")
    return RequestFailure("; ".join(failure.what for failure in failures), remedy, advice=advice)
