"""What the planner of a stream answers when the world changes between two questions. Without a Spark."""

import pytest

from penstock.spark.options.options import stream_read_settings
from penstock.spark.source.discovery import DataLost
from penstock.spark.source.offsets import StreamPosition
from penstock.spark.source.planner import StreamPlanner
from penstock.spark.source.source import OffsetRangePartition
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.spark.topics import create, fill, numbered


def planner(running: Broker, topic: str, **options: str) -> StreamPlanner:
    needed = {"bootstrap": running.bootstrap, "subscribePattern": f"{topic}.*"}
    options = {"partition.metadata.cache.ttl.ms": "0", "mirrorOffsets": "false", **options}
    return StreamPlanner(stream_read_settings(needed | options))


def ranges(planned: StreamPlanner, start: StreamPosition, end: StreamPosition) -> list[tuple[str, int, int]]:
    tasks = planned.tasks(start, end)
    return [
        (str(task.offset_range.partition), task.offset_range.start, task.offset_range.end)
        for task in tasks
        if isinstance(task, OffsetRangePartition)
    ]


def test_what_is_written_while_a_stream_starts_at_the_end_is_read(running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(5))
    partition = TopicPartition(topic, 0)
    one = planner(running, topic)
    assert one.initial_position().offsets == {partition: 5}
    fill(running, topic, numbered(2))
    assert one.initial_position().offsets == {partition: 5}
    first = one.next_end(one.initial_position(), takes_all=True)
    assert ranges(one, one.initial_position(), first) == []
    second = one.next_end(first, takes_all=True)
    assert ranges(one, first, second) == [(f"{topic}-0", 5, 7)]


def test_a_first_batch_that_is_run_again_leaves_nothing_out(running: Broker, topic: str) -> None:
    create(running, topic)
    before = planner(running, topic)
    written_down = before.next_end(before.initial_position(), takes_all=True)
    # It crashes. Meanwhile records come, and a topic.
    fill(running, topic, numbered(4))
    create(running, f"{topic}-new")
    fill(running, f"{topic}-new", numbered(2))
    after = planner(running, topic)
    assert ranges(after, after.initial_position(), written_down) == []
    end = after.next_end(written_down, takes_all=True)
    assert ranges(after, written_down, end) == [(f"{topic}-0", 0, 4), (f"{topic}-new-0", 0, 2)]


def test_a_stream_from_the_beginning_has_no_empty_batch(running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(3))
    one = planner(running, topic, startingOffsets="earliest")
    end = one.next_end(one.initial_position(), takes_all=True)
    assert ranges(one, one.initial_position(), end) == [(f"{topic}-0", 0, 3)]


def test_a_start_beyond_the_end_is_lost_data(running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(3))
    one = planner(running, topic, startingOffsets=f'{{"{topic}":{{"0":9}}}}')
    with pytest.raises(DataLost, match="read up to offset 9 and its log was truncated to offset 3"):
        one.next_end(one.initial_position(), takes_all=True)


def test_a_minimum_is_waited_for_by_all_but_the_first_batch(running: Broker, topic: str) -> None:
    create(running, topic)
    partition = TopicPartition(topic, 0)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    one = planner(running, topic, **options)
    start = one.initial_position()
    fill(running, topic, numbered(2))
    first = one.next_end(start, takes_all=False)
    assert first.offsets == {partition: 2}
    fill(running, topic, numbered(4))
    assert one.next_end(first, takes_all=False) == first
    fill(running, topic, numbered(1))
    assert one.next_end(first, takes_all=False).offsets == {partition: 7}


def test_a_minimum_is_not_waited_for_longer_than_the_delay(running: Broker, topic: str) -> None:
    create(running, topic)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "0"}
    one = planner(running, topic, **options)
    first = one.next_end(one.initial_position(), takes_all=False)
    fill(running, topic, numbered(2))
    assert one.next_end(first, takes_all=False).offsets == {TopicPartition(topic, 0): 2}


def test_a_run_that_takes_what_is_there_does_not_wait_for_a_minimum(running: Broker, topic: str) -> None:
    create(running, topic)
    fill(running, topic, numbered(2))
    partition = TopicPartition(topic, 0)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}
    one = planner(running, topic, **options)
    one.bound_to_available()
    fill(running, topic, numbered(3))
    start = one.next_end(StreamPosition({partition: 1}), takes_all=False)
    assert one.next_end(StreamPosition({partition: 1}), takes_all=False) == start
    assert start.offsets == {partition: 2}
