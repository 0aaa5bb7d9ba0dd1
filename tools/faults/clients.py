"""Producers and consumers that record in the history what they did and saw.

Each client crashes now and then: it is abandoned without closing its connections or leaving its group. A new
client replaces it: a producer with a new producer id, a reader at the position of the previous one, a group
member with a new member id.
"""

import threading
import time
from math import inf
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tools.faults.history import Assignment, Commit, Denial, History, Outcome, Read, Write

EVERY_S: Final = 0.004
LINGER_MS: Final = 20
IN_FLIGHT_MAX: Final = 12
"""With more records in flight, batches wait behind five requests in flight. librdkafka then spins for as long
as a fault lasts, on processors that the brokers need."""
CRASH_EVERY_S: Final = 30.0
COMMIT_EVERY_S: Final = 1.0
PURGE_S_MAX: Final = 5.0
SHORT_TIMEOUTS: Final = {
    "socket.timeout.ms": 2_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 300,
    "log_level": 0,
}


class _Client:
    """A thread that runs one client after another."""

    def __init__(self, name: str, history: History, *, first_crash_s: float) -> None:
        self.name = name
        self._history = history
        self._crashes_at = time.monotonic() + first_crash_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        raise AssertionError("each kind of client has its own")

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _is_time_to_crash(self) -> bool:
        is_time = time.monotonic() >= self._crashes_at
        if is_time:
            self._crashes_at += CRASH_EVERY_S
        return is_time


class Writer(_Client):
    """Writes unique values to one partition with an idempotent producer, one thread for each."""

    def __init__(
        self, bootstrap: str, topic: str, partition: int, history: History, *, first_crash_s: float
    ) -> None:
        super().__init__(f"writer-{partition}", history, first_crash_s=first_crash_s)
        self._bootstrap = bootstrap
        self._topic = topic
        self._partition = partition
        self._number = 0
        self._clients = 0
        self._sent_at: dict[str, float] = {}
        """Time of sending, by the values whose outcome is not known yet."""
        self._producer = self._new_client()

    def _new_client(self) -> Producer:
        self._clients += 1
        self._history.clients += 1
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "request.timeout.ms": 2_000,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                **SHORT_TIMEOUTS,
            }
        )

    def _work(self) -> None:
        while not self._ends.is_set():
            if self._is_time_to_crash():
                self._crash()
            if len(self._sent_at) < IN_FLIGHT_MAX:
                value = f"{self.name}.{self._clients}:{self._number}"
                self._sent_at[value] = time.monotonic()
                self._producer.produce(
                    self._topic, value, partition=self._partition, on_delivery=self._on_delivery
                )
                self._number += 1
            self._producer.poll(EVERY_S)

    def _crash(self) -> None:
        """Abandon the producer. Writes in flight have an unknown outcome: they may be stored or not."""
        self._producer.purge()
        self._producer.flush(PURGE_S_MAX)
        assert not self._sent_at, "every write has an outcome or was purged"
        self._producer = self._new_client()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        stored = message.value()
        assert isinstance(stored, bytes)
        value = stored.decode()
        # A write that the client gave up on may have been stored before.
        outcome = Outcome.ACKNOWLEDGED if error is None else Outcome.UNKNOWN
        offset = message.offset() if error is None else None
        began, producer = self._sent_at.pop(value), value.partition(":")[0]
        self._history.writes.append(
            Write(producer, self._partition, value, began, time.monotonic(), outcome, offset)
        )

    def end(self, seconds_max: float) -> int:
        """Stop, and return the number of writes without an outcome."""
        self.stop()
        return self._producer.flush(seconds_max)


class Reader(_Client):
    """Reads every partition from its start, for as long as the cluster is under faults."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        history: History,
        name: str,
        *,
        first_crash_s: float,
    ) -> None:
        super().__init__(name, history, first_crash_s=first_crash_s)
        self._bootstrap = bootstrap
        self._topic = topic
        self._positions = dict.fromkeys(range(partitions), 0)
        self._consumer = self._new_client()

    def _new_client(self) -> Consumer:
        self._history.clients += 1
        fresh = consumer(self._bootstrap, self.name)
        fresh.assign(
            [TopicPartition(self._topic, number, place) for number, place in self._positions.items()]
        )
        return fresh

    def _work(self) -> None:
        while not self._ends.is_set():
            if self._is_time_to_crash():
                self._consumer = self._new_client()
            for message in self._consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    read = as_read(self.name, message)
                    self._positions[read.partition] = read.offset + 1
                    self._history.reads.append(read)
                elif is_offset_error(message):
                    self._history.denials.append(as_denial(self.name, message))
                    self._consumer = self._new_client()
                    break
        self._consumer.close()


class Member(_Client):
    """A member of a group, which shares the partitions of a topic and commits offsets."""

    def __init__(
        self, bootstrap: str, topic: str, history: History, group: str, name: str, *, first_crash_s: float
    ) -> None:
        super().__init__(f"{group}/{name}", history, first_crash_s=first_crash_s)
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._reads = history.group_reads.setdefault(group, [])
        self._reader_names: dict[int, str] = {}
        """By partition, the consumer name of this assignment in the history."""
        self._assignments = 0
        self._positions: dict[int, int] = {}
        """Positions in the assigned partitions of which it has read a record."""
        self._commits_in_flight: dict[int, int] = {}
        """Offsets being committed. The next commit waits for them: librdkafka does not keep their order."""
        self._next_commit_at = 0.0
        self._consumer = self._new_client()

    def _new_client(self) -> Consumer:
        self._history.clients += 1
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "on_commit": self._committed,
            **SHORT_TIMEOUTS,
            **_protocol(self._group),
        }
        fresh = Consumer(settings)
        fresh.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        return fresh

    def _on_assign(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._assignments += 1
        for place in places:
            self._positions.pop(place.partition, None)
            reader = self._reader_names[place.partition] = f"{self.name}, assignment {self._assignments}"
            assigned = Assignment(self._group, reader, place.partition, time.monotonic())
            self._history.assignments.append(assigned)

    def _on_revoke(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._positions.pop(place.partition, None)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        now = time.monotonic()
        for place in places:
            is_stored = error is None and place.error is None
            self._note_commit(place.partition, now, is_stored=is_stored)

    def _note_commit(self, partition: int, at: float, *, is_stored: bool) -> None:
        offset = self._commits_in_flight.pop(partition, None)
        if offset is not None:
            self._history.commits.append(Commit(self._group, partition, offset, at, is_stored))

    def _work(self) -> None:
        while not self._ends.is_set():
            if self._is_time_to_crash():
                self._crash()
            for message in self._consumer.consume(500, timeout=0.05):
                partition = message.partition()
                if message.error() is None and partition is not None:
                    read = as_read(self._reader_names[partition], message)
                    self._reads.append(read)
                    self._positions[partition] = read.offset + 1
            if self._positions and not self._commits_in_flight and time.monotonic() >= self._next_commit_at:
                self._commit()
        self._consumer.close()

    def _crash(self) -> None:
        for partition in list(self._commits_in_flight):
            self._note_commit(partition, inf, is_stored=False)
        self._positions.clear()
        self._consumer = self._new_client()

    def _commit(self) -> None:
        self._next_commit_at = time.monotonic() + COMMIT_EVERY_S
        self._commits_in_flight = dict(self._positions)
        places = [TopicPartition(self._topic, number, place) for number, place in self._positions.items()]
        self._consumer.commit(offsets=places, asynchronous=True)


CLASSIC: Final = "classic"
GROUPS: Final = (CLASSIC, "consumer")
"""Each group is named after its group protocol."""


def _protocol(group: str) -> dict[str, Any]:
    """Settings of the group protocol. In the consumer protocol the broker sets the session timeout."""
    return {"session.timeout.ms": 6_000} if group == CLASSIC else {"group.protocol": group}


def consumer(bootstrap: str, name: str) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        **SHORT_TIMEOUTS,
    }
    return Consumer(settings)


def as_read(name: str, message: Message) -> Read:
    value, partition, offset = message.value(), message.partition(), message.offset()
    assert isinstance(value, bytes)
    assert partition is not None
    assert offset is not None
    return Read(name, partition, offset, value.decode(), time.monotonic())


def is_offset_error(message: Message) -> bool:
    """Whether the consumer's position is out of range. librdkafka recovers from other errors by itself."""
    error = message.error()
    return error is not None and error.code() in (
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
    )


def as_denial(name: str, message: Message) -> Denial:
    partition = message.partition()
    return Denial(name, -1 if partition is None else partition, str(message.error()))


def read_all(bootstrap: str, topic: str, partitions: int, seconds_max: float) -> list[Read]:
    """Read every record of the topic, from the start to the end."""
    found: list[Read] = []
    reading = consumer(bootstrap, "final")
    deadline = time.monotonic() + seconds_max
    try:
        places = [TopicPartition(topic, number, 0) for number in range(partitions)]
        left = {
            place.partition: reading.get_watermark_offsets(place, timeout=seconds_max)[1] for place in places
        }
        reading.assign(places)
        while any(left.values()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not everything could be read within {seconds_max} s: {left} are left")
            for message in reading.consume(2_000, timeout=1):
                if message.error() is None:
                    read = as_read("final", message)
                    found.append(read)
                    left[read.partition] = (
                        0 if read.offset + 1 >= left[read.partition] else left[read.partition]
                    )
    finally:
        reading.close()
    return found
