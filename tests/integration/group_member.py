"""A program that reads a topic as a member of a group, with the library it is told to use.

    group_member.py KIND BOOTSTRAP TOPIC GROUP [KEY=VALUE ...]

It says on stdout, a line each, what happens to it. A record is said before its offset is committed, so
whatever was committed had been said. Signals tell it what to do:

    SIGTERM   commit, close, and end
    SIGUSR1   after the next record, say `holding` and go no further until a line comes on stdin

Rule 1: commits are explicit, and never of partitions that were taken away meanwhile.
Rule 2: one program for each library, and each of them as its documentation shows it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

COMMIT_EVERY = 20
POLL_S = 0.1
CLASSIC_STRATEGIES = {"confluent-range": "range", "confluent-cooperative": "cooperative-sticky"}


def print_event(*words: object) -> None:
    """In one write: a process that is killed leaves no half line."""
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def offsets_text(places: dict[int, int]) -> str:
    return " ".join(f"{partition}:{offset}" for partition, offset in sorted(places.items()))


class Signals:
    """What signals have asked for, and the pace that was set."""

    def __init__(self, slow_s: float) -> None:
        self.ends = False
        self.holds = False
        self.slow_s = slow_s
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGUSR1, self._hold)

    def _end(self, _number: int, _frame: object) -> None:
        self.ends = True

    def _hold(self, _number: int, _frame: object) -> None:
        self.holds = True

    def work(self, places: dict[int, int]) -> bool:
        """Takes as long as records are said to take. Whether their places must be committed at once."""
        time.sleep(self.slow_s)
        if self.holds:
            self.holds = False
            print_event("holding", offsets_text(places))
            os.read(0, 1)
            return True
        return self.slow_s > 0


class ConfluentMember:
    def __init__(self, orders: Signals, settings: dict[str, Any], topic: str) -> None:
        from confluent_kafka import Consumer

        self._orders = orders
        self._topic = topic
        self._places: dict[int, int] = {}
        self._consumer = Consumer(settings)

    def run(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        while not self._orders.ends:
            message = self._consumer.poll(POLL_S)
            if message is None or self._is_error(message.error()):
                self._commit()
            else:
                self._take(message)
        self._commit()
        self._consumer.close()
        print_event("left")

    def _take(self, message: Any) -> None:
        print_event("got", message.partition(), message.offset(), message.value().decode())
        self._places[message.partition()] = message.offset() + 1
        if self._orders.work(self._places) or message.offset() % COMMIT_EVERY == 0:
            self._commit()

    def _is_error(self, error: Any) -> bool:
        if error is None:
            return False
        is_fatal = error.name() == "_FATAL"
        self._orders.ends |= is_fatal
        print_event("fatal" if is_fatal else "error", error.name(), error.str())
        return True

    def _commit(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        places, self._places = self._places, {}
        if not places:
            return
        offsets = [TopicPartition(self._topic, *place) for place in places.items()]
        try:
            results = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as problem:
            print_event("refused", problem.args[0].name())
            return
        problems = [each.error for each in results if each.error is not None]
        print_event(*(["refused", problems[0].name()] if problems else ["committed", offsets_text(places)]))

    def _assigned(self, _consumer: Any, partitions: Iterable[Any]) -> None:
        print_event("assigned", *(each.partition for each in partitions))

    def _revoked(self, _consumer: Any, partitions: Iterable[Any]) -> None:
        self._commit()
        print_event("revoked", *(each.partition for each in partitions))

    def _lost(self, _consumer: Any, partitions: Iterable[Any]) -> None:
        self._places = {}
        print_event("lost", *(each.partition for each in partitions))


def run_confluent(orders: Signals, where: list[str], options: dict[str, str], kind: str) -> None:
    bootstrap, topic, group = where
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "fetch.wait.max.ms": 100,
        "log_level": 0,
    }
    if kind == "confluent-consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings["partition.assignment.strategy"] = CLASSIC_STRATEGIES[kind]
        settings["session.timeout.ms"] = options.get("session", "1500")
        settings["heartbeat.interval.ms"] = "300"
    settings["max.poll.interval.ms"] = options.get("poll", "6000")
    if "instance" in options:
        settings["group.instance.id"] = options["instance"]
    ConfluentMember(orders, settings, topic).run()


def run_kafka_python(orders: Signals, where: list[str], options: dict[str, str]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    bootstrap, topic, group = where

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            print_event("assigned", *(each.partition for each in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            print_event("revoked", *(each.partition for each in revoked))

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session", "1500")),
        heartbeat_interval_ms=300,
        max_poll_interval_ms=int(options.get("poll", "6000")),
        fetch_max_wait_ms=100,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
        max_poll_records=1 if orders.slow_s else COMMIT_EVERY,
    )
    consumer.subscribe([topic], listener=Listener())
    while not orders.ends:
        places: dict[int, int] = {}
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for record in records:
                print_event("got", record.partition, record.offset, record.value.decode())
                places[record.partition] = record.offset + 1
        if not places:
            continue
        orders.work(places)
        offsets = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in places.items()
        }
        try:
            consumer.commit(offsets)
        except KafkaError as problem:
            print_event("refused", type(problem).__name__)
        else:
            print_event("committed", offsets_text(places))
    consumer.close()
    print_event("left")


async def run_aiokafka(orders: Signals, where: list[str], options: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import IllegalStateError, KafkaError

    bootstrap, topic, group = where

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            print_event("assigned", *(each.partition for each in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            print_event("revoked", *(each.partition for each in revoked))

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(options.get("session", "1500")),
        heartbeat_interval_ms=300,
        max_poll_interval_ms=int(options.get("poll", "6000")),
        fetch_max_wait_ms=100,
        retry_backoff_ms=50,
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not orders.ends:
        places: dict[int, int] = {}
        batches = await consumer.getmany(
            timeout_ms=int(POLL_S * 1000), max_records=1 if orders.slow_s else COMMIT_EVERY
        )
        for records in batches.values():
            for record in records:
                print_event("got", record.partition, record.offset, record.value.decode())
                places[record.partition] = record.offset + 1
        if not places:
            continue
        if orders.slow_s:
            await asyncio.to_thread(orders.work, places)
        else:
            orders.work(places)
        try:
            await consumer.commit({TopicPartition(topic, each): offset for each, offset in places.items()})
        except (KafkaError, IllegalStateError) as problem:
            print_event("refused", type(problem).__name__)
        else:
            print_event("committed", offsets_text(places))
    await consumer.stop()
    print_event("left")


def main() -> None:
    kind, *where = sys.argv[1:5]
    options = dict(option.split("=", 1) for option in sys.argv[5:])
    orders = Signals(float(options.get("slow", "0")))
    if kind == "kafka-python":
        run_kafka_python(orders, where, options)
    elif kind == "aiokafka":
        asyncio.run(run_aiokafka(orders, where, options))
    else:
        run_confluent(orders, where, options, kind)


if __name__ == "__main__":
    main()
