"""What a leader gives to followers, and what their fetches do to it."""

import asyncio
from typing import Any, cast

import pytest

from penstock.broker.apis.fetch import Fetch
from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchReader
from penstock.broker.data.fetch_sessions import (
    FetchPartitionKey,
    FetchSessions,
    FetchTarget,
    ResolvedFetch,
)
from penstock.broker.data.pending_fetch import FetchCapacity, PendingFetch
from penstock.broker.replication.cluster_followers import require_session
from penstock.broker.router import DeferredReply
from penstock.broker.storage.cold_reads import ColdReads
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import NO_NODE, BrokerRegistration, BrokerSession, ClusterImage
from penstock.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from penstock.replication.leading import FollowerFetchState
from penstock.replication.partition import Partition
from penstock.security.access import (
    ANONYMOUS,
    CLUSTER,
    AllowEverything,
    Operation,
    Principal,
    Resource,
)
from penstock.types import NO_TOPIC_ID, Offset
from tests.unit.replication.replica_support import FOLLOWER, follower_on, leader_on, new_log, produce, sync

MIB = 1 << 20
EPOCH = 70
CONTEXT = RequestContext(ANONYMOUS, "PLAINTEXT", "here", AllowEverything()).for_request(17, None, frozenset())
KEY = FetchPartitionKey("orders", NO_TOPIC_ID, 0)
NEAR = "the rack of the follower"


class Followers:
    """As those of a cluster, where broker FOLLOWER is admitted."""

    is_rack_aware = True

    def __init__(self, *, leadership_confirmed: bool = True) -> None:
        self._leadership_confirmed = leadership_confirmed

    def leadership_confirmed(self, partition: Partition, claim: str) -> bool:
        return self._leadership_confirmed

    def require_session(self, sender: FetchParams) -> None:
        pass

    def nearest(self, partition: Partition, rack: str, offset: Offset) -> int:
        return FOLLOWER if rack == NEAR else NO_NODE

    def fetched(
        self, partition: Partition, params: FetchPartition, sender: FetchParams
    ) -> EpochEndOffset | None:
        fetched = FollowerFetchState(
            sender.replica_id, sender.replica_epoch, Offset(params.fetch_offset), EPOCH
        )
        return partition.follower_fetched(params, fetched, 1.0).diverging


class TopicsOnly:
    """Nothing is allowed that concerns the cluster."""

    allows_everything = False

    def authorise(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return resource.type is not CLUSTER.type


class OnePartition:
    def __init__(self, partition: Partition | None) -> None:
        self.partition = partition

    def find(self, topic: str, index: int) -> Partition | None:
        return self.partition

    def missing_partition_error(self, topic: str, topic_id: bytes, index: int) -> ApiError:
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def reads_of(partition: Partition | None, followers: Followers | None = None) -> FetchReader:
    def damaged(_: Partition, problem: Exception) -> None:
        raise AssertionError(problem)

    cold_reads = ColdReads(cast(Any, None), damaged)
    return FetchReader(cast(Any, OnePartition(partition)), cold_reads, followers or Followers())


def fetch(
    reads: FetchReader, offset: int, *, replica: int = FOLLOWER, epoch: int = 1, last_epoch: int = -1
) -> PartitionData:
    wanted = FetchTarget(KEY, FetchPartition(0, epoch, offset, last_epoch, 0, MIB))
    (answer,) = reads.gather([wanted], FetchParams(MIB, 0, replica, EPOCH), CONTEXT).answers
    return answer


def test_a_follower_reads_to_the_end_of_the_log_and_a_consumer_what_is_safe() -> None:
    leader = leader_on(new_log())
    produce(leader, b"not flushed here, and nowhere else")
    reads = reads_of(leader)
    assert fetch(reads, 0, replica=-1).records == b""
    assert fetch(reads, 0).records != b""
    sync(leader)
    assert leader.high_watermark == 0
    assert fetch(reads, 1).records == b"", "and acknowledges what it has"
    assert leader.high_watermark == 1
    assert fetch(reads, 0, replica=-1).records != b""


def test_a_follower_is_told_where_to_begin_anew_and_a_consumer_is_not() -> None:
    leader = leader_on(new_log())
    for _ in range(3):
        produce(leader)
    sync(leader)
    leader.log.advance_start(Offset(2))
    reads = reads_of(leader)
    answer = fetch(reads, 1)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
    answer = fetch(reads, 1, replica=-1)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_who_may_no_longer_lead_sends_nobody_to_the_beginning() -> None:
    """A client that is told that its place is out of range gives it up."""
    leader = leader_on(new_log())
    for _ in range(3):
        produce(leader)
    sync(leader)
    answer = fetch(reads_of(leader), 9, replica=-1)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    unsure = reads_of(leader, Followers(leadership_confirmed=False))
    assert fetch(unsure, 9, replica=-1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.log.advance_start(Offset(2))
    assert fetch(unsure, 1, replica=-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE  # gone for everybody


def test_a_follower_with_another_history_is_told_where_they_part() -> None:
    leader = leader_on(new_log(), epoch=3)
    produce(leader)
    sync(leader)
    answer = fetch(reads_of(leader), 5, epoch=3, last_epoch=3)
    assert answer.diverging_epoch == EpochEndOffset(3, 1)
    assert answer.error_code == ErrorCode.NONE
    assert answer.records == b""


def test_whoever_does_not_lead_sends_everybody_away() -> None:
    for replica in (-1, FOLLOWER):
        for partition in (follower_on(new_log()), None):
            answer = fetch(reads_of(partition), 0, replica=replica)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_broker_without_a_replica_gets_nothing_that_is_not_shown() -> None:
    leader = leader_on(new_log())
    produce(leader)
    answer = fetch(reads_of(leader), 0, replica=77)
    assert (answer.error_code, answer.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")


@pytest.mark.parametrize(
    ("live", "code"),
    [
        (None, ErrorCode.STALE_BROKER_EPOCH),
        (BrokerSession("an older image", "disk", epoch=EPOCH - 1), ErrorCode.STALE_BROKER_EPOCH),
        (BrokerSession("who has its place", "disk", epoch=EPOCH + 1), ErrorCode.STALE_BROKER_EPOCH),
        (BrokerSession("itself", "disk", epoch=EPOCH), None),
    ],
)
def test_a_fetch_counts_only_from_the_process_that_has_the_session(
    live: BrokerSession | None, code: ErrorCode | None
) -> None:
    image = ClusterImage(
        cluster_id="c",
        brokers={FOLLOWER: BrokerRegistration(None, {}, "x", id=FOLLOWER, revision=1, live=live)},
    )
    if code is None:
        require_session(image, FOLLOWER, EPOCH)
        return
    with pytest.raises(ApiError) as caught:
        require_session(image, FOLLOWER, EPOCH)
    assert caught.value.code is code
    with pytest.raises(ApiError) as caught:
        require_session(image, 77, EPOCH)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def consumed(
    partition: Partition, *, may_read_from_follower: bool = True, rack: str = "", offset: int = 0
) -> PartitionData:
    wanted = FetchTarget(KEY, FetchPartition(0, 1, offset, -1, 0, MIB))
    fetch = FetchParams(MIB, 0, -1, may_read_from_follower=may_read_from_follower, rack=rack)
    (answer,) = reads_of(partition).gather([wanted], fetch, CONTEXT).answers
    return answer


def test_a_follower_serves_consumers_up_to_the_high_watermark_that_it_knows() -> None:
    follower = follower_on(new_log())
    assert consumed(follower, may_read_from_follower=False).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (consumed(follower).error_code, consumed(follower).records) == (0, b"")
    assert consumed(follower, may_read_from_follower=False).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_has_less_sends_consumers_to_the_leader() -> None:
    """Out of range would make them begin anew, and leave out what they had not read."""
    follower = follower_on(new_log())
    assert consumed(follower, offset=0).error_code == ErrorCode.NONE
    assert consumed(follower, offset=1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_consumer_next_to_another_replica_is_sent_there_at_once() -> None:
    leader = leader_on(new_log())
    wanted = FetchTarget(KEY, FetchPartition(0, 1, 0, -1, 0, MIB))
    gathered = reads_of(leader).gather(
        [wanted], FetchParams(MIB, 0, -1, may_read_from_follower=True, rack=NEAR), CONTEXT
    )
    assert gathered.answers[0].preferred_read_replica == FOLLOWER
    assert gathered.ends_wait, "it is not kept waiting for records"
    assert consumed(leader, rack="elsewhere").preferred_read_replica == -1
    assert consumed(leader).preferred_read_replica == -1


def test_a_broker_that_is_alone_has_no_followers() -> None:
    alone = FetchReader(cast(Any, OnePartition(leader_on(new_log()))), cast(Any, None))
    assert fetch(alone, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def begin_fetch(leader: Partition, params: FetchPartition) -> list[FetchResponse]:
    """Begin a fetch of the follower that waits. Returns where its reply will be."""
    request = FetchRequest(
        replica_state=ReplicaState(FOLLOWER, EPOCH), max_wait_ms=60_000, min_bytes=1, max_bytes=MIB
    )
    pending_fetch = PendingFetch(
        reads_of(leader),
        FetchCapacity(lambda: MIB, MIB),
        cast(Any, None),
        FetchParams.of(request, CONTEXT.version, is_rack_aware=True),
        ResolvedFetch([FetchTarget(KEY, params)], None, is_incremental=False),
        CONTEXT,
    )
    later = pending_fetch.begin()
    assert isinstance(later, DeferredReply)
    answers: list[FetchResponse] = []
    later.then(cast(Any, answers.append))
    return answers


def test_a_follower_that_waits_is_woken_by_an_append() -> None:
    async def scene() -> None:
        leader = leader_on(new_log())
        answers = begin_fetch(leader, FetchPartition(0, 1, 0, -1, 0, MIB))
        await asyncio.sleep(0)
        assert not answers
        produce(leader)
        await asyncio.sleep(0)
        (response,) = answers
        assert response.responses[0].partitions[0].records
        assert not leader.follower_waits

    asyncio.run(scene())


def test_a_follower_that_waits_is_woken_by_a_deletion() -> None:
    """Whoever deleted records waits until the follower has stored the new start."""

    async def scene() -> None:
        leader = leader_on(new_log())
        produce(leader)
        sync(leader)
        fetched = FollowerFetchState(FOLLOWER, EPOCH, Offset(1), EPOCH)
        leader.follower_fetched(FetchPartition(0, 1, 1, 1, 0, MIB), fetched, 1.0)
        assert leader.high_watermark == 1
        answers = begin_fetch(leader, FetchPartition(0, 1, 1, 1, 0, MIB))
        await asyncio.sleep(0)
        assert not answers
        leader.delete_before(Offset(1))
        await asyncio.sleep(0)
        (response,) = answers
        assert response.responses[0].partitions[0].log_start_offset == 1

    asyncio.run(scene())


def test_a_follower_that_waits_is_told_when_the_leadership_is_over() -> None:
    async def scene() -> None:
        leader = leader_on(new_log())
        answers = begin_fetch(leader, FetchPartition(0, 1, 0, -1, 0, MIB))
        leader.resign()
        await asyncio.sleep(0)
        assert answers[0].responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scene())


@pytest.mark.parametrize("replica", [-1, FOLLOWER])
def test_only_brokers_fetch_as_brokers(replica: int) -> None:
    leader = leader_on(new_log())
    produce(leader)
    sessions = FetchSessions(0, cast(Any, None), cast(Any, None))
    capacity = FetchCapacity(lambda: MIB, MIB)
    fetching = Fetch(reads_of(leader), Followers(), sessions, capacity, cast(Any, None))
    context = RequestContext(ANONYMOUS, "PLAINTEXT", "here", TopicsOnly()).for_request(17, None, frozenset())
    request = FetchRequest(replica_state=ReplicaState(replica, EPOCH), session_epoch=-1)
    answer = fetching(request, context)
    assert isinstance(answer, FetchResponse)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert answer.error_code == (refused if replica >= 0 else ErrorCode.NONE)


class CountingFollowers(Followers):
    """Counts the fetches that were recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = 0

    def fetched(
        self, partition: Partition, params: FetchPartition, sender: FetchParams
    ) -> EpochEndOffset | None:
        self.recorded += 1
        return super().fetched(partition, params, sender)


class CaughtUp:
    """A follower that has read a partition to its end, and fetches it again and again."""

    def __init__(self) -> None:
        self.leader = leader_on(new_log())
        self.followers = CountingFollowers()
        self.reads = reads_of(self.leader, self.followers)
        produce(self.leader)
        self.target = FetchTarget(KEY, FetchPartition(0, 1, 1, 1, 0, MIB))
        self.fetch()

    def fetch(self, context: RequestContext = CONTEXT) -> PartitionData:
        params = FetchParams(MIB, 0, FOLLOWER, EPOCH)
        (answer,) = self.reads.gather([self.target], params, context).answers
        return answer


def test_a_partition_without_news_is_not_read_again() -> None:
    caught_up = CaughtUp()
    assert [caught_up.fetch().records for _ in range(3)] == [b"", b"", b""]
    assert caught_up.followers.recorded == 1


def test_a_follower_at_the_end_receives_the_next_records() -> None:
    caught_up = CaughtUp()
    produce(caught_up.leader)
    assert caught_up.fetch().records


def test_a_follower_at_the_end_is_told_of_what_else_changes() -> None:
    caught_up = CaughtUp()
    sync(caught_up.leader)
    assert caught_up.fetch().high_watermark == 1
    assert caught_up.followers.recorded == 1, "its fetch offset is the same"
    caught_up.leader.delete_before(Offset(1))
    assert caught_up.fetch().log_start_offset == 1
    caught_up.leader.resign()
    assert caught_up.fetch().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_new_parameters_of_a_follower_are_recorded() -> None:
    caught_up = CaughtUp()
    caught_up.target.update(FetchPartition(0, 1, 1, 1, 1, MIB))
    caught_up.fetch()
    assert caught_up.followers.recorded == 2


def test_a_consumer_gets_no_reply_that_was_made_for_a_follower() -> None:
    caught_up = CaughtUp()
    params = FetchParams(MIB, 0, -1)
    (answer,) = caught_up.reads.gather([caught_up.target], params, CONTEXT).answers
    assert (answer.high_watermark, answer.records) == (0, b"")
    assert caught_up.fetch().high_watermark == 0
    assert caught_up.followers.recorded == 2


def test_a_follower_that_may_no_longer_read_a_topic_is_refused() -> None:
    caught_up = CaughtUp()
    denied = CONTEXT.for_request(17, None, frozenset({"orders"}))
    assert caught_up.fetch(denied).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
