"""What the suite asks of a client library. Each library has one adapter, a subclass of `Client`.

Rule 1: an adapter uses its library as the library's documentation does, and corrects nothing.
Rule 2: what a library cannot do is a `Capability` in `lacks`. Tests that need it are skipped and say so.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import pytest

from tests.integration.messages import Message, Stored, varied_messages

SECONDS_MAX = 20.0
FETCH_WAIT_MS = 500

Sent = dict[int, list[Message]]
"""Messages by partition."""


Places = list[tuple[int, int]]
"""Partition and offset."""


class Sending(NamedTuple):
    compression: str = "none"
    acks: str = "all"
    in_small_batches: bool = False
    """By an idempotent producer, so that many requests are in flight."""


PLAINLY = Sending()


class Capability(Enum):
    EVERY_FIELD = "records with null keys and values, and with timestamps of the user's choosing"
    PLACES = "the partition and offset of each acknowledged record"
    ERRORS = "the error code of a refused request"
    WAITING = "a consumer that stays connected between two reads"
    ADMINISTRATION = "changes of topics, with their errors"


class Refused(Exception):
    """The library told its user of an error, with this code of the protocol or of its own."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def code_of(error: Any) -> int:
    """The code of the protocol, of an error of kafka-python or aiokafka."""
    return int(error.errno)


def stored(record: Any) -> Stored:
    """A record of kafka-python or aiokafka."""
    message = Message(record.key, record.value, tuple(record.headers), record.timestamp)
    return Stored(record.partition, record.offset, message)


class Reader(ABC):
    """Reads partitions of one topic, from a given offset on."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Stored]:
        """What comes within that time, which may be nothing."""

    @abstractmethod
    def seek(self, partition: int, offset: int) -> None: ...

    def read(self, count: int) -> list[Stored]:
        """The next `count` messages, and no more."""
        found: list[Stored] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
            found += self.poll(0.5)
        assert len(found) == count
        return found


class Client(ABC):
    name: ClassVar[str]
    lacks: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(self, bootstrap: str, **options: Any) -> None:
        self.bootstrap = bootstrap
        self.options = options
        """More settings of the library, for each of its clients: as for TLS."""

    @classmethod
    def absent(cls) -> str | None:
        """Why the library cannot be used on this machine."""
        return None

    def require(self, *capabilities: Capability) -> None:
        for lacking in self.lacks.intersection(capabilities):
            pytest.skip(f"{self.name} does not offer {lacking.value}")

    def messages(self, count: int) -> list[Message]:
        """As varied as this client can send them."""
        return varied_messages(count)

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None: ...

    @abstractmethod
    def produce(self, topic: str, sent: Sent, how: Sending = PLAINLY) -> Places:
        """Send to each partition its messages. Where each was stored, if the library tells."""

    @abstractmethod
    def reading(
        self, topic: str, partitions: int, *, start: int | None = None, wait_ms: int = FETCH_WAIT_MS
    ) -> AbstractContextManager[Reader]:
        """A consumer without a group, from the beginning if no start is given.

        An offset that does not exist is an error to it.
        """

    @abstractmethod
    def watermarks(self, topic: str) -> tuple[int, int]:
        """Begin and end of partition 0."""

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> list[int | None]:
        """The first offset of each partition with this timestamp or a later one. None: there is none."""
        raise NotImplementedError

    def administration(self) -> AbstractContextManager["Administration"]:
        raise NotImplementedError


class Administration(ABC):
    """Changes of topics. A refused request raises `Refused`."""

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def partitions_of(self, topic: str) -> list[int]: ...

    @abstractmethod
    def setting(self, topic: str, key: str) -> str: ...

    @abstractmethod
    def alter(self, topic: str, key: str, value: str | None) -> None:
        """None: back to the default."""

    @abstractmethod
    def delete_records(self, topic: str, before: int) -> None:
        """Delete the records of partition 0 before this offset."""


@contextmanager
def refusals_of(error: type[Exception], code_of: Callable[[Any], int]) -> Iterator[None]:
    """Errors of a library become `Refused`."""
    try:
        yield
    except error as refusal:
        raise Refused(code_of(refusal), str(refusal)) from refusal
