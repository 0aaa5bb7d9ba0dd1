"""DeleteRecords: what is gone, what is refused, and that the reply waits for the disk."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from penstock.broker.apis.delete_records import DeleteRecords
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.limits import DELETE_RECORDS_PARTITIONS_AT_ONCE
from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.replication.partition import Partition
from penstock.security.access import AllowEverything, Authorizer
from penstock.types import Offset
from tests.unit.broker.config_support import BrokerHarness, append, deny_everything, running

HIGH_WATERMARK = -1

Answer = tuple[str, int, int, int]
"""Topic, partition, error code and low watermark."""


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


class Janitor:
    """Remembers the start each partition was given, or fails. Takes its time for those of one call."""

    def __init__(self, failure: Exception | None = None, seconds: float = 0) -> None:
        self.stored: list[tuple[str, Offset]] = []
        self._failure = failure
        self._seconds = seconds

    async def delete_before(self, starts: Mapping[Partition, Offset]) -> Mapping[Partition, ApiError]:
        await asyncio.sleep(self._seconds)
        refused: dict[Partition, ApiError] = {}
        for partition, offset in starts.items():
            try:
                partition.require_deletable(offset)
            except ApiError as refusal:
                refused[partition] = refusal
                continue
            if offset <= partition.log.log_start_offset:
                continue
            if isinstance(self._failure, ApiError):
                refused[partition] = self._failure
                continue
            if self._failure is not None:
                raise self._failure
            self.stored.append((str(partition.name), offset))
            partition.delete_before(offset)
        return refused


async def deleted(
    inside: BrokerHarness,
    *asked: tuple[str, int, int],
    janitor: Janitor | None = None,
    authorizer: Authorizer | None = None,
    timeout_ms: int = 30_000,
) -> list[Answer]:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(topic, [DeleteRecordsPartition(index, offset)])
            for topic, index, offset in asked
        ],
        timeout_ms=timeout_ms,
    )
    handler = DeleteRecords(inside.cluster, inside.partitions, janitor or Janitor())
    reply = await inside.ask(DELETE_RECORDS, handler, request, authorizer=authorizer or AllowEverything())
    return [
        (topic.name, entry.partition_index, entry.error_code, entry.low_watermark)
        for topic in reply.topics
        for entry in topic.partitions
    ]


async def test_the_log_starts_where_the_client_said_and_that_is_stored_first(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30)
    janitor = Janitor()

    assert await deleted(inside, ("t", 0, 2), janitor=janitor) == [("t", 0, 0, 2)]
    assert partition.log.log_start_offset == 2
    assert janitor.stored == [("t-0", 2)]
    with pytest.raises(ApiError, match="OFFSET_OUT_OF_RANGE"):
        partition.read(Offset(1), 1000, at_least_one=True)


async def test_minus_one_deletes_everything_that_can_be_read(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30)

    assert await deleted(inside, ("t", 0, HIGH_WATERMARK)) == [("t", 0, 0, 3)]
    assert await deleted(inside, ("t", 0, HIGH_WATERMARK)) == [("t", 0, 0, 3)]


async def test_an_empty_partition_has_nothing_to_delete_and_nowhere_to_store_that(
    inside: BrokerHarness,
) -> None:
    await inside.topic("t")
    janitor = Janitor(StorageFailed("the partition has no folder yet"))

    assert await deleted(inside, ("t", 0, HIGH_WATERMARK), janitor=janitor) == [("t", 0, 0, 0)]
    assert await deleted(inside, ("t", 0, 0), janitor=janitor) == [("t", 0, 0, 0)]


async def test_an_offset_below_the_start_answers_with_the_start(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30)
    await deleted(inside, ("t", 0, 2))

    assert await deleted(inside, ("t", 0, 1)) == [("t", 0, 0, 2)]


@pytest.mark.parametrize("offset", [4, -2, 2**63 - 1])
async def test_an_offset_that_no_record_can_have_is_out_of_range(inside: BrokerHarness, offset: int) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20, 30)

    assert await deleted(inside, ("t", 0, offset)) == [("t", 0, ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert partition.log.log_start_offset == 0


@pytest.mark.parametrize(("topic", "index"), [("absent", 0), ("bad name", 0), ("t", 9), ("t", -1)])
async def test_what_does_not_exist_is_unknown(inside: BrokerHarness, topic: str, index: int) -> None:
    await inside.topic("t")

    answer = (topic, index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await deleted(inside, (topic, index, 0)) == [answer]


@pytest.mark.parametrize(
    ("policy", "code"),
    [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE), ("delete", ErrorCode.NONE)],
)
async def test_a_topic_that_is_only_compacted_keeps_its_records(
    inside: BrokerHarness, policy: str, code: ErrorCode
) -> None:
    [partition] = await inside.topic("t", overrides={"cleanup.policy": policy})
    append(partition, 10, 20)

    [(_, _, answered, _)] = await deleted(inside, ("t", 0, 1))
    assert answered == code
    assert partition.log.log_start_offset == (1 if code == ErrorCode.NONE else 0)


async def test_internal_topics_are_not_the_clients_to_delete_from(inside: BrokerHarness) -> None:
    await inside.topic("__consumer_offsets", internal=True)

    answer = ("__consumer_offsets", 0, ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    assert await deleted(inside, ("__consumer_offsets", 0, HIGH_WATERMARK)) == [answer]


async def test_a_partition_named_twice_is_answered_once_by_its_last_offset(inside: BrokerHarness) -> None:
    one, other = await inside.topic("t", partitions=2)
    append(one, 10, 20, 30)
    append(other, 10)

    answers = await deleted(inside, ("t", 0, 1), ("t", 1, 1), ("t", 0, 2))
    assert answers == [("t", 0, 0, 2), ("t", 1, 0, 1)]


@pytest.mark.parametrize(
    "failure",
    [StorageFull("full"), StorageFailed("broken"), ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "broken")],
)
async def test_a_start_that_could_not_be_stored_is_a_storage_error(
    inside: BrokerHarness, failure: Exception
) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)

    answers = await deleted(inside, ("t", 0, 1), janitor=Janitor(failure))
    assert answers == [("t", 0, ErrorCode.KAFKA_STORAGE_ERROR, -1)]


async def test_what_is_not_begun_in_time_is_not_deleted(inside: BrokerHarness) -> None:
    partitions = await inside.topic("t", partitions=DELETE_RECORDS_PARTITIONS_AT_ONCE + 3)
    for partition in partitions:
        append(partition, 10, 20)
    partitions[-1].go_offline("the disk broke")
    janitor = Janitor(seconds=0.1)

    asked = [("t", index, 1) for index in range(len(partitions))]
    answers = await deleted(inside, *asked, ("absent", 0, 1), janitor=janitor, timeout_ms=50)
    begun, late = answers[:DELETE_RECORDS_PARTITIONS_AT_ONCE], answers[DELETE_RECORDS_PARTITIONS_AT_ONCE:]
    assert {code for _, _, code, _ in begun} == {ErrorCode.NONE}
    assert [code for _, _, code, _ in late] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ], "what can be told without the disk is told"
    assert len(janitor.stored) == DELETE_RECORDS_PARTITIONS_AT_ONCE
    assert [partition.log.log_start_offset for partition in partitions[-3:]] == [0, 0, 0]


async def test_one_partition_that_is_refused_keeps_no_other_one(inside: BrokerHarness) -> None:
    one, other = await inside.topic("t", partitions=2)
    append(one, 10)
    append(other, 10)

    answers = await deleted(inside, ("t", 0, 9), ("t", 1, 1))
    assert answers == [("t", 0, ErrorCode.OFFSET_OUT_OF_RANGE, -1), ("t", 1, 0, 1)]


async def test_an_offline_partition_is_a_storage_error_and_keeps_its_start(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    partition.go_offline("the disk broke")

    assert await deleted(inside, ("t", 0, 1)) == [("t", 0, ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    assert partition.log.log_start_offset == 0


async def test_a_partition_that_may_not_be_written_keeps_its_start(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    partition.stop_writes("a sync failed")

    assert await deleted(inside, ("t", 0, 1)) == [("t", 0, ErrorCode.KAFKA_STORAGE_ERROR, -1)]
    assert partition.log.log_start_offset == 0


async def test_who_may_not_delete_learns_nothing_and_deletes_nothing(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)

    for topic in ("t", "absent"):
        answer = (topic, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
        assert await deleted(inside, (topic, 0, 1), authorizer=deny_everything) == [answer]
    assert partition.log.log_start_offset == 0
