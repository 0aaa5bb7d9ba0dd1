"""What OffsetFetch tells of groups: looked up at one moment, and put into words in turns with others.

Looking takes little: it notes what there is. Making replies of it takes longer, and happens a few
thousand partitions at a time; so does encoding them. Both take from the room of the reply, which a
short request may use up.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.limits import OFFSETS_PER_TURN
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.compiler import encoder
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    EncodedPartition,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from penstock.security.access import Operation, ResourceType
from penstock.types import NO_EPOCH, NO_OFFSET, NO_TOPIC_ID, TopicId

GROUP_ERROR_SINCE, TOPIC_IDS_SINCE = 2, 10
UNREADABLE: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""Clients give up upon it, instead of beginning anew."""
_PARTITION_BYTES: Final = 250
_TOPIC_BYTES: Final = 500
"""What a partition and a topic take in memory and in the reply, notes aside."""

PartitionOffset = tuple[int, OffsetAndMetadata | None, ErrorCode]
"""A partition, what was committed there, and why it cannot be told."""


class TopicOffsets(NamedTuple):
    """What a group has kept in one topic, as it was when it was asked for."""

    name: str
    topic_id: TopicId
    partition_offsets: Iterable[PartitionOffset]
    is_requested: bool = True
    """It is in the reply even if there is nothing to tell of it."""


class GroupOffsetsFound(NamedTuple):
    """All that is to be told of a group."""

    group: OffsetFetchRequestGroup
    code: ErrorCode
    topics: Sequence[TopicOffsets] = ()


# Looking


class OffsetLookup:
    """At groups, for one request."""

    def __init__(self, image: ClusterImage, context: RequestContext, budget: ReplyBudget) -> None:
        self._image = image
        self._context = context
        self._budget = budget

    def look_up(self, group: OffsetFetchRequestGroup, state: GroupStateMachine) -> GroupOffsetsFound:
        """ApiError: the group is refused."""
        if group.group_id in self._context.denied:
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        self._budget.take(_TOPIC_BYTES + len(group.group_id))
        state.validate_offset_fetch(group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            return GroupOffsetsFound(group, ErrorCode.NONE, list(self._all(group.group_id, state)))
        return GroupOffsetsFound(
            group, ErrorCode.NONE, [self._topic(group.group_id, topic, state) for topic in group.topics]
        )

    def _all(self, group_id: str, state: GroupStateMachine) -> Iterator[TopicOffsets]:
        """Everything that the group has kept, as far as the client may see it."""
        unreadable: dict[str, list[int]] = {}
        for name, index in state.unreadable_offsets(group_id):
            unreadable.setdefault(name, []).append(index)
        offsets = state.offsets.of_group(group_id)
        for name in (*offsets, *(name for name in unreadable if name not in offsets)):
            topic = self._image.topics.get(name)
            if topic is None or not self._may_describe(name):
                continue
            bad, partitions = unreadable.get(name, ()), offsets.get(name, {})
            self._budget.take(_TOPIC_BYTES + _PARTITION_BYTES * (len(partitions) + len(bad)))
            # A copy is made in no time; it is gone through when it is put into words.
            yield TopicOffsets(
                name, topic.id, _kept(dict(partitions), topic.id, tuple(bad)), is_requested=False
            )

    def _topic(
        self, group_id: str, requested: OffsetFetchRequestTopic, state: GroupStateMachine
    ) -> TopicOffsets:
        by_id = self._context.version >= TOPIC_IDS_SINCE
        image = self._image
        topic = image.topics_by_id.get(requested.topic_id) if by_id else image.topics.get(requested.name)
        name = topic.name if topic else requested.name
        self._budget.take(_TOPIC_BYTES + _PARTITION_BYTES * len(requested.partition_indexes))
        code = ErrorCode.NONE
        if by_id and topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._may_describe(name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partition_offsets: Iterator[PartitionOffset]
        if code is ErrorCode.NONE:
            topic_id = topic.id if topic else NO_TOPIC_ID
            partition_offsets = _requested(requested, name, topic_id, group_id, state)
        else:
            partition_offsets = ((index, None, code) for index in requested.partition_indexes)
        return TopicOffsets(requested.name, requested.topic_id, partition_offsets)

    def _may_describe(self, name: str) -> bool:
        return self._context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _kept(
    partitions: Mapping[int, OffsetAndMetadata], topic_id: TopicId, bad: Collection[int]
) -> Iterator[PartitionOffset]:
    for index, committed in partitions.items():
        if committed.is_for_topic(topic_id) and index not in bad:
            yield index, committed, ErrorCode.NONE
    for index in bad:
        yield index, None, UNREADABLE


def _requested(
    requested: OffsetFetchRequestTopic, name: str, topic_id: TopicId, group_id: str, state: GroupStateMachine
) -> Iterator[PartitionOffset]:
    """What there is is noted at once, and gone through when it is put into words."""
    indexes = requested.partition_indexes
    kept = list(map(state.offsets.of_group(group_id).get(name, {}).get, indexes))
    bad = {index for topic, index in state.unreadable_offsets(group_id) if topic == name}
    return _each(indexes, kept, topic_id, bad)


def _each(
    indexes: Sequence[int], kept: Sequence[OffsetAndMetadata | None], topic_id: TopicId, bad: Collection[int]
) -> Iterator[PartitionOffset]:
    for index, committed in zip(indexes, kept, strict=True):
        if index in bad:
            yield index, None, UNREADABLE
        elif committed is None or not committed.is_for_topic(topic_id):
            yield index, None, ErrorCode.NONE
        else:
            yield index, committed, ErrorCode.NONE


# Putting into words


class OffsetFetchReplyBuilder:
    """The answer about one group, made in turns."""

    def __init__(
        self, found: GroupOffsetsFound, budget: ReplyBudget, version: int, *, is_long: bool = True
    ) -> None:
        """Of a long answer the partitions are encoded too: at its end nothing but that would be left."""
        self._is_long = is_long
        self.answer = OffsetFetchResponseGroup(found.group.group_id)
        self._found = found
        self._budget = budget
        self._version = version

    def chunks(self) -> Iterator[None]:
        """Stops at the end of every turn but the last."""
        group, code, _ = self._found
        if code is not ErrorCode.NONE:
            self.answer = _error_reply(group, code, self._version)
            return
        try:
            yield from self._add_all()
        except ApiError as rejection:  # it is too large
            self.answer = _error_reply(group, rejection.code, self._version)

    def _add_all(self) -> Iterator[None]:
        count = 0
        encode = encoder(OffsetFetchResponsePartition, self._version, OFFSET_FETCH.is_flexible(self._version))
        for name, topic_id, partition_offsets, is_requested in self._found.topics:
            answers: list[OffsetFetchResponsePartition] = []
            for index, committed, code in partition_offsets:
                self._budget.take(len(committed.metadata) if committed else 0)
                partition_reply = _partition_reply(index, committed, code)
                answers.append(
                    EncodedPartition(encoded=bytes(encode(partition_reply)[0]))
                    if self._is_long
                    else partition_reply
                )
                count += 1
                if count % OFFSETS_PER_TURN == 0:
                    yield
            if answers or is_requested:
                self.answer.topics.append(OffsetFetchResponseTopic(name, topic_id, answers))


def reply_at_once(found: GroupOffsetsFound, budget: ReplyBudget, version: int) -> OffsetFetchResponseGroup:
    builder = OffsetFetchReplyBuilder(found, budget, version, is_long=False)
    for _ in builder.chunks():
        continue
    return builder.answer


def _partition_reply(
    index: int, committed: OffsetAndMetadata | None, code: ErrorCode
) -> OffsetFetchResponsePartition:
    if committed is None:
        return OffsetFetchResponsePartition(index, NO_OFFSET, NO_EPOCH, "", code)
    return OffsetFetchResponsePartition(
        index, committed.offset, committed.leader_epoch, committed.metadata, code
    )


def _error_reply(group: OffsetFetchRequestGroup, code: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    """Kafka names no topics beside the error of a group. Before that existed, partitions carry it."""
    topics: Iterable[Any] = group.topics or () if version < GROUP_ERROR_SINCE else ()
    return OffsetFetchResponseGroup(
        group.group_id,
        [
            OffsetFetchResponseTopic(
                topic.name,
                topic.topic_id,
                [_partition_reply(index, None, code) for index in topic.partition_indexes],
            )
            for topic in topics
        ],
        code,
    )
