"""Members of groups as processes that can be killed and stopped, and what is watched while they work.

    Member    one process of group_member.py, and what it has said
    Source    a producer that keeps writing numbered records to every partition
    Places    the group's committed offsets, looked at again and again: they never go back

Rule 1: a process that was started here is ended here, by its pid, however the test ends.
Rule 2: nothing waits without a deadline.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from tests.integration.broker_process import eventually
from tests.integration.group_client import committed
from tests.integration.messages import QUIET
from tests.integration.raw_client import Closed, connected

PROGRAM = Path(__file__).with_name("group_member.py")
WAIT_S_MAX = 40.0
"""Generous: on a busy machine everything takes its time. What is asserted does not depend on it."""

CONSUMER_GROUP_HEARTBEAT = 68
TICK_S = 0.02

SHORT_GROUP_TIMEOUTS = {
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 1_500,
    "group.consumer.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 4,
}
"""Settings of a broker whose groups lose patience soon."""

RecordPosition = tuple[int, int]
"""A partition and an offset in it."""


class Member:
    """A process that reads as a member of a group."""

    def __init__(self, kind: str, where: tuple[str, str, str], path: Path, **options: object) -> None:
        command = [sys.executable, str(PROGRAM), kind, *where]
        command += [f"{key}={value}" for key, value in options.items()]
        self._path = path
        with path.open("wb") as output, path.with_suffix(".stderr").open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=errors)

    def output_lines(self, *first_words: str) -> list[list[str]]:
        """The lines that begin so, as words. A line that is being written is not there yet."""
        whole = self._path.read_bytes().rpartition(b"\n")[0].decode()
        lines = [line.split() for line in whole.splitlines()]
        return [line for line in lines if not first_words or line[0] in first_words]

    def delivered(self) -> list[RecordPosition]:
        return [(int(partition), int(offset)) for _, partition, offset, _ in self.output_lines("got")]

    def uncommitted_offsets(self) -> dict[int, int]:
        """The places it would commit if it were let go."""
        return places_in(self.output_lines("holding")[-1][1:])

    def has(self, position: RecordPosition) -> bool:
        return position in self.delivered()

    def rebalances(self) -> list[list[str]]:
        return self.output_lines("assigned", "revoked", "lost")

    def owns(self) -> set[int]:
        """The partitions it has by now, as it was told."""
        owned: set[int] = set()
        for word, *partitions in self.rebalances():
            if word == "assigned":
                owned |= {int(each) for each in partitions}
            else:
                owned -= {int(each) for each in partitions}
        return owned

    def outcome_of_paused_commit(self) -> str | None:
        """What came of the first commit after it was let go: `committed` or `refused`."""
        words = [line[0] for line in self.output_lines("holding", "committed", "refused")]
        after = words[words.index("holding") + 1 :]
        return after[0] if after else None

    def pause_before_commit(self) -> None:
        """Returns when it has a record in hand that it has not committed."""
        self.process.send_signal(signal.SIGUSR1)
        eventually(lambda: self.output_lines("holding"), seconds_max=WAIT_S_MAX)

    def continue_commit(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def crash(self) -> None:
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """As a program that ends in order."""
        self.process.terminate()
        assert self.process.wait(WAIT_S_MAX) == 0, self.stderr_text()

    def stderr_text(self) -> str:
        return self._path.with_suffix(".stderr").read_text()


def places_in(words: Iterable[str]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, _, offset in (word.partition(":") for word in words)}


class GroupProcesses:
    """The members of one group, also those that are gone."""

    def __init__(self, bootstrap: str, topic: str, group: str, folder: Path) -> None:
        self.where = (bootstrap, topic, group)
        self.members: list[Member] = []
        self._folder = folder

    def add(self, kind: str, **options: object) -> Member:
        path = self._folder / f"{self.where[2]}-{len(self.members)}"
        self.members.append(Member(kind, self.where, path, **options))
        return self.members[-1]

    def delivered(self) -> set[RecordPosition]:
        return {position for member in self.members for position in member.delivered()}

    def wait_until(self, condition: Callable[[], object]) -> None:
        """As soon as it is so; a member that ended by itself ends the wait."""

        def look() -> bool:
            for member in self.members:
                assert member.process.poll() in (None, 0, -signal.SIGKILL), member.stderr_text()
            return bool(condition())

        eventually(look, seconds_max=WAIT_S_MAX, every=TICK_S)

    def end(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()
            assert member.process.stdin is not None
            member.process.stdin.close()


@contextmanager
def group_processes(bootstrap: str, topic: str, group: str, folder: Path) -> Iterator[GroupProcesses]:
    them = GroupProcesses(bootstrap, topic, group, folder)
    try:
        yield them
    finally:
        them.end()


def delivers_from_all_partitions(member: Member, partitions: int) -> Callable[[], bool]:
    """Whether the member has been given something of every partition since this was asked for."""
    before = len(member.delivered())
    return lambda: len({partition for partition, _ in member.delivered()[before:]}) == partitions


class RecordSource:
    """Writes 0, 1, 2 ... to every partition until it is told to stop. Every record gets there once."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.partitions = partitions
        self._topic = topic
        self._count = 0
        self._problems: list[KafkaError] = []
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._stopping.wait(TICK_S):
            for partition in range(self.partitions):
                value = str(self._count).encode()
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            self._count += 1

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._problems.append(error)

    def finish(self) -> set[RecordPosition]:
        """Stop, and say what must have been read: every offset of every partition."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(WAIT_S_MAX) == 0, "not everything was acknowledged in time"
        assert not self._problems
        return {(partition, offset) for partition in range(self.partitions) for offset in range(self._count)}

    @property
    def ends(self) -> dict[int, int]:
        return dict.fromkeys(range(self.partitions), self._count)


class CommittedOffsetsWatcher:
    """Looks at what a group has committed, all the time, also across restarts of the broker."""

    def __init__(self, bootstrap: str, topic: str, group: str, partitions: int) -> None:
        self._query = (group, topic, *range(partitions))
        self._bootstrap = bootstrap
        self.seen: list[dict[int, int]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if error is None:
            assert self.regressions() == []

    def _look(self) -> None:
        while not self._stopping.is_set():
            try:
                with connected(self._bootstrap) as client:
                    while not self._stopping.wait(TICK_S):
                        group, topic, *partitions = self._query
                        found = committed(client, group, topic, *partitions)
                        if isinstance(found, dict):
                            self.seen.append(found)
            except (OSError, Closed):
                time.sleep(TICK_S)  # the broker is away

    @property
    def now(self) -> dict[int, int]:
        return self.seen[-1] if self.seen else {}

    def regressions(self) -> list[tuple[dict[int, int], dict[int, int]]]:
        """Two looks, one after the other, the second of which saw an offset that was smaller."""
        pairs = zip(self.seen, self.seen[1:], strict=False)
        return [
            (before, after)
            for before, after in pairs
            if any(after[partition] < offset for partition, offset in before.items())
        ]


def assert_nothing_was_missed(
    them: GroupProcesses, source: RecordSource, places: CommittedOffsetsWatcher
) -> None:
    """Every record came to some member, and the group has committed the end of every partition."""
    everything = source.finish()
    them.wait_until(lambda: them.delivered() >= everything)
    them.wait_until(lambda: places.now == source.ends)
    assert them.delivered() == everything, "a record that nobody wrote"
    for member in them.members:
        assert all(offset == number for _, _, offset, number in member.output_lines("got"))


def write(bootstrap: str, topic: str, *positions: RecordPosition) -> None:
    """Records at these offsets, which must be the next ones of their partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for partition, number in positions:
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(WAIT_S_MAX) == 0, "not everything was acknowledged in time"


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(topic, partitions)]).values():
        future.result(WAIT_S_MAX)


def offered(kind: str, bootstrap: str) -> str:
    """The kind of member, unless it needs a group protocol that the broker does not offer."""
    if kind == "confluent-consumer" and not _serves_new_protocol(bootstrap):
        pytest.skip("this broker does not offer ConsumerGroupHeartbeat")
    return kind


def _serves_new_protocol(bootstrap: str) -> bool:
    with connected(bootstrap) as client:
        request = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
        reply = client.ask(API_VERSIONS, 3, request)
    return any(api.api_key == CONSUMER_GROUP_HEARTBEAT for api in reply.api_keys)
