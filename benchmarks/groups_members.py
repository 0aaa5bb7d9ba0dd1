"""Processes with the members of a group, and a process that produces their records.

A crew is a process with some of the members, each in a thread: librdkafka's threads do the work, so a few
members leave the interpreter idle. A crew takes orders through a pipe, and reports the events of its members
there; at the end it reports the records that they received.

Rule 1: a member subscribes, polls and closes, as a consumer's documentation shows. librdkafka commits the
        offsets.
Rule 2: a crew ends on an order, or when the process that started it has ended.
"""

import struct
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.clients import LOG_ERRORS
from benchmarks.groups_timeline import Event, Kind, Receipt

STAMP = struct.Struct(">d")
POLL_S = 0.1


class Flow(NamedTuple):
    """A steady load: one record to each partition in every interval."""

    bootstrap: str
    topic: str
    partitions: int
    interval_s: float


class Join(NamedTuple):
    member: int


class Leave(NamedTuple):
    member: int


class End(NamedTuple):
    """Order to end without closing the members, and to report what they received."""


# Members


class _Member(threading.Thread):
    def __init__(self, number: int, settings: dict[str, Any], topic: str, crew: "_EventPipe") -> None:
        super().__init__(daemon=True)
        self._number = number
        self._settings = settings
        self._topic = topic
        self._crew = crew
        self.leaves = threading.Event()
        self.receipts: list[Receipt] = []

    def run(self) -> None:
        self._send_event(Kind.JOINING)
        consumer = Consumer(self._settings)
        consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not self.leaves.is_set():
            message = consumer.poll(POLL_S)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.fatal():
                    raise KafkaException(error)
                continue
            self._take(message)
        self._send_event(Kind.LEAVING)
        consumer.close()
        self._send_event(Kind.LEFT)

    def _take(self, message: Any) -> None:
        (sent_at,) = STAMP.unpack(message.value())
        self.receipts.append(Receipt(message.partition(), message.offset(), sent_at, time.monotonic()))

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._send_event(Kind.ASSIGNED, partitions)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._send_event(Kind.REVOKED, partitions)

    def _send_event(self, kind: Kind, partitions: Sequence[TopicPartition] = ()) -> None:
        at = time.monotonic()
        self._crew.send(Event(at, self._number, kind, tuple(each.partition for each in partitions)))


class _EventPipe:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, event: Event) -> None:
        with self._lock:
            self._pipe.send(event)


def run_crew(pipe: Connection, settings: dict[str, Any], topic: str) -> None:
    """Main function of a crew. It ends after the report of what its members received."""
    crew, members, departed = _EventPipe(pipe), dict[int, _Member](), list[_Member]()
    while not isinstance(command := _next_command(pipe), End):
        if isinstance(command, Join):
            members[command.member] = _Member(command.member, settings, topic, crew)
            members[command.member].start()
        elif isinstance(command, Leave):
            members[command.member].leaves.set()
            departed.append(members.pop(command.member))
    receipts = [receipt for member in (*members.values(), *departed) for receipt in tuple(member.receipts)]
    try:
        pipe.send(receipts)
    except BrokenPipeError:
        return  # whoever started this is gone


def _next_command(pipe: Connection) -> Join | Leave | End:
    try:
        command = pipe.recv()
    except EOFError:
        return End()
    assert isinstance(command, Join | Leave | End)
    return command


# Their records


def run_source(pipe: Connection, flow: Flow) -> None:
    """Main function of the source. It produces until a message, or the end of the pipe, arrives."""
    producer = Producer({"bootstrap.servers": flow.bootstrap, "linger.ms": 0, "log_level": LOG_ERRORS})
    due = time.monotonic()
    while not pipe.poll(max(0.0, due - time.monotonic())):
        for partition in range(flow.partitions):
            producer.produce(flow.topic, STAMP.pack(time.monotonic()), partition=partition)
        producer.poll(0)
        due += flow.interval_s
    producer.flush(1)
