"""Batches that wait for validation hold up nobody but themselves: they are bounded, they run out of
time, and they go with their client.
"""

import asyncio
import threading
from pathlib import Path

import pytest

from penstock.broker.broker import BrokerLimits, Environment
from penstock.broker.data.append import QueuedAppend
from penstock.broker.data.pending_produce import ACKS_NONE, PendingProduce, ProduceLimits
from penstock.broker.network.connection import ConnectionLimits
from penstock.broker.network.memory_budget import MemoryLimits
from penstock.broker.router import NoReply
from penstock.errors import ErrorCode
from penstock.limits import (
    CONNECTION_REQUESTS_IN_FLIGHT_MAX,
    DECODED_BYTES_MAX,
    RECORDS_NAMED_MAX,
    VALIDATION_OVERHEAD_BYTES,
)
from penstock.protocol.messages.produce import PartitionProduceResponse
from penstock.protocol.records import Record, build_batch
from penstock.replication.partition import Appended
from penstock.types import Offset
from tests.unit.broker.data.test_append import (
    COMPACTED,
    MANY,
    NOW_MS,
    Wiring,
    batch_of,
    numbered,
    serving,
    stored,
)

SOON_MS = 50
WITH_KEY, WITHOUT_KEY = (Record(Offset(0), NOW_MS, key, b"v") for key in (b"k", None))


def little_memory(*, grace_ms: int) -> BrokerLimits:
    """For requests that wait, whose clients may keep it so long although others wait for it."""
    memory = MemoryLimits(decoded_bytes_max=20_000, grace_ms=grace_ms)
    return BrokerLimits(connection=ConnectionLimits(memory=memory))


class Heard:
    """A log that is read by the test."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    warning = error = info


def charged_bytes(wiring: Wiring) -> int:
    """What is counted for requests that wait for their answer."""
    return DECODED_BYTES_MAX - wiring.broker.server.shared.decoded.free_bytes


# Leaving


async def test_queued_batches_of_a_client_that_left_are_dropped_and_others_keep_order(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        staying, leaving = await wiring.client(), await wiring.client()
        wiring.hold_validations()
        for number in range(3):
            leaving.send("compacted", *[batch_of(MANY + 500)] * 10, acks=1)
            await wiring.until(lambda number=number: partition.batches_waiting == 11 * number + 10)  # type: ignore[misc]
            staying.send("compacted", numbered(1, number))
            await wiring.until(lambda number=number: partition.batches_waiting == 11 * (number + 1))  # type: ignore[misc]
        leaving.leave()
        await wiring.until(lambda: partition.batches_waiting == 3)
        wiring.release.set()
        assert [(await staying.receive())[1].base_offset for _ in range(3)] == [0, 1, 2]
        assert stored(partition) == [(0, 1), (1, 1), (2, 1)]
        assert charged_bytes(wiring) == 0
        assert len(wiring.broker.storage.deep_validations) == 0


async def test_a_request_that_is_half_appended_when_its_client_leaves_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        leaving, other = await wiring.client(), await wiring.client()
        wiring.hold_validations()
        leaving.send("compacted", batch_of(1), batch_of(MANY), batch_of(1))
        await wiring.until(lambda: partition.batches_waiting == 2)
        leaving.leave()
        await wiring.until(lambda: partition.batches_waiting == 0)
        assert (await other.ask("compacted", batch_of(1))).base_offset == 1
        wiring.release.set()
        assert (await other.ask("compacted", batch_of(MANY))).base_offset == 2
        assert charged_bytes(wiring) == 0


async def test_what_was_appended_for_a_client_that_has_left_may_run_out_of_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        pending = PendingProduce([], [PartitionProduceResponse(0) for _ in range(2)], deadline=1.0)
        appended = Appended(Offset(0), Offset(5), -1)
        queued = [(1, partition, QueuedAppend(partition))]
        pending.wait_for_appends(queued, names_left=RECORDS_NAMED_MAX, wait_ms=10_000)
        later = pending.wait_for_acknowledgement([(0, partition, appended)])
        replies: list[object] = []
        later.then(replies.append)
        assert later.abandon is not None
        later.abandon()
        partition.high_watermark_waits.expire(now=2.0)
        assert (replies, len(partition.high_watermark_waits)) == ([], 0)


async def test_without_acks_what_was_sent_is_stored_although_the_client_has_left(tmp_path: Path) -> None:
    """A producer that asks for no answer closes its connection when it has sent everything."""
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        wiring.hold_validations()
        for _ in range(3):
            client.send("compacted", batch_of(MANY), acks=0)
        await wiring.until(lambda: partition.batches_waiting == 3)
        client.leave()
        await wiring.until(lambda: wiring.broker.server.connection_count == 0)
        wiring.release.set()
        await wiring.until(lambda: partition.high_watermark == 3 * MANY)
        assert charged_bytes(wiring) == 0


async def test_without_acks_a_request_is_over_when_its_batches_are_appended(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        queued = QueuedAppend(partition)
        pending = PendingProduce([], [PartitionProduceResponse(0)], deadline=1.0, acks=ACKS_NONE)
        pending.wait_for_appends([(0, partition, queued)], names_left=RECORDS_NAMED_MAX, wait_ms=10_000)
        outcomes: list[object] = []
        pending.wait_for_acknowledgement([]).then(outcomes.append)
        queued.finish(partition.append_now(memoryview(bytearray(batch_of(5))), NOW_MS))
        assert outcomes == [NoReply.DONE]


# Memory


async def test_batches_that_wait_stop_nobody_else_however_many_requests_they_fill(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=little_memory(grace_ms=60_000)) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        await wiring.topic("plain", {})
        greedy, other = await wiring.client(), await wiring.client()
        decoded = wiring.broker.server.shared.decoded
        wiring.hold_validations()
        for _ in range(20):
            greedy.send("compacted", batch_of(MANY), acks=1)
        await wiring.until(lambda: decoded.free_bytes < 0)
        for number in range(5):
            assert (await other.ask("plain", batch_of(1))).base_offset == number
        assert partition.batches_waiting > 0, "and meanwhile nothing was validated"
        wiring.release.set()
        assert [(await greedy.receive())[1].base_offset for _ in range(20)] == list(range(0, 20 * MANY, MANY))
        assert decoded.free_bytes == decoded.total_bytes


async def test_who_keeps_batches_waiting_is_ended_for_a_large_request_of_another(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=little_memory(grace_ms=SOON_MS)) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        await wiring.topic("plain", {})
        greedy, other = await wiring.client(), await wiring.client()
        decoded = wiring.broker.server.shared.decoded
        wiring.hold_validations()
        for _ in range(20):
            greedy.send("compacted", batch_of(MANY))
        await wiring.until(lambda: decoded.free_bytes < 0)
        other.send("plain", *[batch_of(1)] * 50)
        _, answers = await other.receive_all()
        assert [answer.base_offset for answer in answers] == list(range(50))
        assert partition.batches_waiting == 0
        wiring.release.set()


# Time


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_batch_that_is_queued_for_too_long_is_answered_in_time_and_not_stored(
    tmp_path: Path, acks: int
) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        hasty, patient = await wiring.client(), await wiring.client()
        wiring.hold_validations()
        hasty.send("compacted", batch_of(MANY), batch_of(1), acks=acks, timeout_ms=SOON_MS)
        await wiring.until(lambda: partition.batches_waiting == 2)
        patient.send("compacted", batch_of(3))
        _, answers = await hasty.receive_all()
        codes = [(answer.error_code, answer.base_offset) for answer in answers]
        assert codes == [(ErrorCode.REQUEST_TIMED_OUT, -1)] * 2
        wiring.release.set()
        assert (await patient.receive())[1].base_offset == 0
        assert stored(partition) == [(-1, 3)]
        assert charged_bytes(wiring) == 0


async def test_no_producer_can_have_its_batches_wait_for_ever(tmp_path: Path) -> None:
    limits = BrokerLimits(produce=ProduceLimits(validation_wait_ms_max=SOON_MS))
    async with serving(tmp_path, limits=limits) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client, unanswered = await wiring.client(), await wiring.client()
        wiring.hold_validations()
        client.send("compacted", batch_of(MANY), timeout_ms=2**31 - 1)
        unanswered.send("compacted", batch_of(MANY), acks=0, timeout_ms=2**31 - 1)
        assert (await client.receive())[1].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await unanswered.is_closed(), "that is how it learns of it"
        assert partition.batches_waiting == 0
        wiring.release.set()


async def test_the_timeout_of_a_producer_without_acks_does_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        wiring.hold_validations()
        client.send("compacted", batch_of(MANY), acks=0, timeout_ms=0)
        await wiring.until(lambda: partition.batches_waiting == 1)
        await asyncio.sleep(SOON_MS / 1000)
        wiring.release.set()
        await wiring.until(lambda: partition.high_watermark == MANY)


async def test_without_acks_a_refusal_found_elsewhere_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        client.send("compacted", batch_of(MANY, key=None), acks=0)
        assert await client.is_closed()
        assert partition.log.log_end_offset == 0


async def test_without_acks_a_refusal_found_at_once_closes_it_and_the_rest_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        client.send("compacted", batch_of(MANY), b"no batch", acks=0)
        assert await client.is_closed()
        await wiring.until(lambda: partition.high_watermark == MANY)


# Numbers


async def test_requests_without_acks_that_wait_stop_the_reading_as_others_do(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        wiring.hold_validations()
        count = CONNECTION_REQUESTS_IN_FLIGHT_MAX + 40
        for _ in range(count):
            client.send("compacted", batch_of(MANY), acks=0)
        await wiring.until(lambda: partition.batches_waiting >= CONNECTION_REQUESTS_IN_FLIGHT_MAX)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert partition.batches_waiting == CONNECTION_REQUESTS_IN_FLIGHT_MAX
        wiring.release.set()
        client.send("compacted", batch_of(1))
        assert (await client.receive())[1].base_offset == count * MANY


async def test_small_batches_that_wait_are_counted_as_what_they_cost(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        wiring.broker.storage.deep_validations.bytes_max = 4 * 10 * VALIDATION_OVERHEAD_BYTES + 4 * len(
            batch_of(MANY)
        )
        wiring.hold_validations()
        client.send("compacted", batch_of(MANY), *[batch_of(1)] * 50)
        await wiring.until(lambda: charged_bytes(wiring) > 0)
        wiring.release.set()
        _, answers = await client.receive_all()
        codes = [answer.error_code for answer in answers]
        taken = codes.count(0)
        assert codes == [0] * taken + [ErrorCode.REQUEST_TIMED_OUT] * (51 - taken)
        assert 8 <= taken <= 10


@pytest.mark.parametrize("count", [150, MANY], ids=["at once", "elsewhere"])
async def test_the_refusals_of_a_request_name_a_bounded_number_of_records(tmp_path: Path, count: int) -> None:
    async with serving(tmp_path) as wiring:
        await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        mixed = build_batch([WITH_KEY] * 30 + [WITHOUT_KEY] * 20)
        client.send("compacted", mixed, batch_of(count, key=None), batch_of(count, key=None))
        _, answers = await client.receive_all()
        assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_RECORD] * 3
        named = [[error.batch_index for error in answer.record_errors] for answer in answers]
        assert named == [list(range(30, 50)), list(range(RECORDS_NAMED_MAX - 20)), []]
        messages = {error.batch_index_error_message for error in answers[1].record_errors}
        assert messages == {answers[1].error_message}
        assert all(answer.error_message for answer in answers)


async def test_a_request_of_too_many_batches_closes_the_connection_and_stores_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, limits=BrokerLimits(produce=ProduceLimits(batches_max=20))) as wiring:
        partition = await wiring.topic("plain", {})
        client, greedy = await wiring.client(), await wiring.client()
        client.send("plain", *[batch_of(1)] * 20)
        _, answers = await client.receive_all()
        assert [answer.base_offset for answer in answers] == list(range(20))
        greedy.send("plain", *[batch_of(1)] * 21)
        assert await greedy.is_closed()
        assert partition.log.log_end_offset == 20


# Stopping


async def test_a_stop_says_what_it_had_no_time_for(tmp_path: Path) -> None:
    heard = Heard()
    limits = BrokerLimits(shutdown_ms_max=2 * SOON_MS)
    async with serving(tmp_path, Environment(log=heard), limits) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        slow = threading.Event()
        wiring.broker.storage.deep_validations.add(wiring, 0, lambda: slow.wait(0.5), lambda *_: None)
        client.send("compacted", batch_of(MANY), acks=0)
        await wiring.until(lambda: partition.batches_waiting == 1)
    assert ("broker.batches_dropped", {"count": 2}) in heard.events
    assert (tmp_path / "data" / "clean-shutdown").exists()
