"""The state machine of the group coordinator: all groups of one shard.

It finds the group of a request and passes the request to the code of the group's protocol. A member of the
classic protocol may belong to a group of the consumer protocol; `classic_requests.py` then handles its
requests.

`group_store.py` holds the state that is replayed from the log, and `expiry_scan.py` deletes what expires.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Final, NamedTuple, Self

from penstock.coordinator.outcome import (
    EMPTY_OUTCOME,
    CommandOutcome,
    Now,
    StateRecord,
    WaitingRequest,
    not_writable,
)
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic import classic_timers
from penstock.groups.classic import heartbeat as classic_heartbeat
from penstock.groups.classic import join as classic_join
from penstock.groups.classic import leave as classic_leave
from penstock.groups.classic import sync as classic_sync
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.classic.rebalance import refresh_session
from penstock.groups.consumer import (
    classic_requests,
    consumer_heartbeat,
    consumer_leave,
    consumer_timers,
    request_validation,
)
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller
from penstock.groups.consumer.describe import describe
from penstock.groups.consumer.read_only_heartbeat import read_only_heartbeat
from penstock.groups.group_context import GroupContext, TimerKey
from penstock.groups.group_status import (
    GroupStatus,
    OffsetStatus,
    classic_status,
    consumer_status,
    rebalance_status,
)
from penstock.groups.group_store import GroupStore
from penstock.groups.memory_check import (
    commit_needs_memory,
    heartbeat_needs_memory,
    join_needs_memory,
    sync_needs_memory,
)
from penstock.groups.migration import Group, GroupTransition
from penstock.groups.offsets.commit import CommitRequest, check_commit_size, with_min_timestamp
from penstock.groups.offsets.committed_offsets import CommittedOffsets, commit_records, offset_tombstones
from penstock.groups.offsets.consume_rate import RateKey
from penstock.groups.offsets.expiry_rules import TIME_RECORD_KEY, UNKNOWN_TIME_MS, parse_time_record
from penstock.groups.offsets.expiry_scan import EXPIRY_SCAN_TIMER, ExpiryScan, subscribed_topics
from penstock.limits import (
    GROUP_TURN_RECORDS,
    STATE_RECORDS_PER_CHUNK,
    TIMERS_PER_CHUNK,
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
_MEMBER_EPOCHS_SINCE: Final = 9


class OffsetDeletion(NamedTuple):
    records: Sequence[StateRecord]
    rejected: Mapping[TopicPartition, ErrorCode]


class GroupDeletionChunk(NamedTuple):
    """One chunk of the deletion of a group."""

    records: Sequence[StateRecord]
    is_done: bool
    """True: these records delete the last of the group."""


class GroupStateMachine:
    def __init__(self, context: GroupContext, total_memory_bytes: Callable[[], int] = lambda: 0) -> None:
        """`total_memory_bytes` returns the memory of the groups of all shards."""
        self._context = context
        self._total_memory_bytes = total_memory_bytes
        self._is_read_only = False
        self.store = GroupStore()
        self._expiry_scan = ExpiryScan(context, self.store)
        self._recorded_time_ms = UNKNOWN_TIME_MS
        """Trusted time in the newest time record of the log."""

    @property
    def offsets(self) -> CommittedOffsets:
        return self.store.offsets

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the groups and offsets of this shard."""
        return self.store.memory_bytes + self.store.offsets.memory_bytes

    def unreadable(self) -> Sequence[str]:
        return tuple(self.store.unreadable)

    def unreadable_offsets(self, group_id: str) -> Collection[TopicPartition]:
        """Partitions whose committed offset cannot be read."""
        return self.store.unreadable.offsets_of(group_id)

    def read_only_view(self) -> Self:
        """A view that serves reads and heartbeats while the log is not writable; writes are rejected."""
        view = copy(self)
        view._is_read_only = True
        return view

    def _require_writable(self) -> None:
        if self._is_read_only:
            raise not_writable()

    # The log

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        if record.key == TIME_RECORD_KEY:
            self._recorded_time_ms = parse_time_record(record.value)
        else:
            self.store.replay(record, timestamp_ms)

    def on_loaded(self, now: Now) -> Iterable[CommandOutcome]:
        self.store.is_active = True
        if self.store.groups:
            self._context.trusted_clock.restore(self._recorded_time_ms, now)
        outcomes = [self._expiry_scan.schedule_soon(now)]
        for group in self.store.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_timers.on_loaded(self._context, group, now)
            else:
                outcomes.append(classic_timers.on_loaded(self._context, group, now))
        return outcomes

    # Time, and what happens elsewhere

    def next_deadline(self) -> float | None:
        return self._context.timers.next_deadline()

    def expire(self, now: Now) -> Iterable[CommandOutcome]:
        """Expire due timers, with one outcome per group: together they could exceed one batch.

        The work per call is bounded so that other requests are not delayed; the remaining timers stay due.
        """
        timers = self._context.timers
        expired = timers.pop_expired(now.monotonic, TIMERS_PER_CHUNK)
        by_group: dict[str, list[TimerKey]] = {}
        for key in expired:
            if key != EXPIRY_SCAN_TIMER:
                by_group.setdefault(key.group_id, []).append(key)
        records = 0
        for group_id, keys in by_group.items():
            if records >= STATE_RECORDS_PER_CHUNK:
                # Over budget: put the timers back, due at once, for the next call.
                for key in keys:
                    timers.set(key, now.monotonic)
                continue
            outcome = self._expire_group(group_id, keys, now)
            records += GROUP_TURN_RECORDS + len(outcome.records)
            yield outcome
        if EXPIRY_SCAN_TIMER in expired:
            if records >= STATE_RECORDS_PER_CHUNK:
                timers.set(EXPIRY_SCAN_TIMER, now.monotonic)
            else:
                yield from self._expiry_scan.run_chunk(now)

    def _expire_group(self, group_id: str, keys: Sequence[TimerKey], now: Now) -> CommandOutcome:
        group = self.store.groups.get(group_id)
        if group is None:
            return EMPTY_OUTCOME
        if isinstance(group, ConsumerGroup):
            expiring = [key for key in keys if key.kind in consumer_timers.CONSUMER_TIMERS]
            return self._apply_transition(consumer_leave.expire(self._context, group, expiring, now), now)
        outcome = EMPTY_OUTCOME
        for key in keys:
            outcome += classic_timers.expire(self._context, group, key, now)
        self.store.remove_if_unused(group)
        return outcome

    def topics_changed(self, now: Now) -> CommandOutcome:
        """Mark all groups: each checks its topics again at the next heartbeat of a member."""
        for group in self.store.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_timers.topics_changed(group)
        return EMPTY_OUTCOME

    def schedule_expiry_scan(self, now: Now) -> CommandOutcome:
        """Remove expired offsets soon, and those of topics that were deleted."""
        return self._expiry_scan.schedule_soon(now)

    def parked(self) -> Iterable[WaitingRequest]:
        for group in self.store.groups.values():
            yield from group.parked()

    # Members

    def join(self, request: JoinGroupRequest, caller: ClassicCaller, now: Now) -> CommandOutcome:
        self._require_writable()
        group = self.store.groups.get(request.group_id)
        if join_needs_memory(group, request):
            self._check_memory(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if isinstance(group, ConsumerGroup):
            return self._apply_transition(
                classic_requests.join(self._context, group, request, caller, now), now
            )
        if group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
            group = ClassicGroup.new(request.group_id, now)
        outcome = classic_join.join(self._context, group, request, caller, now)
        return self._apply_transition(GroupTransition(group, outcome), now)

    def sync(self, request: SyncGroupRequest, caller: ClassicCaller, now: Now) -> CommandOutcome:
        self._require_writable()
        group = self.store.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._apply_transition(
                classic_requests.sync(self._context, group, request, caller, now), now
            )
        if sync_needs_memory(group, request):
            self._check_memory(ErrorCode.UNKNOWN_SERVER_ERROR)
        return classic_sync.sync(self._context, group, request, caller.pending, now)

    def heartbeat(self, request: HeartbeatRequest, caller: ClassicCaller, now: Now) -> CommandOutcome:
        group = self.store.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._apply_transition(
                classic_requests.heartbeat(self._context, group, request, caller, now), now
            )
        return classic_heartbeat.heartbeat(self._context, group, request, caller.pending, now)

    def leave(self, request: LeaveGroupRequest, caller: ClassicCaller, now: Now) -> CommandOutcome:
        self._require_writable()
        group = self.store.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._apply_transition(
                classic_requests.leave(self._context, group, request, caller, now), now
            )
        outcome = classic_leave.leave(self._context, group, request, caller, now)
        if group is not None:
            self.store.remove_if_unused(group)
        return outcome

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: ConsumerCaller, now: Now
    ) -> CommandOutcome:
        group = self.store.groups.get(request.group_id)
        if self._is_read_only:
            return read_only_heartbeat(self._context, group, request, caller, now)
        if heartbeat_needs_memory(group, request):
            self._check_memory(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return self._apply_transition(
            consumer_heartbeat.heartbeat(self._context, group, request, caller, now), now
        )

    def _apply_transition(self, transition: GroupTransition, now: Now) -> CommandOutcome:
        """Store the group of a transition. The caller replays the records afterwards, into this group."""
        self._schedule_time_record(now)
        self.store.settle(transition.group)
        return transition.outcome

    def _schedule_time_record(self, now: Now) -> None:
        """Schedule an expiry scan if the log has no time record yet: the scan writes one."""
        if self._recorded_time_ms == UNKNOWN_TIME_MS:
            self._expiry_scan.schedule_soon(now)

    # Offsets

    def commit(self, request: CommitRequest, now: Now) -> Sequence[StateRecord]:
        self._require_writable()
        if request.group_id:  # old clients may commit without a group
            classic_join.validate_group_id(request.group_id)
        group = self.store.groups.get(request.group_id)
        if group is None and request.generation >= 0:
            # The client claims membership of a group that does not exist any more.
            is_new = request.version >= _MEMBER_EPOCHS_SINCE
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)
        if isinstance(group, ConsumerGroup):
            request_validation.validate_commit(group, request.member_id, request.generation, request.version)
        elif group is not None:
            self._check_classic_commit(group, request, now)
        check_commit_size(request)
        if commit_needs_memory(self.offsets, request):
            self._check_memory(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        # Last, because these two change state: everything that can reject the commit comes before.
        self._record_rates(request, now)
        self._schedule_time_record(now)
        earliest_ms = self._context.trusted_clock.earliest(now)
        return commit_records(request.group_id, with_min_timestamp(request.commits, earliest_ms))

    def _check_memory(self, code: ErrorCode) -> None:
        total_memory_bytes, most = self._total_memory_bytes(), self._context.limits.state_bytes_max
        if total_memory_bytes > most:
            detail = f"all groups together take {total_memory_bytes} bytes; {most} are allowed"
            raise ApiError(code, f"{detail}: delete groups that are no longer used")

    def _check_classic_commit(self, group: ClassicGroup, request: CommitRequest, now: Now) -> None:
        classic_heartbeat.validate_commit(group, request.member_id, request.instance_id, request.generation)
        if request.member_id in group.members:
            refresh_session(self._context, group, request.member_id, now)

    def _record_rates(self, request: CommitRequest, now: Now) -> None:
        group_id, rates = request.group_id, self._context.rates
        for (topic, index), committed in request.commits:
            before = self.offsets.find(group_id, topic, index)
            rates.record_commit(RateKey(group_id, topic, index), before, committed.offset, now.wall_ms)

    def validate_offset_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise ApiError if a member of the consumer protocol sends a wrong member id or epoch."""
        group = self.store.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            request_validation.validate_fetch(group, member_id, member_epoch)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> OffsetDeletion:
        self._require_writable()
        group = self.store.find(group_id)
        subscribed = frozenset[str]() if group.is_empty else subscribed_topics(group)
        if subscribed is None:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
        rejected = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            for partition in partitions
            if partition.topic in subscribed
        }
        unreadable = self.store.unreadable.offsets_of(group_id)
        known = [
            partition
            for partition in partitions
            if partition not in rejected
            and (partition in unreadable or self.offsets.find(group_id, *partition) is not None)
        ]
        return OffsetDeletion(offset_tombstones(group_id, known), rejected)

    # Administration

    def delete_group(self, group_id: str, now: Now) -> GroupDeletionChunk:
        """Delete the offsets first, in chunks. Between chunks the group still exists and can be deleted
        again."""
        self._require_writable()
        group = self.store.find(group_id)
        if not group.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
        # One more than a chunk, to detect whether this chunk is the last.
        partitions_with_offsets = list(
            islice(self.store.partitions_with_offsets(group_id), TOMBSTONES_AT_ONCE + 1)
        )
        gone = offset_tombstones(group_id, partitions_with_offsets[:TOMBSTONES_AT_ONCE])
        if len(partitions_with_offsets) > TOMBSTONES_AT_ONCE:
            return GroupDeletionChunk(gone, False)
        return GroupDeletionChunk([*gone, *self._expiry_scan.end(group, now)], True)

    def list(self) -> Iterator[ListedGroup]:
        return map(_listed, self._visible_groups())

    def names(self) -> Iterator[str]:
        return (group.group_id for group in self._visible_groups())

    def _visible_groups(self) -> Iterator[Group]:
        """Groups to list. A group that has only pending member ids is not listed."""
        for group in self.store.groups.values():
            is_begun = isinstance(group, ConsumerGroup) or group.members or group.generation
            if is_begun or self.store.has_offsets(group.group_id):
                yield group

    def describe_classic(self, group_id: str) -> DescribedGroup | None:
        group = self.store.groups.get(group_id)
        return group.describe() if isinstance(group, ClassicGroup) else None

    def describe_consumer(self, group_id: str) -> DescribedConsumerGroup | None:
        group = self.store.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        return describe(group, self._context.topics(), self._context.config().consumer.assignors)

    def status(self, group_id: str, now: Now) -> GroupStatus | None:
        """Status of a group for the operator, without the log end offsets."""
        group = self.store.groups.get(group_id)
        if group is None:
            return None
        rebalances = rebalance_status(group.rebalances, now)
        positions = self._positions(group_id, now)
        if isinstance(group, ClassicGroup):
            return classic_status(group.describe(), rebalances, positions)
        described = self.describe_consumer(group_id)
        assert described is not None, "it is a consumer group"
        return consumer_status(described, rebalances, positions)

    def _positions(self, group_id: str, now: Now) -> Sequence[OffsetStatus]:
        rates = self._context.rates
        return [
            OffsetStatus(partition, committed, rates.rate(RateKey(group_id, *partition), now.wall_ms))
            for partition, committed in self.offsets.partitions(group_id)
        ]


def _listed(group: Group) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group.group_id, CONSUMER, str(group.state), CONSUMER)
    return ListedGroup(group.group_id, group.protocol_type or "", str(group.state), CLASSIC)
