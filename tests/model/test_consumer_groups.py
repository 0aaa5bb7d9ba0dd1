"""Consumers of a consumer group do what they like; what the group promises holds all the same.

Consumers join, report, are slow, lose answers, crash, come back with a new id or as a static member,
change their subscription; topics grow, are deleted and made again; the coordinator restarts; time
passes. After every step:

    nobody whom the group counts as a member reads what another member reads
    what the group is, is what its log says; no timer outlives its member (`consumer_support.check`)
    epochs go up

And whenever everybody reports often enough, everybody ends with a fair share of everything.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.groups.consumer.consumer_group import ConsumerGroup, ConsumerState
from penstock.groups.migration import Group
from penstock.metadata.cluster_image import Topic
from penstock.types import TopicId
from tests.unit.groups.consumer.consumer_support import SESSION_MS, ConsumerGroupHarness, Member, topic

NAMES = ("a", "b", "c")
SUBSCRIPTIONS = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)
REGEXES = st.sampled_from(["", "a|b", "[bc]", ".*"])
NUMBERS = st.integers(0, 5)


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, Topic] = {}
        self.versions = dict.fromkeys(NAMES, 0)
        self.members: list[Member] = []
        self.born = 0
        self.epoch = 0

    @initialize(
        counts=st.lists(st.integers(1, 4), min_size=3, max_size=3),
        assignor=st.sampled_from(["uniform", "range"]),
    )
    def begin(self, counts: list[int], assignor: str) -> None:
        self.topics = {name: topic(name, count) for name, count in zip(NAMES, counts, strict=True)}
        assignors = ("uniform", "range") if assignor == "uniform" else ("range", "uniform")
        self.harness = ConsumerGroupHarness(*self.topics.values(), assignors=assignors)

    def pick(self, number: int) -> list[Member]:
        """One of them, if there is any."""
        return [self.members[number % len(self.members)]] if self.members else []

    # Members

    @rule(names=SUBSCRIPTIONS, regex=REGEXES, is_static=st.booleans(), instance=st.integers(0, 2))
    def join(self, names: list[str], regex: str, is_static: bool, instance: int) -> None:
        if len(self.members) >= 5:
            return
        self.born += 1
        instance_id = f"i{instance}" if is_static else None
        metadata = {"subscribed_topic_names": names, "subscribed_topic_regex": regex}
        member = Member(self.harness, f"m{self.born}", instance_id, **metadata)
        member.beat()
        if member.epoch:
            self.members.append(member)

    @rule(number=NUMBERS, is_lost=st.booleans())
    def report(self, number: int, is_lost: bool) -> None:
        for member in self.pick(number):
            member.beat(is_lost=is_lost)

    @rule(number=NUMBERS)
    def report_without_saying_what_is_read(self, number: int) -> None:
        for member in self.pick(number):
            if member.epoch and not member.sends_full_heartbeat:
                member.beat(topic_partitions=None)

    @rule(number=NUMBERS)
    def be_slow(self, number: int) -> None:
        for member in self.pick(number):
            member.is_slow = True

    @rule(number=NUMBERS)
    def hurry(self, number: int) -> None:
        for member in self.pick(number):
            member.hurry()

    @rule(number=NUMBERS, names=SUBSCRIPTIONS, is_lost=st.booleans())
    def subscribe(self, number: int, names: list[str], is_lost: bool) -> None:
        for member in self.pick(number):
            member.subscribe(*names, is_lost=is_lost)

    @rule(number=NUMBERS)
    def lose_track(self, number: int) -> None:
        """It gave everything up and begins anew with its id."""
        for member in self.pick(number):
            member.epoch, member.owned, member.assignment = 0, {}, {}
            member.beat()

    @rule(number=NUMBERS)
    def crash(self, number: int) -> None:
        for member in self.pick(number):
            self.members.remove(member)

    @rule(number=NUMBERS, is_for_a_while=st.booleans())
    def leave(self, number: int, is_for_a_while: bool) -> None:
        for member in self.pick(number):
            self.members.remove(member)
            if member.epoch:
                member.leave(-2 if is_for_a_while and member.instance_id else -1)

    # The world

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["grow", "delete", "make again"]))
    def change_topic(self, name: str, what: str) -> None:
        known = self.topics.get(name)
        if what == "grow" and known is not None:
            self.topics[name] = topic(name, len(known.partitions) + 1, self.versions[name])
        elif what == "delete":
            self.topics.pop(name, None)
        elif what == "make again":
            self.versions[name] += 1
            self.topics[name] = topic(name, 2, self.versions[name])
        self.harness.set_topics(*self.topics.values())

    @rule(seconds=st.sampled_from([0.2, 1, 20, 44, 61]))
    def wait(self, seconds: float) -> None:
        self.harness.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.harness.restart()

    @rule()
    def settle(self) -> None:
        """Everybody reports until those who are gone have been noticed, and then some."""
        for _ in range(SESSION_MS // 5_000 + 2):
            self.harness.advance(5)
            for member in self.members:
                member.hurry()
                member.beat()
        for _ in range(4):
            for member in self.members:
                member.beat()
        self.members = [member for member in self.members if not member.is_replaced]
        if self.members:
            self.check_settled()

    def check_settled(self) -> None:
        group = self.group
        assert isinstance(group, ConsumerGroup)
        living = self.members
        assert group.members.keys() == {member.member_id for member in living}
        assert group.state in (ConsumerState.STABLE, ConsumerState.EMPTY)
        read: set[tuple[TopicId, int]] = set()
        for member in living:
            assert member.epoch == group.assignment_epoch
            assert member.owned == group.target_of(member.member_id)
            read |= places(member)
        wanted = [self.topics[name] for name in group.subscribed_topics if name in self.topics]
        assert read == {(each.id, index) for each in wanted for index in range(len(each.partitions))}

    # What always holds

    @property
    def group(self) -> Group | None:
        return self.harness.place.group

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        read: set[tuple[TopicId, int]] = set()
        for member in self.members:
            if isinstance(self.group, ConsumerGroup) and is_counted(self.group, member):
                assert not read & places(member)
                read |= places(member)

    @invariant()
    def epochs_go_up(self) -> None:
        if isinstance(self.group, ConsumerGroup):
            assert self.group.epoch >= max(self.epoch, self.group.assignment_epoch)
            for known in self.group.members.values():
                assert known.epoch <= self.group.assignment_epoch
            self.epoch = self.group.epoch

    def teardown(self) -> None:
        for member in list(self.members):
            if member.epoch:
                member.leave()
        if isinstance(self.group, ConsumerGroup):
            self.harness.advance(SESSION_MS / 1000 + 61)
            assert self.group.state is ConsumerState.EMPTY
            assert not self.group.holders
            assert not self.group.target
            assert not self.group.regexes
            assert not self.group.metadata_bytes
            assert not len(self.harness.context.timers)


def places(member: Member) -> set[tuple[TopicId, int]]:
    return {(each, index) for each, indexes in member.owned.items() for index in indexes}


def is_counted(group: ConsumerGroup, member: Member) -> bool:
    """Whether the group takes it for a member, as it does itself: others are to stop by themselves."""
    known = group.members.get(member.member_id)
    return known is not None and member.epoch in (known.epoch, known.current_assignment.previous_epoch)


ConsumerGroups.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestConsumerGroups = pytest.mark.timeout(300)(ConsumerGroups.TestCase)
