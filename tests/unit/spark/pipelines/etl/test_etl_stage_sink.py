"""A task that is tried again does not write its rows again: against a real broker, without Spark."""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.spark.pipelines.etl import stage_sink
from penstock.spark.pipelines.etl.stage_sink import BATCH_HEADER, DeadLetterTarget, StageWrite, StageWriter
from penstock.spark.topic_table import HEADERS_TYPE
from penstock.testing import Broker, broker
from penstock.types import TopicPartition
from penstock.wire.cluster_client import LATEST
from tests.spark.etl_runs import Found, count_of, records_of
from tests.spark.topics import client_of, create

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS_TYPE),
    ]
)
MARK = "shop-transform/7/0a1b2c3d/"
TASK = 3


class TaskLost(Exception):
    pass


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with broker() as one:
        yield one


class Stage:
    """One write of batch 7 to a topic of two partitions."""

    def __init__(self, running: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._running = running
        self._monkeypatch = monkeypatch
        self.topic = topic
        self.dead_places: set[int] = set()
        create(running, topic, 2)
        create(running, f"{topic}.dead")

    def ended(self) -> dict[str, int]:
        wanted = dict.fromkeys((TopicPartition(self.topic, number) for number in range(2)), LATEST)
        with client_of(self._running) as client:
            found = client.offsets(wanted, read_committed=False)
        return {str(each.partition): int(offset) for each, (offset, _) in found.items()}

    def attempt(
        self,
        number: int,
        values: list[bytes],
        *,
        task: int = TASK,
        dies_after: int | None = None,
        mark: str = MARK,
        ends: dict[str, int] | None = None,
    ) -> None:
        """Each value is a piece of its own, and sent by itself. Dies before it has given the next."""
        begun = StageWrite(self.topic, mark, ends or {})
        access = {"kafka.bootstrap.servers": self._running.bootstrap}
        options = stage_sink.stage_options(begun, access, DeadLetterTarget(f"{self.topic}.dead", "transform"))
        # So that a task has sent something before it has seen all of its rows.
        writer = StageWriter(options, SCHEMA, bytes_at_once=1)
        context = SimpleNamespace(attemptNumber=lambda: number, partitionId=lambda: task)
        self._monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
        writer.write(self._rows(values, begun.task_mark(task), dies_after))

    def _rows(self, values: list[bytes], mark: bytes, dies_after: int | None) -> Iterator[pa.RecordBatch]:
        for place, value in enumerate(values):
            if place == dies_after:
                raise TaskLost
            is_dead = value.startswith(b"dead") or place in self.dead_places
            headers = [{"key": "penstock-error" if is_dead else BATCH_HEADER, "value": mark}]
            topic = f"{self.topic}.dead" if is_dead else self.topic
            key = None if value.startswith(b"none") else value
            row = {"topic": topic, "key": key, "value": value, "headers": headers}
            yield pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(SCHEMA, timezone="UTC"))

    def records(self) -> list[Found]:
        return records_of(self._running.bootstrap, self.topic)

    def values(self) -> Counter[bytes | None]:
        return Counter(each.value for each in self.records())

    def letters(self) -> list[Found]:
        return records_of(self._running.bootstrap, f"{self.topic}.dead")

    def dead(self) -> int:
        return count_of(self._running.bootstrap, f"{self.topic}.dead")


def numbered(count: int) -> list[bytes]:
    return [b"%s %d" % (b"none" if number % 3 else b"row", number) for number in range(count)]


def test_what_a_lost_task_has_written_is_not_written_again(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, rows = Stage(running, "retry", monkeypatch), numbered(20)
    with pytest.raises(TaskLost):
        stage.attempt(0, rows, dies_after=12)
    assert stage.values() == Counter(rows[:12])
    with pytest.raises(TaskLost):
        stage.attempt(1, rows, dies_after=15)
    stage.attempt(2, rows)
    assert stage.values() == Counter(rows)


def test_equal_rows_are_all_written_and_their_order_does_not_matter(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a shuffle, rows come in another order."""
    stage, rows = Stage(running, "equal", monkeypatch), [b"a", b"b", b"a", b"none", b"a", b"none"]
    with pytest.raises(TaskLost):
        stage.attempt(0, rows, dies_after=4)
    stage.attempt(1, rows[::-1])
    assert stage.values() == Counter(rows)


def test_rows_of_other_tasks_and_batches_are_not_taken_for_own_ones(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(running, "others", monkeypatch)
    stage.attempt(0, [b"a", b"b"], mark="shop-transform/6/99999999/")
    ends = stage.ended()
    stage.attempt(0, [b"a", b"c"], task=33, ends=ends)
    stage.attempt(0, [b"a", b"d"], mark="shop-transform/7/ffffffff/", ends=ends)
    stage.attempt(1, [b"a", b"b", b"c", b"d"], ends=ends)
    assert stage.values() == Counter({b"a": 4, b"b": 2, b"c": 2, b"d": 2})


def test_only_what_is_behind_the_beginning_of_the_batch_is_read(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(running, "behind", monkeypatch)
    stage.attempt(0, [b"a", b"b"])
    stage.attempt(1, [b"a", b"b"], ends=stage.ended())
    assert stage.values() == Counter([b"a", b"b", b"a", b"b"])


def test_dead_letters_are_written_at_least_once(running: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, rows = Stage(running, "letters", monkeypatch), [b"a", b"dead 1", b"b"]
    with pytest.raises(TaskLost):
        stage.attempt(0, rows, dies_after=2)
    stage.attempt(1, rows)
    assert stage.values() == Counter([b"a", b"b"])
    assert stage.dead() == 2


def test_a_dead_letter_that_equals_a_row_is_not_taken_for_it(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(running, "twins", monkeypatch)
    stage.attempt(0, [b"a"])
    stage.dead_places = {0}
    stage.attempt(1, [b"a", b"a"])
    assert stage.values() == Counter([b"a"])
    assert stage.dead() == 1


def test_rows_that_a_function_made_differently_are_not_lost(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(running, "random", monkeypatch)
    with pytest.raises(TaskLost):
        stage.attempt(0, [b"a 1", b"b 1"], dies_after=1)
    stage.attempt(1, [b"a 2", b"b 2"])
    assert stage.values() == Counter([b"a 1", b"a 2", b"b 2"])


def test_a_row_that_is_too_large_for_the_topic_becomes_a_dead_letter(
    running: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its batch would fail, and be run again, for ever."""
    stage = Stage(running, "large", monkeypatch)
    largest, too_large = b"none" + bytes(1_010_000), b"none" + bytes(1_100_000)
    stage.attempt(0, [b"a", largest, too_large, b"b"])
    assert stage.values() == Counter({b"a": 1, largest: 1, b"b": 1})
    (letter,) = stage.letters()
    assert letter.value == too_large[:65_536]
    assert letter.headers["penstock-error"].startswith(f"too large for topic {stage.topic}")
    assert letter.headers["penstock-stage"] == "transform"
    assert letter.headers["penstock-cut"] == "key 0 bytes, value 1100004 bytes"
    large_letter = b"dead" + bytes(1_100_000)
    stage.attempt(0, [large_letter])
    letter = stage.letters()[1]
    assert (letter.key, letter.value) == (None, large_letter[:65_536])
    assert letter.headers["penstock-error"].startswith(MARK), "it was one before"
