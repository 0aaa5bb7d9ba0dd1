"""What a client is asked to do, and what every client module offers.

A *lane* is a sequence that keeps its order: a partition of Kafka and Penstock, a subject of one JetStream
stream, a queue or a stream of RabbitMQ, a stream of Redis.

A client module has these names; `driver.py` does the same work with each of them:

    async def create(work)            make the lanes, empty
    async def delete(work)            remove them with their records
    async def producer(work)          a connected `Producer`
    async def consumer(work, reader)  a `Consumer` of all records of all lanes, for the reader of that number
    async def crowd(work)             many producers, each of which waits; see `Crowd`
    async def leader(work)            number of the member that leads lane 0, where members can take over
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CONNECT_S_MAX = 30
CREATE_S_MAX = 60
IDLE_S = 0.1
"""A consumer without new records returns after about this long."""


class ClientFailed(Exception):
    """A record was rejected, lost or not delivered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    address: str
    pids: tuple[int, ...]
    """Processes of the servers, whose CPU time is counted."""
    name: str
    """Name of the topic, or the beginning of the names of streams and queues."""
    lanes: int = 1
    replicas: int = 1
    record_bytes: int = 100
    seconds: float = 1.0
    """How long to produce or to read at most."""
    records: int = 2**62
    """How many to produce or to read at most."""
    rate: int = 0
    """Records a second of a steady flow; 0: as fast as possible."""
    readers: int = 1
    producers: int = 1
    connections: int = 1
    settle_s: float = 60.0
    """How long an acknowledgement may take."""
    is_paced: bool = False
    """Whether waiting times are measured: a client then sends and hands over records at once."""

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        parts = (each.rpartition(":") for each in self.address.split(","))
        return tuple((host, int(port)) for host, _, port in parts)

    def lane(self, number: int) -> str:
        return f"{self.name}-{number}"


class Producer(Protocol):
    async def send(self, lane: int, values: Sequence[bytes]) -> None:
        """Hand records to the client. Waits while too many are unacknowledged."""

    async def settle(self) -> None:
        """Wait until all records are acknowledged; raise if one was rejected."""

    async def poll(self) -> None:
        """Let the client work for a moment."""

    async def close(self) -> None: ...


class Consumer(Protocol):
    async def receive(self) -> Sequence[bytes]:
        """Values that have come, or nothing after `IDLE_S` without any."""

    async def close(self) -> None: ...


class Crowd(Protocol):
    async def run(self, seconds: float) -> int:
        """Let each producer send and wait, again and again. Returns the records acknowledged."""

    async def close(self) -> None: ...
