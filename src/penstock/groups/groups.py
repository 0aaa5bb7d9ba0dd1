"""All groups of one shard: the state machine that a coordinator runs.

Finds the group that a request is about, hands the request to the protocol that the group speaks, and
keeps what is common to all groups: committed offsets, the look-through for what may be forgotten, and
the log.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.coordinator.outcome import NOTHING, Now, Outcome, Pending, StateRecord
from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.groups import classic_heartbeat, classic_join, classic_leave, classic_sync, classic_timers
from penstock.groups.classic_group import ClassicGroup
from penstock.groups.classic_join import Asking
from penstock.groups.classic_rebalance import refresh_session
from penstock.groups.commits import CommitRequest
from penstock.groups.expiry import GroupFacts, Rounds, SteadyClock, expired, of_other_topics
from penstock.groups.offsets import Committed, Offsets, commit_records, tombstones
from penstock.groups.rates import RateKey
from penstock.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    UnknownKey,
    decode_key,
    decode_value,
    encode_key,
)
from penstock.groups.status import GroupStatus, Position, classic_status, rebalance_status
from penstock.groups.surroundings import Client, Surroundings, TimerKey
from penstock.limits import GROUPS_EXPIRED_PER_TURN
from penstock.protocol.messages.describe_groups import DescribedGroup
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest
from penstock.protocol.messages.leave_group import LeaveGroupRequest
from penstock.protocol.messages.list_groups import ListedGroup
from penstock.protocol.messages.sync_group import SyncGroupRequest
from penstock.types import TopicPartition

_EXPIRY: Final = TimerKey("offsets", "")
_NEXT_TURN_SECONDS: Final = 0.01
_AFTER_DELETION_SECONDS: Final = 1.0
"""Topics are often deleted many at a time: one look through all groups is enough for them."""
_EPOCHS_SINCE: Final = 9


class Deletion(NamedTuple):
    records: Sequence[StateRecord]
    refused: Mapping[TopicPartition, ErrorCode]


class Groups:
    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._groups: dict[str, ClassicGroup] = {}
        self._is_loaded = False
        self._clock = SteadyClock()
        self._rounds = Rounds(GROUPS_EXPIRED_PER_TURN)
        self.offsets = Offsets()
        self.records_skipped = 0
        """Records in the log that nobody could read."""

    # The log

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        try:
            key = decode_key(record.key)
            if isinstance(key, UnknownKey):
                return
            if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
                self.offsets.replay(key, record.value)
                self._keep_holder(key.group)
            elif isinstance(key, GroupMetadataKey):
                self._replay_classic(key.group, decode_value(key, record.value))
        except CorruptData:
            self.records_skipped += 1

    def _keep_holder(self, group_id: str) -> None:
        """Whatever has offsets is a group, if only a name."""
        if group_id not in self._groups and self.offsets.has_any(group_id):
            self._add_classic(group_id)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        if value is None:
            self._groups.pop(group_id, None)
            self._keep_holder(group_id)
            return
        self._add_classic(group_id).restore(value)

    def _add_classic(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ClassicGroup(group_id)
            group.is_living = self._is_loaded
        return group

    def loaded(self, now: Now) -> Outcome:
        self._is_loaded = True
        self._surroundings.timers.set(_EXPIRY, now.monotonic + _AFTER_DELETION_SECONDS)
        outcome = NOTHING
        for group in self._groups.values():
            outcome += classic_timers.loaded(self._surroundings, group, now)
        return outcome

    # Time

    def due(self) -> float | None:
        return self._surroundings.timers.due()

    def expire(self, now: Now) -> Outcome:
        outcome = NOTHING
        for key in self._surroundings.timers.take_expired(now.monotonic):
            outcome += self._expire_offsets(now) if key == _EXPIRY else self._expire_timer(key, now)
        return outcome

    def _expire_timer(self, key: TimerKey, now: Now) -> Outcome:
        group = self._groups.get(key.group_id)
        if group is None:
            return NOTHING
        outcome = classic_timers.expire(self._surroundings, group, key, now)
        self._forget_if_unused(group)
        return outcome

    def _expire_offsets(self, now: Now) -> Outcome:
        """A few groups at a time, so that nobody else waits for all of them."""
        config = self._surroundings.config().offsets
        turn, is_last = self._rounds.next(self._groups.keys())
        wait = config.check_ms / 1000 if is_last else _NEXT_TURN_SECONDS
        self._surroundings.timers.set(_EXPIRY, now.monotonic + wait)
        now_ms = self._clock.read(now)
        records: list[StateRecord] = []
        for group_id in turn:
            group = self._groups.get(group_id)
            if group is not None:
                gone = set(expired(self.offsets, group_id, _facts(group), now_ms, config.retention_ms))
                gone.update(of_other_topics(self.offsets, group_id, self._exists))
                records += tombstones(group_id, gone)
                if group.is_empty and not group.pending_members and self._are_all(group_id, gone):
                    records += self._end(group, now)
        return Outcome(records)

    def _are_all(self, group_id: str, partitions: set[TopicPartition]) -> bool:
        return all(partition in partitions for partition, _ in self.offsets.partitions(group_id))

    def _exists(self, name: str, committed: Committed) -> bool:
        topic = self._surroundings.topics().by_name.get(name)
        return topic is not None and committed.is_of(topic.id)

    def topics_deleted(self, now: Now) -> Outcome:
        """What was committed for them is forgotten soon; it is not shown even before."""
        soon = now.monotonic + _AFTER_DELETION_SECONDS
        due = self._surroundings.timers.deadline(_EXPIRY)
        if due is None or due > soon:
            self._surroundings.timers.set(_EXPIRY, soon)
        return NOTHING

    def parked(self) -> Iterable[Pending]:
        for group in self._groups.values():
            yield from group.parked()

    # Classic members

    def join(
        self, request: JoinGroupRequest, version: int, client: Client, pending: Pending, now: Now
    ) -> Outcome:
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
            group = ClassicGroup.new(request.group_id, now)
        asking = Asking(version, client, pending)
        outcome = classic_join.join(self._surroundings, group, request, asking, now)
        self._groups[request.group_id] = group
        self._forget_if_unused(group)
        return outcome

    def sync(self, request: SyncGroupRequest, pending: Pending, now: Now) -> Outcome:
        group = self._groups.get(request.group_id)
        return classic_sync.sync(self._surroundings, group, request, pending, now)

    def heartbeat(self, request: HeartbeatRequest, pending: Pending, now: Now) -> Outcome:
        group = self._groups.get(request.group_id)
        return classic_heartbeat.heartbeat(self._surroundings, group, request, pending, now)

    def leave(self, request: LeaveGroupRequest, version: int, pending: Pending, now: Now) -> Outcome:
        group = self._groups.get(request.group_id)
        asking = Asking(version, Client("", ""), pending)
        outcome = classic_leave.leave(self._surroundings, group, request, asking, now)
        if group is not None:
            self._forget_if_unused(group)
        return outcome

    def _forget_if_unused(self, group: ClassicGroup) -> None:
        """Of a client that asked for an id and never came back nothing stays."""
        if group.is_unused and not self.offsets.has_any(group.group_id):
            self._groups.pop(group.group_id, None)

    # Offsets

    def commit(self, request: CommitRequest, now: Now) -> Sequence[StateRecord]:
        group = self._groups.get(request.group_id)
        if group is not None:
            classic_heartbeat.validate_commit(
                group, request.member_id, request.instance_id, request.generation
            )
            if request.member_id in group.members:
                refresh_session(self._surroundings, group, request.member_id, now)
        elif request.generation >= 0:
            # A member of a group that nobody knows any more.
            is_new = request.version >= _EPOCHS_SINCE
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)
        self._note_rates(request, now)
        return commit_records(request.group_id, request.commits)

    def _note_rates(self, request: CommitRequest, now: Now) -> None:
        group_id, rates = request.group_id, self._surroundings.rates
        for (topic, index), committed in request.commits:
            before = self.offsets.find(group_id, topic, index)
            rates.note(RateKey(group_id, topic, index), before, committed.offset, now.wall_ms)

    def may_fetch_offsets(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> Deletion:
        group = self._find(group_id)
        subscribed: frozenset[str] = frozenset()
        if not group.is_empty:
            topics = group.subscribed_topics()
            if topics is None:
                raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
            subscribed = topics
        refused = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            for partition in partitions
            if partition.topic in subscribed
        }
        known = [
            partition
            for partition in partitions
            if partition not in refused and self.offsets.find(group_id, *partition) is not None
        ]
        return Deletion(tombstones(group_id, known), refused)

    # Groups as people see them

    def delete_group(self, group_id: str, now: Now) -> Sequence[StateRecord]:
        group = self._find(group_id)
        if not group.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
        kept = [partition for partition, _ in self.offsets.partitions(group_id)]
        return [*tombstones(group_id, kept), *self._end(group, now)]

    def _end(self, group: ClassicGroup, now: Now) -> list[StateRecord]:
        ended = classic_timers.end(self._surroundings, group, now)
        assert not ended.replies, "nobody waits in a group without members"
        return [StateRecord(encode_key(GroupMetadataKey(group.group_id)), None)]

    def list(self) -> Iterator[ListedGroup]:
        for group in self._groups.values():
            yield ListedGroup(group.group_id, group.protocol_type or "", str(group.state), "classic")

    def names(self) -> Iterable[str]:
        return self._groups.keys()

    def status(self, group_id: str, now: Now) -> GroupStatus | None:
        """Everything that people may want to know of a group, but where the logs end."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        rebalances = rebalance_status(group.rebalances, now)
        return classic_status(group.describe(), rebalances, self._positions(group_id, now))

    def _positions(self, group_id: str, now: Now) -> Sequence[Position]:
        rates = self._surroundings.rates
        return [
            Position(partition, committed, rates.rate(RateKey(group_id, *partition), now.wall_ms))
            for partition, committed in self.offsets.partitions(group_id)
        ]

    def describe_classic(self, group_id: str) -> DescribedGroup | None:
        group = self._groups.get(group_id)
        return None if group is None else group.describe()

    def _find(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return group


def _facts(group: ClassicGroup) -> GroupFacts:
    if group.members:
        topics = group.subscribed_topics()
        return GroupFacts(None, lambda topic: topics is None or topic in topics, has_members=True)
    was_used = group.protocol_type is not None
    return GroupFacts(group.current_state_timestamp_ms if was_used else None)
