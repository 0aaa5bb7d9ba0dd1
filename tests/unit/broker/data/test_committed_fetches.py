"""Fetches of committed records: where they end, what they list, and when they are answered."""

import asyncio
from typing import Any, cast

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchReader
from penstock.broker.data.fetch_sessions import FetchPartitionKey, FetchTarget, ResolvedFetch
from penstock.broker.data.pending_fetch import FetchCapacity, PendingFetch
from penstock.broker.router import DeferredReply
from penstock.broker.storage.cold_reads import ColdReads
from penstock.config.topic import FlushPolicy
from penstock.protocol.compiler import encode
from penstock.protocol.messages.fetch import (
    FETCH,
    AbortedTransaction,
    FetchPartition,
    FetchResponse,
    PartitionData,
    ReadyPartitionData,
)
from penstock.replication.partition import Partition
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.types import NO_TOPIC_ID, Offset
from tests.unit.log.log_support import new_disk
from tests.unit.log.transactions.transaction_support import delivered
from tests.unit.replication.test_partition import append, partition_on, sync
from tests.unit.replication.test_partition_transactions import end, write

MIB = 1 << 20
KEY = FetchPartitionKey("orders", NO_TOPIC_ID, 0)
CONTEXT = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything()).for_request(17, None, frozenset())
UNCOMMITTED, COMMITTED = 0, 1


class ReadsAtOnce:
    """Worker threads, without the threads."""

    async def run(self, job: Any) -> Any:
        return job()


class Reading:
    """One partition and the fetches of one client."""

    def __init__(self, partition: Partition | None = None) -> None:
        self.partition = partition or partition_on(new_disk(), flush_policy=FlushPolicy.OS)
        cold_reads = ColdReads(cast(Any, ReadsAtOnce()), lambda partition, problem: None)
        self.reader = FetchReader(cast(Any, self), cold_reads)

    def find(self, topic: str, index: int) -> Partition:
        return self.partition

    def target(self, offset: int) -> FetchTarget:
        return FetchTarget(KEY, FetchPartition(0, fetch_offset=offset, partition_max_bytes=MIB))

    def fetch(
        self, offset: int, isolation: int = COMMITTED, target: FetchTarget | None = None
    ) -> PartitionData:
        params = FetchParams(MIB, isolation, -1)
        (answer,) = self.reader.gather([target or self.target(offset)], params, CONTEXT).answers
        return answer

    def begin(self, offset: int, bytes_min: int, isolation: int = COMMITTED) -> list[FetchResponse]:
        """A fetch that waits. Returns the list in which its reply will be."""
        params = FetchParams(MIB, isolation, -1, wait_ms=60_000, bytes_min=bytes_min)
        capacity = FetchCapacity(lambda: MIB, MIB)
        fetching = ResolvedFetch([self.target(offset)], None, is_incremental=False)
        pending = PendingFetch(self.reader, capacity, cast(Any, None), params, fetching, CONTEXT).begin()
        assert isinstance(pending, DeferredReply)
        replies: list[Any] = []
        pending.then(replies.append)
        return replies


@pytest.fixture
def reading() -> Reading:
    return Reading()


def offsets(answer: PartitionData) -> tuple[int, int]:
    return answer.high_watermark, answer.last_stable_offset


def listed(answer: PartitionData) -> list[tuple[int, int]]:
    assert answer.aborted_transactions is not None
    return [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]


def values(answer: PartitionData) -> list[bytes | None]:
    return [record.value for record in delivered(bytes(cast(bytes, answer.records)), listed(answer))]


def test_a_fetch_of_committed_records_ends_at_the_last_stable_offset(reading: Reading) -> None:
    append(reading.partition, b"a")
    write(reading.partition, 0, b"b")
    append(reading.partition, b"c")
    committed, everything = reading.fetch(0), reading.fetch(0, UNCOMMITTED)
    assert offsets(committed) == offsets(everything) == (3, 1)
    assert values(committed) == [b"a"]
    assert everything.aborted_transactions is None
    assert len(cast(bytes, everything.records)) > len(cast(bytes, committed.records))


def test_a_fetch_lists_the_aborted_transactions_that_it_overlaps(reading: Reading) -> None:
    write(reading.partition, 0, b"a", producer=8)
    write(reading.partition, 0, b"b")
    end(reading.partition, producer=8, commit=False)
    end(reading.partition, commit=False)
    append(reading.partition, b"c")
    answer = reading.fetch(0)
    assert answer.aborted_transactions == [AbortedTransaction(8, 0), AbortedTransaction(7, 1)]
    assert values(answer) == [b"c"]
    assert listed(reading.fetch(3)) == [(7, 1)]
    assert listed(reading.fetch(4)) == []


def test_a_reader_beyond_the_stable_offset_gets_nothing_and_no_error(reading: Reading) -> None:
    write(reading.partition, 0, b"a")
    append(reading.partition, b"b")
    answer = reading.fetch(1)
    assert (answer.error_code, answer.records, listed(answer)) == (0, b"", [])
    assert offsets(answer) == (2, 0)


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
def test_a_prepared_reply_is_what_the_encoder_would_make(reading: Reading, isolation: int) -> None:
    append(reading.partition, b"a")
    write(reading.partition, 0, b"b")
    target = reading.target(1 if isolation == COMMITTED else 2)
    prepared = reading.fetch(0, isolation, target)
    assert isinstance(prepared, ReadyPartitionData)
    plain = PartitionData(
        0,
        high_watermark=2,
        last_stable_offset=1,
        log_start_offset=0,
        aborted_transactions=[] if isolation == COMMITTED else None,
        records=b"",
    )
    assert prepared.encoded == b"".join(encode(PartitionData, FETCH.versions[1], True, plain))
    assert reading.fetch(0, isolation, target) is prepared


def test_a_prepared_reply_ends_when_the_marker_is_committed() -> None:
    reading = Reading(partition_on(new_disk()))
    write(reading.partition, 0, b"a")
    sync(reading.partition)
    target = reading.target(0)
    prepared = reading.fetch(0, target=target)
    assert isinstance(prepared, ReadyPartitionData)
    end(reading.partition)
    assert reading.fetch(0, target=target) is prepared, "the marker is not on disk"
    sync(reading.partition)
    answer = reading.fetch(0, target=target)
    assert (offsets(answer), values(answer)) == ((2, 2), [b"a"])


async def test_a_waiting_fetch_is_answered_when_the_transaction_ends(reading: Reading) -> None:
    write(reading.partition, 0, b"a")
    replies = reading.begin(0, bytes_min=1)
    append(reading.partition, b"b")
    await asyncio.sleep(0)
    assert replies == [], "the high watermark moved, and the last stable offset did not"
    end(reading.partition)
    await asyncio.sleep(0)
    assert values(replies[0].responses[0].partitions[0]) == [b"a", b"b"]


async def test_a_small_marker_may_show_more_bytes_than_were_missing(reading: Reading) -> None:
    write(reading.partition, 0, bytes(5_000))
    replies = reading.begin(0, bytes_min=4_000)
    end(reading.partition)
    await asyncio.sleep(0)
    assert len(values(replies[0].responses[0].partitions[0])) == 1


async def test_a_fetch_waits_on_if_the_transaction_had_too_few_bytes(reading: Reading) -> None:
    write(reading.partition, 0, b"a")
    replies = reading.begin(0, bytes_min=4_000)
    end(reading.partition)
    await asyncio.sleep(0)
    assert replies == []
    append(reading.partition, bytes(4_000))
    await asyncio.sleep(0)
    assert len(values(replies[0].responses[0].partitions[0])) == 2


async def test_a_fetch_from_the_device_lists_aborted_transactions_too() -> None:
    disk = new_disk()
    reading = Reading(partition_on(disk, flush_policy=FlushPolicy.OS))
    write(reading.partition, 0, b"a")
    append(reading.partition, b"b")
    end(reading.partition, commit=False)
    disk.disk.cold_reads = 1.0
    params = FetchParams(MIB, COMMITTED, -1)
    assert reading.reader.gather([reading.target(0)], params, CONTEXT).is_cold
    (answer,) = (await reading.reader.gather_cold([reading.target(0)], params, CONTEXT)).answers
    assert (listed(answer), values(answer)) == ([(7, 0)], [b"b"])


def test_deleted_records_of_an_open_transaction_hold_back_the_rest(reading: Reading) -> None:
    write(reading.partition, 0, b"a", b"b")
    append(reading.partition, b"c")
    target = reading.target(2)
    assert offsets(reading.fetch(0, target=reading.target(0))) == (3, 0)
    reading.partition.delete_before(Offset(2))
    answer = reading.fetch(2, target=target)
    assert (offsets(answer), answer.records) == ((3, 2), b"")
    end(reading.partition, commit=False)
    assert values(reading.fetch(2, target=target)) == [b"c"]
