"""The estimate of the memory of groups is about what they take, and it is bounded."""

import gc
import time
import tracemalloc
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.coordinator.outcome import CommandOutcome, Now, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller
from penstock.groups.consumer.consumer_member import Subscription
from penstock.groups.consumer.regex import REGEXES_PER_GROUP_MAX
from penstock.groups.group_context import ClientInfo, GroupContext, GroupStateLimits, TopicsImage
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.memory_check import heartbeat_needs_memory, sync_needs_memory
from penstock.limits import MIB
from penstock.metadata.cluster_image import Topic
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.types import TopicId
from tests.unit.groups.consumer.consumer_support import config, durable, topic

NOW = Now(1_700_000_000_000, 1_000.0)
LATER = Now(NOW.wall_ms + 10, NOW.monotonic + 0.01)
SOMEBODY = ClientInfo("c", "/h")


def topics_of(*topics: Topic) -> TopicsImage:
    return TopicsImage({each.name: each for each in topics}, {each.id: each for each in topics})


def logs(count: int) -> TopicsImage:
    """Many topics of one partition."""
    named = (topic(f"topic-with-an-ordinary-name-{number:04}", 1) for number in range(count))
    return topics_of(*(replace(each, id=digest(each.name)) for each in named))


def digest(name: str) -> TopicId:
    return TopicId(blake2b(name.encode(), digest_size=16).digest())


class Shard:
    """The groups of one shard, which alone take what may be taken."""

    def __init__(self, topics: TopicsImage) -> None:
        self.drawn = 0
        settings = config(members_max=1_000)
        self.context = GroupContext(lambda: settings, lambda: topics, self._draw)
        self.groups = GroupStateMachine(self.context, lambda: self.groups.memory_bytes)

    def _draw(self) -> str:
        self.drawn += 1
        return f"{self.drawn:036}"

    def take(self, ask: Callable[[WaitingRequest], CommandOutcome], now: Now = NOW) -> Any:
        replies: list[Any] = []
        self._take(ask(WaitingRequest(replies.append, lambda code, detail: code)), now)
        return replies[-1] if replies else None

    def _take(self, outcome: CommandOutcome, now: Now) -> None:
        for record in outcome.records:
            self.groups.replay(record, now.wall_ms)
        for pending, content in outcome.replies:
            pending.complete(content)

    def beat(self, group_id: str, member_id: str, epoch: int = 0, **fields: Any) -> Any:
        if epoch == 0:
            fields = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], **fields}
        request = ConsumerGroupHeartbeatRequest(group_id, member_id, epoch, **fields)
        return self.take(
            lambda pending: self.groups.consumer_heartbeat(request, ConsumerCaller(1, SOMEBODY, pending), NOW)
        )

    def beat_until_resolved(self, group_id: str, member_id: str, regex: str) -> None:
        epoch = self.beat(group_id, member_id, subscribed_topic_regex=regex).member_epoch
        while self.consumer(group_id).resolving:
            epoch = self.beat(group_id, member_id, epoch).member_epoch

    def join(self, group_id: str, metadata: bytes = b"") -> str:
        """One classic member that joins and is its group's leader."""
        (member_id,) = self.join_together(group_id, [metadata])
        return member_id

    def join_together(self, group_id: str, metadata: list[bytes]) -> list[str]:
        """Classic members that join with ids of their own and complete one rebalance, the leader first."""
        replies: list[Any] = []
        for each in metadata:
            request = JoinGroupRequest(group_id, 10_000, 10_000, "", None, "consumer")
            request.protocols = [JoinGroupRequestProtocol("range", each)]
            pending = WaitingRequest(replies.append, lambda code, detail: code)
            self._take(self.groups.join(request, ClassicCaller(2, SOMEBODY, pending), NOW), NOW)
        now = LATER
        while not replies:
            for outcome in self.groups.expire(now):
                self._take(outcome, now)
            now = Now(now.wall_ms + 10, now.monotonic + 0.01)
        (leader,) = {reply.leader for reply in replies}
        return sorted((reply.member_id for reply in replies), key=lambda member_id: member_id != leader)

    def sync(self, group_id: str, member_id: str, *assignments: tuple[str, bytes]) -> Any:
        given = [SyncGroupRequestAssignment(*each) for each in assignments]
        request = SyncGroupRequest(group_id, 1, member_id, assignments=given)
        return self.take(
            lambda pending: self.groups.sync(request, ClassicCaller(3, SOMEBODY, pending), LATER)
        )

    def leave(self, group_id: str, member_id: str) -> Any:
        request = LeaveGroupRequest(group_id, members=[MemberIdentity(member_id)])
        return self.take(
            lambda pending: self.groups.leave(request, ClassicCaller(5, SOMEBODY, pending), LATER)
        )

    def consumer(self, group_id: str) -> ConsumerGroup:
        group = self.groups.store.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def classic(self, group_id: str) -> ClassicGroup:
        group = self.groups.store.groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group


# What is measured


def large_assignments(shard: Shard) -> None:
    for number in range(4):
        shard.beat(f"g-{number}", "m", subscribed_topic_names=["a"])


def small_groups(shard: Shard) -> None:
    for number in range(150):
        shard.beat(f"group-{number}", "m", subscribed_topic_names=["few"])


def big_group(shard: Shard) -> None:
    for number in range(60):
        shard.beat("g", f"member-{number}", subscribed_topic_names=["few", "a", "other"])


def handing_over(shard: Shard) -> None:
    """The first member has been told to give half of it up; the second waits."""
    for number in range(4):
        epoch = shard.beat(f"g-{number}", "1", subscribed_topic_names=["a"]).member_epoch
        shard.beat(f"g-{number}", "2", subscribed_topic_names=["a"])
        shard.beat(f"g-{number}", "1", epoch)


def many_names(shard: Shard) -> None:
    """Short names, one of which makes every character of the client's name take four bytes."""
    for number in range(20):
        names = [f"{number}-{each}" for each in range(500)]
        shard.beat("g", f"member-{number}", subscribed_topic_names=names, rack_id="\U0001f980" + "r" * 5_000)


def expressions(shard: Shard) -> None:
    """Each means something else: some topics are missing, each time others."""
    for number in range(12):
        shard.beat_until_resolved("g", f"m-{number}", f".*[^{number % 4}].{{{number // 4}}}")


def expressions_alike(shard: Shard) -> None:
    for number in range(12):
        shard.beat_until_resolved("g", f"m-{number}", f".*|x{number}")


def big_classic_group(shard: Shard) -> None:
    ids = shard.join_together("g", [bytes(100 + number) for number in range(100)])
    shard.sync("g", ids[0], *((member_id, bytes(1_000)) for member_id in ids))


def classic_groups(shard: Shard) -> None:
    for number in range(100):
        member_id = shard.join(f"g-{number}", bytes(100 + number))
        shard.sync(f"g-{number}", member_id, (member_id, bytes(100 + number)))


def memory_taken(fill: Callable[[Shard], None], topics: TopicsImage) -> tuple[Shard, int]:
    """A filled shard, and the memory that it takes."""
    fill(Shard(topics))  # what is made once, and not for a group, is made now
    shard = Shard(topics)
    gc.collect()
    tracemalloc.start()
    try:
        fill(shard)
        gc.collect()
        return shard, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "fill",
    [
        large_assignments,
        small_groups,
        big_group,
        handing_over,
        many_names,
        expressions,
        expressions_alike,
        big_classic_group,
        classic_groups,
    ],
)
def test_the_estimate_is_between_the_memory_of_groups_and_three_times_it(
    fill: Callable[[Shard], None],
) -> None:
    is_by_expression = fill.__name__.startswith("expressions")
    topics = logs(200) if is_by_expression else topics_of(topic("a", 3_000), topic("few", 3))
    shard, taken = memory_taken(fill, topics)
    assert taken <= shard.groups.memory_bytes <= taken * 3


def test_a_partition_takes_less_than_a_hundred_bytes_in_all_that_is_known_of_it() -> None:
    """What a member shall read, what it reads, and who reads it."""
    topics = topics_of(topic("a", 10_000))
    _, taken = memory_taken(lambda shard: shard.beat("g", "m", subscribed_topic_names=["a"]), topics)
    assert taken < 10_000 * 100


def test_expressions_share_equal_matches_and_names() -> None:
    shard = Shard(logs(20))
    shard.beat_until_resolved("g", "1", ".*")
    shard.beat_until_resolved("g", "2", ".*|x")
    shard.beat_until_resolved("g", "3", ".*[^0]")
    one, same, other = (resolution.topics for resolution in shard.consumer("g").regexes.values())
    assert same is one
    assert {id(name) for name in other} < {id(name) for name in one}


def test_members_that_have_gone_leave_nothing_in_the_estimate() -> None:
    shard = Shard(logs(50))
    empty = ConsumerGroup("g").memory_bytes
    shard.beat_until_resolved("g", "1", ".*")
    shard.beat("g", "2", subscribed_topic_names=["topic-with-an-ordinary-name-0001", "none"])
    assert shard.consumer("g").memory_bytes > empty + 10_000
    for member_id in "12":
        shard.leave("g", member_id)
    group = shard.consumer("g")
    tables = 10_000
    """Python keeps the room of emptied tables, and the estimate has it."""
    assert group.memory_bytes < empty + tables
    assert (group.member_bytes, group.subscribed.all()) == (0, frozenset())


# The bound


def rejection(ask: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        ask()
    return refused.value.code


def test_joins_that_would_get_too_many_partitions_are_rejected_at_the_bound() -> None:
    shard = Shard(topics_of(topic("a", 10_000), topic("b", 10_000), topic("few", 1)))
    shard.context.limits = GroupStateLimits(state_bytes_max=4 * MIB)
    joined = 0
    while joined < 10 and shard.groups.memory_bytes <= 4 * MIB:
        shard.beat(f"g-{joined}", "m", subscribed_topic_names=["a", "b"])
        joined += 1
    assert 1 < joined < 10
    assert shard.groups.memory_bytes < 7 * MIB
    join = rejection(lambda: shard.beat("new", "m", subscribed_topic_names=["a", "b"]))
    assert join is ErrorCode.GROUP_MAX_SIZE_REACHED
    epoch = shard.consumer("g-0").members["m"].epoch
    assert shard.beat("g-0", "m", epoch, subscribed_topic_names=["b", "a"]).member_epoch == epoch
    shard.leave("g-1", "m")
    shard.leave("g-2", "m")
    assert shard.beat("new", "m", subscribed_topic_names=["few"]).member_epoch == 1


def test_a_member_that_turns_to_other_topics_is_refused_at_the_bound() -> None:
    shard = Shard(topics_of(topic("a-long-name", 1), topic("b", 10_000)))
    epoch = shard.beat("g", "m", subscribed_topic_names=["a-long-name"]).member_epoch
    shard.context.limits = GroupStateLimits(state_bytes_max=0)
    more: tuple[dict[str, Any], ...] = (
        {"subscribed_topic_names": ["b"]},
        {"subscribed_topic_regex": ".*"},
        {"rack_id": "r" * 30_000},
    )
    for fields in more:
        assert rejection(lambda fields=fields: shard.beat("g", "m", epoch, **fields)) is (  # type: ignore[misc]
            ErrorCode.GROUP_MAX_SIZE_REACHED
        )
    for fields in ({"subscribed_topic_names": ["a-long-name"]}, {"subscribed_topic_regex": ""}, {}):
        assert shard.beat("g", "m", epoch, **fields).member_epoch == epoch


def test_members_that_come_back_and_say_the_same_add_nothing() -> None:
    shard = Shard(topics_of(topic("a", 1)))
    shard.beat("g", "m", subscribed_topic_names=["a"])
    again = ConsumerGroupHeartbeatRequest("g", "m", 0, subscribed_topic_names=["a"])
    assert not heartbeat_needs_memory(shard.consumer("g"), again)
    assert heartbeat_needs_memory(None, again)


def test_an_assignment_that_is_larger_than_the_last_one_adds_to_what_is_kept() -> None:
    shard = Shard(topics_of())
    leader = shard.join("g")
    shard.sync("g", leader, (leader, bytes(5_000)))
    weight = shard.groups.memory_bytes
    assert weight > 5_000
    group = shard.classic("g")
    for size, is_more in ((0, False), (5_000, False), (5_001, True)):
        given = [SyncGroupRequestAssignment(leader, bytes(size))]
        assert sync_needs_memory(group, SyncGroupRequest("g", 2, leader, assignments=given)) is is_more
    shard.leave("g", leader)
    assert shard.groups.memory_bytes < weight - 5_000
    shard.sync("h", other := shard.join("h"), (other, b""))
    given = [SyncGroupRequestAssignment(other, bytes(900))]
    small = SyncGroupRequest("h", 2, other, assignments=given)
    assert not sync_needs_memory(shard.classic("h"), small), "an ordinary share is always taken"


# Expressions


def test_a_group_uses_so_many_different_expressions_and_no_more() -> None:
    shard = Shard(topics_of(topic("a", 1)))
    epochs = [
        shard.beat("g", f"m-{number}", subscribed_topic_regex=f"a|{number}").member_epoch
        for number in range(REGEXES_PER_GROUP_MAX)
    ]
    written = durable(shard.consumer("g"))
    for ask in (
        lambda: shard.beat("g", "new", subscribed_topic_regex="a|new"),
        lambda: shard.beat("g", "new", subscribed_topic_regex="b", subscribed_topic_names=["a"]),
    ):
        assert rejection(ask) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert durable(shard.consumer("g")) == written
    shard.beat("g", "new", subscribed_topic_regex="a|0")
    assert rejection(lambda: shard.beat("g", "m-0", epochs[0], subscribed_topic_regex="a|new")) is (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    shard.beat("g", "m-1", epochs[1], subscribed_topic_regex="a|new")
    assert "a|1" not in shard.consumer("g").regexes


def test_a_step_looks_up_topics_for_less_than_all_subscriptions_together() -> None:
    costs = []
    for count in (2, 60):
        shard = Shard(logs(400))
        for number in range(count):
            shard.beat_until_resolved("g", f"m-{number}", f".*|x{number}")
        group = shard.consumer("g")
        subscriptions = group.subscriptions_without([group.members["m-0"]]) | {Subscription((), ".*")}
        costs.append(min(cost_of(lambda: group.topics_of(subscriptions)) for _ in range(20)))  # noqa: B023
    assert costs[1] < 5 * costs[0]


class CountingTopics(dict[str, Topic]):
    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_a_target_for_expressions_that_mean_the_same_looks_topics_up_once() -> None:
    topics = logs(100)
    counting = CountingTopics(topics.by_name)
    shard = Shard(TopicsImage(counting, topics.by_id))
    for number in range(20):
        shard.beat_until_resolved("g", f"m-{number}", f".*|x{number}")
    counting.asked = 0
    shard.beat_until_resolved("g", "new", ".*|new")
    assert 0 < counting.asked <= 300


def cost_of(ask: Callable[[], object]) -> float:
    began = time.process_time()
    ask()
    return time.process_time() - began
