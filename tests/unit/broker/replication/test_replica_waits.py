"""Who waits for other replicas, and how long."""

import asyncio
from typing import Any, cast

import pytest

from penstock.broker.apis.produce import Produce
from penstock.broker.context import RequestContext
from penstock.broker.data.append import BatchAppender
from penstock.broker.data.pending_produce import ACKS_ALL, ACKS_LEADER, PendingProduce
from penstock.broker.router import DeferredReply
from penstock.broker.storage.flusher import Flusher
from penstock.config.topic import FlushPolicy
from penstock.errors import ApiError, ErrorCode
from penstock.host.clock import SystemClock
from penstock.host.file_sync import ThreadSync
from penstock.host.syscalls.short_timer import LoopTimer
from penstock.host.worker import Worker
from penstock.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.replication.partition import Appended, Partition
from penstock.security.access import ANONYMOUS, AllowEverything
from tests.unit.log.log_support import NOW_MS, batch_of
from tests.unit.replication.replica_support import (
    LEADER,
    catch_up,
    follower_on,
    leader_on,
    new_log,
    produce,
    sync,
)


def answered(partition: Partition, acks: int) -> PartitionProduceResponse:
    """The answer to a produce of one batch, which changes when it is given."""
    end = produce(partition)
    answer = PartitionProduceResponse(0, 0, end - 1)
    pending = PendingProduce([], [answer], deadline=10.0, acks=acks)
    pending.wait_for_acknowledgement([(0, partition, Appended(partition.log.log_start_offset, end, -1))])
    return answer


def new_flusher(leader: Partition, worker: Worker) -> Flusher:
    timer = LoopTimer(asyncio.get_running_loop())
    return Flusher(ThreadSync(leader.log.disk, worker), timer, SystemClock())


async def flushed(partition: Partition, flusher: Flusher) -> None:
    await flusher.flush_to([(partition, partition.log.log_end_offset)])


@pytest.mark.parametrize("acks", [ACKS_ALL, ACKS_LEADER])
def test_a_producer_that_waits_for_replicas_in_vain_is_told_in_time(acks: int) -> None:
    async def scenario() -> None:
        leader, worker = leader_on(new_log()), Worker("flush", asyncio.get_running_loop())
        flusher = new_flusher(leader, worker)
        try:
            answer = answered(leader, acks)
            await flushed(leader, flusher)
            flusher.expire_waits(9.0)
            assert answer.error_code == 0
            flusher.expire_waits(11.0)
            late = ErrorCode.REQUEST_TIMED_OUT if acks == ACKS_ALL else ErrorCode.NONE
            assert answer.error_code == late
        finally:
            worker.stop()

    asyncio.run(scenario())


class OnePartition:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def find_by_id(self, topic_id: bytes, index: int) -> Partition:
        return self._partition


def produce_with_acks_1(leader: Partition, *, is_store_unavailable: bool) -> object:
    appending = BatchAppender(lambda full: None, lambda failure: None, lambda partition, claim: True)
    handle = Produce(cast(Any, OnePartition(leader)), appending, SystemClock(), lambda: is_store_unavailable)
    batch = memoryview(bytearray(batch_of([b"x"])))
    data = TopicProduceData("", leader.topic_id, [PartitionProduceData(0, batch)])
    context = RequestContext(ANONYMOUS, "PLAINTEXT", "here", AllowEverything()).undenied(13, None)
    return handle(ProduceRequest(None, ACKS_LEADER, 1_000, [data]), context)


@pytest.mark.parametrize("is_store_unavailable", [False, True])
def test_without_the_metadata_store_the_leader_alone_is_not_enough(is_store_unavailable: bool) -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    later = produce_with_acks_1(leader, is_store_unavailable=is_store_unavailable)
    assert isinstance(later, DeferredReply)
    answers: list[object] = []
    later.then(answers.append)
    sync(leader)
    assert len(answers) == (0 if is_store_unavailable else 1)
    catch_up(leader, follower)
    assert len(answers) == 1


def test_without_the_metadata_store_too_few_in_sync_replicas_reject_acks_1() -> None:
    leader = leader_on(new_log(), isr=(LEADER,), min_isr=2)
    reply = produce_with_acks_1(leader, is_store_unavailable=True)
    assert isinstance(reply, ProduceResponse)
    (answer,) = reply.responses[0].partition_responses
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.log.log_end_offset == 0, "a record that cannot be acknowledged is not stored"


def test_with_the_metadata_store_acks_1_needs_no_other_replica() -> None:
    leader = leader_on(new_log(), isr=(LEADER,), min_isr=2)
    assert isinstance(produce_with_acks_1(leader, is_store_unavailable=False), DeferredReply)
    assert leader.log.log_end_offset == 1


@pytest.mark.parametrize("leadership_confirmed", [False, True])
def test_who_may_not_lead_calls_no_producer_out_of_order(leadership_confirmed: bool) -> None:
    leader = leader_on(new_log())
    appending = BatchAppender(
        lambda full: None, lambda failure: None, lambda partition, claim: leadership_confirmed
    )
    context = RequestContext(ANONYMOUS, "PLAINTEXT", "here", AllowEverything()).undenied(13, None)
    request = ProduceRequest(None, ACKS_ALL, 1_000, [])
    first, gap = (
        memoryview(bytearray(batch_of([b"x"], producer_id=7, producer_epoch=0, base_sequence=sequence)))
        for sequence in (0, 5)
    )
    appending.append(leader, first, request, context, NOW_MS)
    with pytest.raises(ApiError) as refusal:
        appending.append(leader, gap, request, context, NOW_MS)
    code = (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if leadership_confirmed else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    assert refusal.value.code is code


def test_a_producer_of_a_topic_that_is_not_flushed_is_told_in_time_too() -> None:
    async def scenario() -> None:
        leader = leader_on(new_log(), flush_policy=FlushPolicy.OS)
        follower = follower_on(new_log(), flush_policy=FlushPolicy.OS)
        worker = Worker("flush", asyncio.get_running_loop())
        flusher = new_flusher(leader, worker)
        try:
            flusher.expect_replicas(leader)
            first = answered(leader, ACKS_ALL)
            catch_up(leader, follower)
            second = answered(leader, ACKS_ALL)
            flusher.expire_waits(11.0)
            assert (first.error_code, second.error_code) == (0, ErrorCode.REQUEST_TIMED_OUT)
        finally:
            worker.stop()

    asyncio.run(scenario())
