"""What a follower does with the answers of its leader."""

from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.replication.replica_fetchers import FetcherKey, LeaderFetcher
from penstock.log.partition_log import PartitionLog
from penstock.observability.logs import NullLog
from penstock.protocol.messages.fetch import FetchableTopicResponse, FetchResponse
from penstock.replication.fetch_session_handler import Replica
from penstock.replication.partition import Partition
from penstock.replication.throttle import Allowance
from penstock.types import Offset, TopicId
from tests.unit.replication.replica_support import (
    FOLLOWER,
    LEADER,
    answer_to,
    follower_on,
    leader_on,
    new_log,
    produce,
    sync,
)

REPLICA = Replica(TopicId(bytes(16)), 0)
EPOCH = 70


class Follower:
    """A fetcher, and the one partition that it follows."""

    def __init__(self) -> None:
        self.partition = follower_on(new_log())
        self.stored_soon: list[PartitionLog] = []
        storage = SimpleNamespace(
            partitions=SimpleNamespace(find_by_id=lambda topic_id, index: self.partition),
            starts=SimpleNamespace(request=self.stored_soon.append),
            flusher=SimpleNamespace(flush_to=self._flush_to),
        )
        fetchers = SimpleNamespace(
            storage=storage,
            log=NullLog(),
            allow=lambda replica, now: Allowance(now),
            copied=lambda replica, count: None,
        )
        self.fetcher = LeaderFetcher(FetcherKey(LEADER, is_idle=False), cast(Any, fetchers))
        self.fetcher.follow(REPLICA)

    async def _flush_to(self, unflushed: list[tuple[Partition, Offset]]) -> None:
        sync(self.partition)

    async def fetch_from(self, leader: Partition) -> None:
        fetch_position = self.partition.fetch_position()
        assert fetch_position is not None
        assert self.fetcher.session.request(FOLLOWER, EPOCH, 0.0) is not None
        topic = FetchableTopicResponse("", REPLICA.topic_id, [answer_to(leader, fetch_position)])
        await self.fetcher.process_response(FetchResponse(session_id=5, responses=[topic]))


async def test_a_follower_stores_a_new_start_soon() -> None:
    """Whoever deleted records waits for that."""
    leader, follower = leader_on(new_log()), Follower()
    produce(leader)
    sync(leader)
    await follower.fetch_from(leader)
    assert (follower.partition.log.log_end_offset, follower.stored_soon) == (1, [])
    await follower.fetch_from(leader)  # which tells the leader that it has the record
    leader.delete_before(Offset(1))
    await follower.fetch_from(leader)
    assert follower.partition.log.log_start_offset == 1
    assert follower.stored_soon == [follower.partition.log]
