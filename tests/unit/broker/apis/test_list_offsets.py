"""ListOffsets: special timestamps, lookups by time, and what each refusal looks like."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.apis.list_offsets import ListOffsets
from penstock.broker.data.timestamp_lookups import TimeLookups
from penstock.broker.storage.cold_reads import ColdReads
from penstock.errors import CorruptData, ErrorCode
from penstock.host.clock import SystemClock
from penstock.host.tasks import Tasks
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.replication.partition import Partition
from penstock.security.access import AllowEverything, Authorizer
from penstock.types import Offset
from tests.unit.broker.config_support import NOW_MS, BrokerHarness, append, deny_everything, running
from tests.unit.log.log_support import NOW_MS as WRITTEN_AT_MS
from tests.unit.replication.test_partition_transactions import end, write

LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6
NOTHING = (ErrorCode.NONE, -1, -1, -1)

Answer = tuple[int, int, int, int]
"""Error code, offset, timestamp and leader epoch."""


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def listed(
    inside: BrokerHarness,
    request: ListOffsetsRequest,
    version: int = 11,
    authorizer: Authorizer | None = None,
) -> list[Answer]:
    def failed(partition: Partition, problem: Exception) -> None:
        if isinstance(problem, CorruptData):
            partition.go_offline(f"reported: {problem}")

    lookups = TimeLookups(ColdReads(inside.pool, failed), Tasks(_fail), SystemClock())
    handler = ListOffsets(inside.partitions, lookups)
    authorizer = authorizer or AllowEverything()
    reply = await inside.ask(LIST_OFFSETS, handler, request, version=version, authorizer=authorizer)
    return [
        (entry.error_code, entry.offset, entry.timestamp, entry.leader_epoch)
        for topic in reply.topics
        for entry in topic.partitions
    ]


def asking(
    timestamp: int, *, topic: str = "t", partition: int = 0, epoch: int = -1, isolation: int = 0
) -> ListOffsetsRequest:
    asked = ListOffsetsPartition(partition, current_leader_epoch=epoch, timestamp=timestamp)
    return ListOffsetsRequest(isolation_level=isolation, topics=[ListOffsetsTopic(topic, [asked])])


async def test_an_empty_partition_begins_and_ends_at_zero_in_the_current_epoch(inside: BrokerHarness) -> None:
    await inside.topic("t")

    for timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL):
        assert await listed(inside, asking(timestamp)) == [(0, 0, -1, 0)]
    for timestamp in (NEWEST, TIERED, PENDING, 0, NOW_MS):
        assert await listed(inside, asking(timestamp)) == [NOTHING]


async def test_latest_and_earliest_are_the_high_watermark_and_the_start(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30)
    partition.delete_before(Offset(1))

    assert await listed(inside, asking(LATEST)) == [(0, 3, -1, 0)]
    assert await listed(inside, asking(LATEST, isolation=1)) == [(0, 3, -1, 0)]
    assert await listed(inside, asking(EARLIEST)) == [(0, 1, -1, 0)]
    assert await listed(inside, asking(EARLIEST_LOCAL)) == [(0, 1, -1, 0)]


async def test_latest_shows_nothing_that_is_not_flushed(tmp_path: Path) -> None:
    async with running(tmp_path, static={}) as inside:
        [partition] = await inside.topic("t")
        append(partition, 10, 20)
        assert await listed(inside, asking(LATEST)) == [(0, 0, -1, 0)]
        assert await listed(inside, asking(15)) == [NOTHING]
        assert await listed(inside, asking(NEWEST)) == [NOTHING]

        flush = partition.log.begin_flush()
        partition.flushed(flush)
        assert await listed(inside, asking(LATEST)) == [(0, 2, -1, 0)]
        assert await listed(inside, asking(15)) == [(0, 1, 20, 0)]


@pytest.mark.parametrize(
    ("timestamp", "offset", "found_ms"), [(0, 0, 10), (10, 0, 10), (11, 1, 40), (41, 3, 50), (50, 3, 50)]
)
async def test_a_time_finds_the_first_record_in_offset_order_that_is_as_new(
    inside: BrokerHarness, timestamp: int, offset: int, found_ms: int
) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 40, 20)
    append(partition, 50)

    assert await listed(inside, asking(timestamp)) == [(0, offset, found_ms, 0)]
    assert await listed(inside, asking(51)) == [NOTHING]


async def test_the_newest_record_is_the_earliest_of_those_with_the_largest_time(
    inside: BrokerHarness,
) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 50, 20)
    append(partition, 50)

    assert await listed(inside, asking(NEWEST)) == [(0, 1, 50, 0)]


async def test_each_offset_comes_with_the_epoch_it_was_written_in(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    partition = await inside.begin_new_epoch(partition)
    assert await listed(inside, asking(LATEST)) == [(0, 2, -1, 1)]
    append(partition, 30)

    assert await listed(inside, asking(EARLIEST)) == [(0, 0, -1, 0)]
    assert await listed(inside, asking(20)) == [(0, 1, 20, 0)]
    assert await listed(inside, asking(25)) == [(0, 2, 30, 1)]
    partition.delete_before(Offset(3))
    assert await listed(inside, asking(EARLIEST)) == [(0, 3, -1, 1)]


@pytest.mark.parametrize(
    ("timestamp", "first"), [(NEWEST, 7), (EARLIEST_LOCAL, 8), (TIERED, 9), (PENDING, 11)]
)
async def test_a_special_timestamp_is_refused_before_its_version(
    inside: BrokerHarness, timestamp: int, first: int
) -> None:
    await inside.topic("t")

    refused = [(ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)]
    assert await listed(inside, asking(timestamp), version=first - 1) == refused
    assert await listed(inside, asking(timestamp), version=first) != refused


@pytest.mark.parametrize("timestamp", [-7, -100, -(2**63)])
async def test_a_negative_timestamp_without_a_meaning_is_refused(
    inside: BrokerHarness, timestamp: int
) -> None:
    await inside.topic("t")

    assert await listed(inside, asking(timestamp)) == [(ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)]


@pytest.mark.parametrize(("topic", "partition"), [("absent", 0), ("bad name", 0), ("t", 9), ("t", -1)])
async def test_what_does_not_exist_is_unknown(inside: BrokerHarness, topic: str, partition: int) -> None:
    await inside.topic("t")

    [answer] = await listed(inside, asking(LATEST, topic=topic, partition=partition))
    assert answer == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NONE),
        (1, ErrorCode.NONE),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_a_client_with_another_leader_epoch_is_fenced(
    inside: BrokerHarness, epoch: int, code: ErrorCode
) -> None:
    [partition] = await inside.topic("t")
    partition = await inside.begin_new_epoch(partition)

    [answer] = await listed(inside, asking(LATEST, epoch=epoch))
    assert answer[0] == code


@pytest.mark.parametrize("isolation", [2, -1])
async def test_an_isolation_level_that_does_not_exist_fails_every_partition(
    inside: BrokerHarness, isolation: int
) -> None:
    await inside.topic("t")

    [answer] = await listed(inside, asking(LATEST, isolation=isolation))
    assert answer == (ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1, -1)


async def test_a_partition_named_twice_is_answered_once_with_an_error(inside: BrokerHarness) -> None:
    await inside.topic("t", partitions=2)
    twice = ListOffsetsPartition(0, timestamp=LATEST)
    once = ListOffsetsPartition(1, timestamp=LATEST)
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic("t", [twice, once]), ListOffsetsTopic("t", [twice])]
    )

    assert await listed(inside, request) == [(ErrorCode.INVALID_REQUEST, -1, -1, -1), (0, 0, -1, 0)]


async def test_no_topics_are_answered_with_none(inside: BrokerHarness) -> None:
    assert await listed(inside, ListOffsetsRequest()) == []


async def test_an_offline_partition_is_a_storage_error(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    partition.go_offline("the disk broke")

    for timestamp in (LATEST, EARLIEST, NEWEST, 5):
        assert await listed(inside, asking(timestamp)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)]


async def test_damage_found_by_a_lookup_is_reported_as_that_of_a_fetch_is(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    _flip_last_byte(partition)

    assert await listed(inside, asking(15)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)]
    assert partition.offline_error is not None
    assert "reported: " in str(partition.offline_error)
    assert "checksum" in str(partition.offline_error)
    assert await listed(inside, asking(LATEST)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)]


async def test_a_segment_removed_during_a_lookup_is_an_error_to_try_again(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10)
    inside.directory.disk.remove_folder(partition.log.folder)

    assert await listed(inside, asking(5)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)]
    assert partition.offline_error is None


async def test_a_denied_topic_looks_the_same_whether_or_not_it_exists(inside: BrokerHarness) -> None:
    await inside.topic("t")

    for topic in ("t", "absent"):
        for timestamp in (LATEST, -100, 5):
            asked = asking(timestamp, topic=topic)
            refused = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1)
            assert await listed(inside, asked, authorizer=deny_everything) == [refused]


def _fail(name: str, failure: BaseException) -> None:
    raise AssertionError(name) from failure


def _flip_last_byte(partition: Partition) -> None:
    segment = partition.log.active
    last = segment.file.read(segment.size_bytes - 1, 1)
    segment.file.write(segment.size_bytes - 1, bytes([last[0] ^ 1]))


async def test_committed_readers_are_told_of_nothing_in_an_open_transaction(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10)
    write(partition, 0)
    assert await listed(inside, asking(LATEST)) == [(0, 2, -1, 0)]
    assert await listed(inside, asking(LATEST, isolation=1)) == [(0, 1, -1, 0)]
    assert await listed(inside, asking(11)) == [(0, 1, WRITTEN_AT_MS, 0)]
    assert await listed(inside, asking(11, isolation=1)) == [NOTHING]
    assert await listed(inside, asking(NEWEST, isolation=1)) == [(0, 0, 10, 0)]
    end(partition)
    assert await listed(inside, asking(LATEST, isolation=1)) == [(0, 3, -1, 0)]
    assert await listed(inside, asking(11, isolation=1)) == [(0, 1, WRITTEN_AT_MS, 0)]
