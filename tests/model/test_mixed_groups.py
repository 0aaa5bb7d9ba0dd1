"""Consumers of both protocols in one group, which moves back and forth between the two.

Classic consumers are eager, which stop reading before they join, or cooperative, which go on until they
are told what to give up. In a classic group the leader divides the work; in a consumer group the
coordinator does. After every step nobody whom the group counts as a member reads what another member
reads, however old what it knows is, and the group is what its log says.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import ErrorCode
from penstock.groups.consumer.consumer_group import ConsumerGroup, ConsumerState
from penstock.groups.embedded_protocol import ConsumerProtocolSubscription, decode_subscription
from tests.unit.groups.consumer.consumer_support import ConsumerGroupHarness, Member, topic, topic_id
from tests.unit.groups.migration_support import Classic, assignment

PARTITIONS = 6
NUMBERS = st.integers(0, 5)


class Eager(Classic):
    """It stops reading whenever it joins."""

    def live(self) -> None:
        if self.joined is not None and not self.joined.pending.is_completed:
            return
        if self.joined is not None and self.is_behind:
            self.learn()
            self.is_behind = False
            self.divide()
            return
        self.collect()
        code = self.beat() if self.member_id and self.harness.place.group else ErrorCode.UNKNOWN_MEMBER_ID
        if not code and not self.has_released:
            return
        self.has_released = False
        self.stop_reading(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        joined = self.join()
        self.is_behind = not joined.pending.is_completed
        if joined.pending.is_completed and joined.code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif joined.pending.is_completed and not joined.code:
            self.divide()

    is_behind = False
    has_released = False
    """It gave something up that the next generation can give to somebody else."""

    def stop_reading(self, _: ErrorCode) -> None:
        self.owned = {}

    def share(self, number: int, member_ids: list[str], _: dict[int, str]) -> set[int]:
        return set(range(number, PARTITIONS, len(member_ids)))

    def divide(self) -> None:
        """Fetch the assignment; as a leader, make it."""
        assert self.joined is not None
        reply = self.joined.reply
        if reply.error_code or self.harness.place.group is None:
            return
        ids = sorted(member.member_id for member in reply.members)
        owners = {
            index: member.member_id
            for member in reply.members
            for owned in _subscribed(member.metadata).owned_partitions
            for index in owned.partitions
        }
        shares = {
            member_id: assignment(a=self.share(number, ids, owners)) for number, member_id in enumerate(ids)
        }
        self.sync(shares)


def _subscribed(metadata: bytes) -> ConsumerProtocolSubscription:
    subscription = decode_subscription(metadata)
    assert subscription is not None
    return subscription


class Cooperative(Eager):
    """It reads on while it joins. What it is not given again it gives up, and joins once more."""

    def stop_reading(self, code: ErrorCode) -> None:
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.owned = {}

    def share(self, number: int, member_ids: list[str], owners: dict[int, str]) -> set[int]:
        """Nothing that somebody else still reads."""
        mine = member_ids[number]
        return {
            index for index in super().share(number, member_ids, owners) if owners.get(index, mine) == mine
        }

    def collect(self) -> ErrorCode:
        before = self.partitions()
        code = super().collect()
        self.has_released |= bool(before - self.partitions())
        return code


class MixedGroups(RuleBasedStateMachine):
    kind: type[Eager] = Eager

    def __init__(self) -> None:
        super().__init__()
        self.harness = ConsumerGroupHarness(topic("a", PARTITIONS))
        self.members: list[Member] = []
        self.classics: list[Eager] = []
        self.born = 0

    @initialize(count=st.integers(0, 3))
    def begin_classic(self, count: int) -> None:
        """Mostly there is a group at rest that can be disturbed."""
        for number in range(count):
            self.classics.append(self.kind(self.harness, f"c{number}"))
        for _ in range(12):
            self.everybody_lives()

    @rule()
    def everybody_lives(self) -> None:
        self.harness.advance(0.2)
        for classic in self.classics:
            classic.live()

    @rule(is_classic=st.booleans(), instance=st.sampled_from([None] * 8 + ["i1", "i2"]))
    def come(self, is_classic: bool, instance: str | None) -> None:
        self.born += 1
        if len(self.members) + len(self.classics) >= 5:
            return
        if is_classic:
            self.classics.append(self.kind(self.harness, f"c{self.born}", instance))
            self.classics[-1].live()
        else:
            self.members.append(Member(self.harness, f"m{self.born}", instance))
            self.members[-1].beat()

    @rule(number=NUMBERS)
    def report(self, number: int) -> None:
        if self.members:
            self.members[number % len(self.members)].beat()

    @rule(number=NUMBERS)
    def live(self, number: int) -> None:
        if self.classics:
            self.classics[number % len(self.classics)].live()

    @rule(number=NUMBERS, is_crash=st.booleans())
    def go(self, number: int, is_crash: bool) -> None:
        if self.members:
            member = self.members.pop(number % len(self.members))
            if member.epoch and not is_crash:
                member.leave()

    @rule(number=NUMBERS)
    def crash(self, number: int) -> None:
        if self.classics:
            self.classics.pop(number % len(self.classics))

    @rule(seconds=st.sampled_from([0.2, 3, 11, 46]))
    def wait(self, seconds: float) -> None:
        self.harness.advance(seconds)

    @rule()
    def restart(self) -> None:
        for waiting in list(self.harness.place.group.parked()) if self.harness.place.group else ():
            waiting.reject(ErrorCode.NOT_COORDINATOR)
        self.harness.restart()

    @rule()
    def settle(self) -> None:
        for _ in range(40):
            self.harness.advance(3)
            for member in self.members:
                if not member.is_replaced:
                    member.beat()
            for classic in self.classics:
                classic.live()
                self.nobody_reads_what_another_reads()
        self.members = [member for member in self.members if not member.is_replaced]
        group = self.harness.place.group
        if isinstance(group, ConsumerGroup):
            assert group.state in (ConsumerState.STABLE, ConsumerState.EMPTY)
        # Two classic consumers of one instance id throw each other out for ever, as they do in Kafka.
        instances = [classic.instance_id for classic in self.classics if classic.instance_id]
        if group is not None and len(set(instances)) == len(instances) and not self.is_contested():
            read = [index for _, indexes in self.readers() for index in indexes]
            is_read = bool(self.members or self.classics)
            assert sorted(read) == (list(range(PARTITIONS)) if is_read else [])

    def is_contested(self) -> bool:
        """A static consumer of each protocol that both want to be the same."""
        ours = {member.instance_id for member in self.members if member.instance_id}
        return any(classic.instance_id in ours for classic in self.classics)

    def readers(self) -> list[tuple[str, set[int]]]:
        """Those whom the group counts as members, and what they read."""
        group = self.harness.place.group
        known = group.members if group is not None else {}
        classics = [(each.member_id, each.partitions()) for each in self.classics]
        consumers = [(each.member_id, set(each.owned.get(topic_id("a"), ()))) for each in self.members]
        return [each for each in classics + consumers if each[0] in known]

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        read: set[int] = set()
        for _, indexes in self.readers():
            assert not read & indexes
            read |= indexes


class CooperativeGroups(MixedGroups):
    kind = Cooperative


SETTINGS = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
MixedGroups.TestCase.settings = SETTINGS
CooperativeGroups.TestCase.settings = SETTINGS
TestMixedGroups = pytest.mark.timeout(300)(MixedGroups.TestCase)
TestCooperativeGroups = pytest.mark.timeout(300)(CooperativeGroups.TestCase)
