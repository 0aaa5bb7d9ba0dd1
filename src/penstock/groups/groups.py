"""All groups of one shard: the state machine that a coordinator runs.

Finds the group that a request is about and hands the request to the protocol that the group speaks.
A member of the classic protocol may be in a group of the new one, which then answers it in its way.

What the log says is in `group_store.py`, what is forgotten in `expiry_scan.py`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Final, NamedTuple, Self

from penstock.coordinator.outcome import NOTHING, Now, Outcome, Pending, StateRecord
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic import classic_timers
from penstock.groups.classic import heartbeat as classic_heartbeat
from penstock.groups.classic import join as classic_join
from penstock.groups.classic import leave as classic_leave
from penstock.groups.classic import sync as classic_sync
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.classic.join import Asking
from penstock.groups.classic.rebalance import refresh_session
from penstock.groups.consumer import (
    classic_members,
    consumer_heartbeat,
    consumer_leave,
    consumer_timers,
    request_validation,
)
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_heartbeat import Caller
from penstock.groups.consumer.describe import describe
from penstock.groups.consumer.heartbeat_without_log import sign_of_life
from penstock.groups.group_context import Surroundings, TimerKey
from penstock.groups.group_status import (
    GroupStatus,
    Position,
    classic_status,
    consumer_status,
    rebalance_status,
)
from penstock.groups.group_store import Book
from penstock.groups.memory_check import does_commit_grow, does_heartbeat_grow, does_join_grow, does_sync_grow
from penstock.groups.migration import Group, Settled
from penstock.groups.offsets.commit import CommitRequest, check_size, not_older
from penstock.groups.offsets.committed_offsets import Offsets, commit_records, tombstones
from penstock.groups.offsets.consume_rate import RateKey
from penstock.groups.offsets.expiry import TIME_KEY, UNKNOWN_MS, time_of
from penstock.groups.offsets.expiry_scan import FORGETTING, Forgetting, subscribed_topics
from penstock.limits import (
    GROUP_TURN_RECORDS,
    STATE_RECORDS_PER_TURN,
    TIMERS_PER_TURN,
    TOMBSTONES_AT_ONCE,
)
from penstock.protocol.messages.consumer_group_describe import DescribedConsumerGroup
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.describe_groups import DescribedGroup
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest
from penstock.protocol.messages.leave_group import LeaveGroupRequest
from penstock.protocol.messages.list_groups import ListedGroup
from penstock.protocol.messages.sync_group import SyncGroupRequest
from penstock.types import TopicPartition

CLASSIC, CONSUMER = "classic", "consumer"
_EPOCHS_SINCE: Final = 9


class Deletion(NamedTuple):
    records: Sequence[StateRecord]
    refused: Mapping[TopicPartition, ErrorCode]


class GroupDeletion(NamedTuple):
    """A piece of it."""

    records: Sequence[StateRecord]
    is_over: bool
    """With these records nothing of the group is left."""


class Groups:
    def __init__(self, surroundings: Surroundings, kept_bytes: Callable[[], int] = lambda: 0) -> None:
        """`kept_bytes` is what the groups of all shards take in memory."""
        self._surroundings = surroundings
        self._kept_bytes = kept_bytes
        self._is_full = False
        self._book = Book()
        self._forgetting = Forgetting(surroundings, self._book)
        self._kept_ms = UNKNOWN_MS
        """The time that was believed when the log was last written."""

    @property
    def offsets(self) -> Offsets:
        return self._book.offsets

    @property
    def weight_bytes(self) -> int:
        """About what all of this takes in memory."""
        return self._book.weight_bytes + self._book.offsets.weight_bytes

    def unreadable(self) -> Sequence[str]:
        return tuple(self._book.unreadable)

    def unreadable_offsets(self, group_id: str) -> Collection[TopicPartition]:
        """Places that the group has kept, and nobody knows where they are."""
        return self._book.unreadable.offsets_of(group_id)

    def while_full(self) -> Self:
        """Whoever only reads, or shows that it lives, is served while nothing can be written, too."""
        view = copy(self)
        view._is_full = True
        return view

    def _require_disk(self) -> None:
        if self._is_full:
            detail = "nothing can be written: the disk is full, or too few replicas are in sync"
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)

    # The log

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        if record.key == TIME_KEY:
            self._kept_ms = time_of(record.value)
        else:
            self._book.replay(record, timestamp_ms)

    def loaded(self, now: Now) -> Iterable[Outcome]:
        self._book.is_living = True
        if self._book.groups:
            self._surroundings.steady_clock.learn(self._kept_ms, now)
        outcomes = [self._forgetting.soon(now)]
        for group in self._book.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_timers.loaded(self._surroundings, group, now)
            else:
                outcomes.append(classic_timers.loaded(self._surroundings, group, now))
        return outcomes

    # Time, and what happens elsewhere

    def due(self) -> float | None:
        return self._surroundings.timers.due()

    def expire(self, now: Now) -> Iterable[Outcome]:
        """Each group for itself: together they could be more than one batch may hold.

        And no more of them than others can wait for. Those that are left are due still.
        """
        timers = self._surroundings.timers
        expired = timers.take_expired(now.monotonic, TIMERS_PER_TURN)
        by_group: dict[str, list[TimerKey]] = {}
        for key in expired:
            if key != FORGETTING:
                by_group.setdefault(key.group_id, []).append(key)
        records = 0
        for group_id, keys in by_group.items():
            if records >= STATE_RECORDS_PER_TURN:
                for key in keys:
                    timers.set(key, now.monotonic)
                continue
            outcome = self._expire_group(group_id, keys, now)
            records += GROUP_TURN_RECORDS + len(outcome.records)
            yield outcome
        if FORGETTING in expired:
            if records >= STATE_RECORDS_PER_TURN:
                timers.set(FORGETTING, now.monotonic)
            else:
                yield from self._forgetting.take_turn(now)

    def _expire_group(self, group_id: str, keys: Sequence[TimerKey], now: Now) -> Outcome:
        group = self._book.groups.get(group_id)
        if group is None:
            return NOTHING
        if isinstance(group, ConsumerGroup):
            expiring = [key for key in keys if key.kind in consumer_timers.CONSUMER_TIMERS]
            return self._settle(consumer_leave.expire(self._surroundings, group, expiring, now), now)
        outcome = NOTHING
        for key in keys:
            outcome += classic_timers.expire(self._surroundings, group, key, now)
        self._book.forget_if_unused(group)
        return outcome

    def topics_changed(self, now: Now) -> Outcome:
        """Topics came, went or grew: groups look at them anew when a member reports next."""
        for group in self._book.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_timers.topics_changed(group)
        return NOTHING

    def topics_deleted(self, now: Now) -> Outcome:
        return self._forgetting.soon(now)

    def parked(self) -> Iterable[Pending]:
        for group in self._book.groups.values():
            yield from group.parked()

    # Members

    def join(self, request: JoinGroupRequest, asking: Asking, now: Now) -> Outcome:
        self._require_disk()
        group = self._book.groups.get(request.group_id)
        if does_join_grow(group, request):
            self._check_room(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if isinstance(group, ConsumerGroup):
            return self._settle(classic_members.join(self._surroundings, group, request, asking, now), now)
        if group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
            group = ClassicGroup.new(request.group_id, now)
        outcome = classic_join.join(self._surroundings, group, request, asking, now)
        return self._settle(Settled(group, outcome), now)

    def sync(self, request: SyncGroupRequest, asking: Asking, now: Now) -> Outcome:
        self._require_disk()
        group = self._book.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._settle(classic_members.sync(self._surroundings, group, request, asking, now), now)
        if does_sync_grow(group, request):
            self._check_room(ErrorCode.UNKNOWN_SERVER_ERROR)
        return classic_sync.sync(self._surroundings, group, request, asking.pending, now)

    def heartbeat(self, request: HeartbeatRequest, asking: Asking, now: Now) -> Outcome:
        group = self._book.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._settle(
                classic_members.heartbeat(self._surroundings, group, request, asking, now), now
            )
        return classic_heartbeat.heartbeat(self._surroundings, group, request, asking.pending, now)

    def leave(self, request: LeaveGroupRequest, asking: Asking, now: Now) -> Outcome:
        self._require_disk()
        group = self._book.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._settle(classic_members.leave(self._surroundings, group, request, asking, now), now)
        outcome = classic_leave.leave(self._surroundings, group, request, asking, now)
        if group is not None:
            self._book.forget_if_unused(group)
        return outcome

    def consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest, caller: Caller, now: Now) -> Outcome:
        group = self._book.groups.get(request.group_id)
        if self._is_full:
            return sign_of_life(self._surroundings, group, request, caller, now)
        if does_heartbeat_grow(group, request):
            self._check_room(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return self._settle(
            consumer_heartbeat.heartbeat(self._surroundings, group, request, caller, now), now
        )

    def _settle(self, settled: Settled, now: Now) -> Outcome:
        """Before the records are replayed, which then find the group that they are about."""
        self._keep_time_soon(now)
        self._book.settle(settled.group)
        self._book.forget_if_unused(settled.group)
        return settled.outcome

    def _keep_time_soon(self, now: Now) -> None:
        """A log that has groups says what time it is; the first look through them writes that."""
        if self._kept_ms == UNKNOWN_MS:
            self._forgetting.soon(now)

    # Offsets

    def commit(self, request: CommitRequest, now: Now) -> Sequence[StateRecord]:
        self._require_disk()
        if request.group_id:  # old clients may keep a place without a group
            classic_join.check_group_id(request.group_id)
        group = self._book.groups.get(request.group_id)
        if group is None and request.generation >= 0:
            # A member of a group that nobody knows any more.
            is_new = request.version >= _EPOCHS_SINCE
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)
        if isinstance(group, ConsumerGroup):
            request_validation.validate_commit(group, request.member_id, request.generation, request.version)
        elif group is not None:
            self._check_classic_commit(group, request, now)
        check_size(request)
        if does_commit_grow(self.offsets, request):
            self._check_room(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        self._note_rates(request, now)
        self._keep_time_soon(now)
        earliest_ms = self._surroundings.steady_clock.earliest(now)
        return commit_records(request.group_id, not_older(request.commits, earliest_ms))

    def _check_room(self, code: ErrorCode) -> None:
        kept_bytes, most = self._kept_bytes(), self._surroundings.limits.state_bytes_max
        if kept_bytes > most:
            detail = f"all groups together take {kept_bytes} bytes; {most} are allowed"
            raise ApiError(code, f"{detail}: delete groups that nobody needs")

    def _check_classic_commit(self, group: ClassicGroup, request: CommitRequest, now: Now) -> None:
        classic_heartbeat.validate_commit(group, request.member_id, request.instance_id, request.generation)
        if request.member_id in group.members:
            refresh_session(self._surroundings, group, request.member_id, now)

    def _note_rates(self, request: CommitRequest, now: Now) -> None:
        group_id, rates = request.group_id, self._surroundings.rates
        for (topic, index), committed in request.commits:
            before = self.offsets.find(group_id, topic, index)
            rates.note(RateKey(group_id, topic, index), before, committed.offset, now.wall_ms)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """ApiError if a member of the new protocol asks that is not what it believes to be."""
        group = self._book.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            request_validation.validate_fetch(group, member_id, member_epoch)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> Deletion:
        self._require_disk()
        group = self._book.find(group_id)
        subscribed = frozenset[str]() if group.is_empty else subscribed_topics(group)
        if subscribed is None:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
        refused = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            for partition in partitions
            if partition.topic in subscribed
        }
        unreadable = self._book.unreadable.offsets_of(group_id)
        known = [
            partition
            for partition in partitions
            if partition not in refused
            and (partition in unreadable or self.offsets.find(group_id, *partition) is not None)
        ]
        return Deletion(tombstones(group_id, known), refused)

    # Groups as people see them

    def delete_group(self, group_id: str, now: Now) -> GroupDeletion:
        """Its offsets first, in pieces. Between them there is a group that can be deleted."""
        self._require_disk()
        group = self._book.find(group_id)
        if not group.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
        places = list(islice(self._book.places(group_id), TOMBSTONES_AT_ONCE + 1))
        gone = tombstones(group_id, places[:TOMBSTONES_AT_ONCE])
        if len(places) > TOMBSTONES_AT_ONCE:
            return GroupDeletion(gone, False)
        return GroupDeletion([*gone, *self._forgetting.end(group, now)], True)

    def list(self) -> Iterator[ListedGroup]:
        return map(_listed, self._shown())

    def names(self) -> Iterator[str]:
        return (group.group_id for group in self._shown())

    def _shown(self) -> Iterator[Group]:
        """A client that was told its id and has not joined with it makes no group yet."""
        for group in self._book.groups.values():
            is_begun = isinstance(group, ConsumerGroup) or group.members or group.generation
            if is_begun or self._book.has_offsets(group.group_id):
                yield group

    def describe_classic(self, group_id: str) -> DescribedGroup | None:
        group = self._book.groups.get(group_id)
        return group.describe() if isinstance(group, ClassicGroup) else None

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup | None:
        group = self._book.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        return describe(group, self._surroundings.topics(), self._surroundings.config().consumer.assignors)

    def status(self, group_id: str, now: Now) -> GroupStatus | None:
        """Everything that people may want to know of a group, but where the logs end."""
        group = self._book.groups.get(group_id)
        if group is None:
            return None
        rebalances = rebalance_status(group.rebalances, now)
        positions = self._positions(group_id, now)
        if isinstance(group, ClassicGroup):
            return classic_status(group.describe(), rebalances, positions)
        described = self.describe_consumer(group_id)
        assert described is not None, "it is a consumer group"
        return consumer_status(described, rebalances, positions)

    def _positions(self, group_id: str, now: Now) -> Sequence[Position]:
        rates = self._surroundings.rates
        return [
            Position(partition, committed, rates.rate(RateKey(group_id, *partition), now.wall_ms))
            for partition, committed in self.offsets.partitions(group_id)
        ]


def _listed(group: Group) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group.group_id, CONSUMER, str(group.state), CONSUMER)
    return ListedGroup(group.group_id, group.protocol_type or "", str(group.state), CLASSIC)
