"""Reading from the device for fetches: how many at once, and that each gives its memory back."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchReader, FetchResult
from penstock.broker.data.fetch_sessions import FetchPartitionKey, FetchTarget
from penstock.broker.storage.cold_reads import ColdReads
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.limits import BATCH_BYTES_MAX
from penstock.log.reading.cold_reading import BatchesRead, ColdRead, ColdResult, LoadedIndexes
from penstock.protocol.compiler import encode
from penstock.protocol.messages.fetch import FETCH, FetchPartition, PartitionData, ReadyPartitionData
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.types import NO_TOPIC_ID, Offset, TopicPartition

CONTEXT = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything())
KEY = FetchPartitionKey("t", NO_TOPIC_ID, 0)
DATA = b"a batch"


class ColdPartition:
    """Everything of it is on the device."""

    name = TopicPartition("t", 0)
    high_watermark = last_stable_offset = 10
    offline_error: ApiError | None = None
    leader_epoch = 0
    following = None
    is_truncating = False

    def __init__(self) -> None:
        self.log = self
        self.log_start_offset = 0

    def check_epoch(self, epoch: int) -> None:
        pass

    def is_current(self, view: object) -> bool:
        return True

    def keep_indexes(self, loaded: Sequence[LoadedIndexes]) -> None:
        pass

    def read(self, offset: Offset, bytes_max: int, *, at_least_one: bool, end: Offset) -> ColdRead:
        return ColdRead(cast(Any, None), offset, Offset(10), bytes_max, at_least_one)


class Device:
    """Answers a read when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[asyncio.Future[list[ColdResult | Exception]]] = []

    async def run(self, job: object) -> list[ColdResult | Exception]:
        self.under_way.append(asyncio.get_running_loop().create_future())
        return await self.under_way[-1]

    def answers(self, problem: Exception | None = None) -> None:
        result = ColdResult(BatchesRead(DATA, Offset(10), 7), ())
        self.under_way.pop(0).set_result([problem or result])


class Reading:
    def __init__(self) -> None:
        self.device = Device()
        self.damaged: list[Exception] = []
        self.partition = ColdPartition()
        cold_reads = ColdReads(
            cast(Any, self.device), lambda partition, problem: self.damaged.append(problem)
        )
        self.reads = FetchReader(cast(Any, self), cold_reads, bytes_total_max=3 * BATCH_BYTES_MAX)

    def find(self, topic: str, partition: int) -> ColdPartition:
        return self.partition

    def begin(self, bytes_max: int) -> "asyncio.Task[FetchResult]":
        wanted = [
            FetchTarget(KEY, FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=bytes_max))
        ]
        return asyncio.create_task(self.reads.gather_cold(wanted, FetchParams(bytes_max, 0, -1), CONTEXT))


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.mark.parametrize("bytes_max", [0, 1, BATCH_BYTES_MAX])
async def test_no_more_is_read_at_once_than_fits_however_little_each_asks_for(
    reading: Reading, bytes_max: int
) -> None:
    fetches = [reading.begin(bytes_max) for _ in range(8)]
    for _ in range(8):
        await turn()
        assert len(reading.device.under_way) <= 3
        reading.device.answers()
    results = [(await fetch).answers[0] for fetch in fetches]
    assert [data.records for data in results] == [DATA] * 8


async def test_a_fetch_that_was_given_up_leaves_its_place_to_the_next(reading: Reading) -> None:
    fetches = [reading.begin(3 * BATCH_BYTES_MAX) for _ in range(3)]
    await turn()
    fetches[1].cancel()
    await turn()
    reading.device.answers()
    await turn()
    reading.device.answers()
    assert (await fetches[0]).size == (await fetches[2]).size == len(DATA)
    assert fetches[1].cancelled()


async def test_damage_on_the_device_is_reported_and_answered_and_costs_no_memory(reading: Reading) -> None:
    for _ in range(5):
        fetch = reading.begin(2 * BATCH_BYTES_MAX)
        await turn()
        reading.device.answers(CorruptData("a checksum"))
        data = (await fetch).answers[0]
        assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(reading.damaged) == 5


@pytest.mark.parametrize("version", range(FETCH.versions[0], FETCH.versions[1] + 1))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_what_is_said_at_the_end_of_a_partition_is_made_once_and_said_right(
    reading: Reading, version: int, isolation_level: int
) -> None:
    """Its bytes are those of the encoder, in every version that sends them."""
    reading.partition.log_start_offset = 4
    context = CONTEXT.for_request(version, "tests", frozenset())
    wanted = [FetchTarget(KEY, FetchPartition(partition=0, fetch_offset=10, partition_max_bytes=100))]
    fetch = FetchParams(100, isolation_level, -1)
    first, again = (reading.reads.gather(wanted, fetch, context).answers[0] for _ in range(2))
    expected = PartitionData(
        0, 0, 10, 10, 4, aborted_transactions=[] if isolation_level else None, records=b""
    )
    is_flexible = FETCH.is_flexible(version)
    assert (again is first) == is_flexible
    if isinstance(first, ReadyPartitionData):
        assert [first.encoded] == encode(PartitionData, version, is_flexible, expected)
    assert encode(PartitionData, version, is_flexible, first) == encode(
        PartitionData, version, is_flexible, expected
    )


@pytest.mark.parametrize(
    ("change", "offset", "isolation_level"),
    [("log_start_offset", 10, 0), ("high_watermark", 11, 0), ("", 10, 1)],
)
def test_what_was_said_is_not_said_when_it_is_no_longer_so(
    reading: Reading, change: str, offset: int, isolation_level: int
) -> None:
    context = CONTEXT.for_request(16, "tests", frozenset())
    target = FetchTarget(KEY, FetchPartition(partition=0, fetch_offset=10, partition_max_bytes=100))

    def told(isolation_level: int) -> PartitionData:
        return reading.reads.gather([target], FetchParams(100, isolation_level, -1), context).answers[0]

    told(0)
    if change:
        setattr(reading.partition, change, getattr(reading.partition, change) + 1)
    if offset != 10:
        target.update(FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=100))
    data = told(isolation_level)
    assert (data.high_watermark, data.log_start_offset) == (
        reading.partition.high_watermark,
        reading.partition.log_start_offset,
    )
    assert (data.aborted_transactions is None) == (isolation_level == 0)


@pytest.mark.parametrize("change", ["high_watermark", "offline", "fetch_offset"])
def test_a_partition_that_was_read_to_its_end_is_read_again_when_that_changes(
    reading: Reading, change: str
) -> None:
    context = CONTEXT.for_request(16, "tests", frozenset())
    target = FetchTarget(KEY, FetchPartition(partition=0, fetch_offset=10, partition_max_bytes=100))
    fetch = FetchParams(100, 0, -1)
    assert not reading.reads.gather([target], fetch, context).is_cold
    if change == "high_watermark":
        reading.partition.high_watermark = 11
    elif change == "offline":
        reading.partition.offline_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    else:
        target.update(FetchPartition(partition=0, fetch_offset=9, partition_max_bytes=100))
    assert reading.reads.gather([target], fetch, context).is_cold
