"""OffsetFetch responses of groups: an immediate lookup, and a response that is built in chunks.

The lookup is cheap: it copies references to the committed offsets at one moment. Building and encoding the
response takes longer, and happens OFFSETS_PER_CHUNK partitions at a time. Both steps take bytes from the
reply budget, because a short request may have a very long response.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.limits import OFFSETS_PER_CHUNK
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
"""A client fails on this code. Without an error it would apply auto.offset.reset instead."""
_PARTITION_BYTES: Final = 250
_TOPIC_BYTES: Final = 500
"""Budget per partition and per topic, for memory and the encoded reply, without commit metadata."""

PartitionOffset = tuple[int, OffsetAndMetadata | None, ErrorCode]
"""Partition index, committed offset, and error code."""


class TopicOffsets(NamedTuple):
    """Committed offsets of a group in one topic, as of the lookup."""

    name: str
    topic_id: TopicId
    partition_offsets: Iterable[PartitionOffset]
    is_requested: bool = True
    """The client named this topic, so the reply includes it even without partitions."""


class GroupOffsetsFound(NamedTuple):
    """Result of the lookup of one group."""

    group: OffsetFetchRequestGroup
    code: ErrorCode
    topics: Sequence[TopicOffsets] = ()


# Lookup


class OffsetLookup:
    """Lookup of groups for one request."""

    def __init__(self, image: ClusterImage, context: RequestContext, budget: ReplyBudget) -> None:
        self._image = image
        self._context = context
        self._budget = budget

    def look_up(self, group: OffsetFetchRequestGroup, state: GroupStateMachine) -> GroupOffsetsFound:
        """Look up a group's committed offsets. ApiError: the group is rejected."""
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
        """All committed offsets of the group, in topics that the client may describe."""
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
            # Copied: the reply is built in later callbacks, when the group's own dict may have changed.
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
        # Taken before anything is built, so that an oversized request costs no memory first.
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
    """Read the committed offsets now; the returned iterator builds entries later.

    The lists must be made here: in a later callback the state of the group may be another one.
    """
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


# Building the response


def reply_in_chunks(
    found: GroupOffsetsFound, budget: ReplyBudget, version: int, *, is_long: bool = True
) -> Iterator[OffsetFetchResponseGroup | None]:
    """Build the response entry of one group: yields None after every chunk, and the entry last.

    `is_long`: partitions are also encoded in each chunk. Otherwise the encoding of the whole response would
    run at its end, in a single callback.
    """
    group, code, topics = found
    if code is not ErrorCode.NONE:
        yield _error_reply(group, code, version)
        return
    answer = OffsetFetchResponseGroup(group.group_id)
    encode = encoder(OffsetFetchResponsePartition, version, OFFSET_FETCH.is_flexible(version))
    count = 0
    try:
        for name, topic_id, partition_offsets, is_requested in topics:
            answers: list[OffsetFetchResponsePartition] = []
            for index, committed, code in partition_offsets:
                budget.take(len(committed.metadata) if committed else 0)
                reply = _partition_reply(index, committed, code)
                answers.append(EncodedPartition(encoded=bytes(encode(reply)[0])) if is_long else reply)
                count += 1
                if count % OFFSETS_PER_CHUNK == 0:
                    yield None
            if answers or is_requested:
                answer.topics.append(OffsetFetchResponseTopic(name, topic_id, answers))
    except ApiError as rejection:  # beyond the reply budget: the error replaces what was built so far
        answer = _error_reply(group, rejection.code, version)
    yield answer


def reply_at_once(found: GroupOffsetsFound, budget: ReplyBudget, version: int) -> OffsetFetchResponseGroup:
    return next(filter(None, reply_in_chunks(found, budget, version, is_long=False)))


def _partition_reply(
    index: int, committed: OffsetAndMetadata | None, code: ErrorCode
) -> OffsetFetchResponsePartition:
    if committed is None:
        return OffsetFetchResponsePartition(index, NO_OFFSET, NO_EPOCH, "", code)
    return OffsetFetchResponsePartition(
        index, committed.offset, committed.leader_epoch, committed.metadata, code
    )


def _error_reply(group: OffsetFetchRequestGroup, code: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    """The response entry for an error: on the group, without topics, as in Kafka.

    Before version GROUP_ERROR_SINCE a group has no error field, so every partition carries the error.
    """
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
