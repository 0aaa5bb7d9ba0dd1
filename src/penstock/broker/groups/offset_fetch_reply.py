"""What OffsetFetch tells of groups: looked up at one moment, and put into words in turns with others.

Looking takes little: it notes what there is. Making replies of it takes longer, and happens a few
thousand partitions at a time; so does encoding them. Both take from the room of the reply, which a
short request may use up.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.groups.reply_budget import ReplyRoom
from penstock.errors import ApiError, ErrorCode
from penstock.groups.groups import Groups
from penstock.groups.offsets.committed_offsets import Committed
from penstock.limits import OFFSETS_PER_TURN
from penstock.metadata.facts import ClusterImage
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

ERROR_OF_GROUP_SINCE, TOPIC_IDS_SINCE = 2, 10
UNREADABLE: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""Clients give up upon it, instead of beginning anew."""
_PARTITION_BYTES: Final = 250
_TOPIC_BYTES: Final = 500
"""What a partition and a topic take in memory and in the reply, notes aside."""

Place = tuple[int, Committed | None, ErrorCode]
"""A partition, what was committed there, and why it cannot be told."""


class Places(NamedTuple):
    """What a group has kept in one topic, as it was when it was asked for."""

    name: str
    topic_id: TopicId
    places: Iterable[Place]
    is_asked_for: bool = True
    """It is in the reply even if there is nothing to tell of it."""


class Found(NamedTuple):
    """All that is to be told of a group."""

    group: OffsetFetchRequestGroup
    code: ErrorCode
    topics: Sequence[Places] = ()


# Looking


class Looking:
    """At groups, for one request."""

    def __init__(self, image: ClusterImage, context: RequestContext, room: ReplyRoom) -> None:
        self._image = image
        self._context = context
        self._room = room

    def at(self, group: OffsetFetchRequestGroup, state: Groups) -> Found:
        """ApiError: the group is refused."""
        if group.group_id in self._context.denied:
            raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        self._room.take(_TOPIC_BYTES + len(group.group_id))
        state.check_fetch(group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            return Found(group, ErrorCode.NONE, list(self._all(group.group_id, state)))
        return Found(
            group, ErrorCode.NONE, [self._topic(group.group_id, topic, state) for topic in group.topics]
        )

    def _all(self, group_id: str, state: Groups) -> Iterator[Places]:
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
            self._room.take(_TOPIC_BYTES + _PARTITION_BYTES * (len(partitions) + len(bad)))
            # A copy is made in no time; it is gone through when it is put into words.
            yield Places(name, topic.id, _kept(dict(partitions), topic.id, tuple(bad)), is_asked_for=False)

    def _topic(self, group_id: str, asked: OffsetFetchRequestTopic, state: Groups) -> Places:
        by_id = self._context.version >= TOPIC_IDS_SINCE
        image = self._image
        topic = image.topics_by_id.get(asked.topic_id) if by_id else image.topics.get(asked.name)
        name = topic.name if topic else asked.name
        self._room.take(_TOPIC_BYTES + _PARTITION_BYTES * len(asked.partition_indexes))
        code = ErrorCode.NONE
        if by_id and topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not self._may_describe(name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        places: Iterator[Place]
        if code is ErrorCode.NONE:
            topic_id = topic.id if topic else NO_TOPIC_ID
            places = _asked_for(asked, name, topic_id, group_id, state)
        else:
            places = ((index, None, code) for index in asked.partition_indexes)
        return Places(asked.name, asked.topic_id, places)

    def _may_describe(self, name: str) -> bool:
        return self._context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _kept(partitions: Mapping[int, Committed], topic_id: TopicId, bad: Collection[int]) -> Iterator[Place]:
    for index, committed in partitions.items():
        if committed.is_of(topic_id) and index not in bad:
            yield index, committed, ErrorCode.NONE
    for index in bad:
        yield index, None, UNREADABLE


def _asked_for(
    asked: OffsetFetchRequestTopic, name: str, topic_id: TopicId, group_id: str, state: Groups
) -> Iterator[Place]:
    """What there is is noted at once, and gone through when it is put into words."""
    indexes = asked.partition_indexes
    kept = list(map(state.offsets.of_group(group_id).get(name, {}).get, indexes))
    bad = {index for topic, index in state.unreadable_offsets(group_id) if topic == name}
    return _each(indexes, kept, topic_id, bad)


def _each(
    indexes: Sequence[int], kept: Sequence[Committed | None], topic_id: TopicId, bad: Collection[int]
) -> Iterator[Place]:
    for index, committed in zip(indexes, kept, strict=True):
        if index in bad:
            yield index, None, UNREADABLE
        elif committed is None or not committed.is_of(topic_id):
            yield index, None, ErrorCode.NONE
        else:
            yield index, committed, ErrorCode.NONE


# Putting into words


class Telling:
    """The answer about one group, made in turns."""

    def __init__(self, found: Found, room: ReplyRoom, version: int, *, is_long: bool = True) -> None:
        """Of a long answer the partitions are encoded too: at its end nothing but that would be left."""
        self._is_long = is_long
        self.answer = OffsetFetchResponseGroup(found.group.group_id)
        self._found = found
        self._room = room
        self._version = version

    def turns(self) -> Iterator[None]:
        """Stops at the end of every turn but the last."""
        group, code, _ = self._found
        if code is not ErrorCode.NONE:
            self.answer = _refused(group, code, self._version)
            return
        try:
            yield from self._add_all()
        except ApiError as refusal:  # it is too large
            self.answer = _refused(group, refusal.code, self._version)

    def _add_all(self) -> Iterator[None]:
        count = 0
        encode = encoder(OffsetFetchResponsePartition, self._version, OFFSET_FETCH.is_flexible(self._version))
        for name, topic_id, places, is_asked_for in self._found.topics:
            answers: list[OffsetFetchResponsePartition] = []
            for index, committed, code in places:
                self._room.take(len(committed.metadata) if committed else 0)
                told = _told(index, committed, code)
                answers.append(EncodedPartition(encoded=bytes(encode(told)[0])) if self._is_long else told)
                count += 1
                if count % OFFSETS_PER_TURN == 0:
                    yield
            if answers or is_asked_for:
                self.answer.topics.append(OffsetFetchResponseTopic(name, topic_id, answers))


def told_at_once(found: Found, room: ReplyRoom, version: int) -> OffsetFetchResponseGroup:
    telling = Telling(found, room, version, is_long=False)
    for _ in telling.turns():
        continue
    return telling.answer


def _told(index: int, committed: Committed | None, code: ErrorCode) -> OffsetFetchResponsePartition:
    if committed is None:
        return OffsetFetchResponsePartition(index, NO_OFFSET, NO_EPOCH, "", code)
    return OffsetFetchResponsePartition(
        index, committed.offset, committed.leader_epoch, committed.metadata, code
    )


def _refused(group: OffsetFetchRequestGroup, code: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    """Kafka names no topics beside the error of a group. Before that existed, partitions carry it."""
    topics: Iterable[Any] = group.topics or () if version < ERROR_OF_GROUP_SINCE else ()
    return OffsetFetchResponseGroup(
        group.group_id,
        [
            OffsetFetchResponseTopic(
                topic.name,
                topic.topic_id,
                [_told(index, None, code) for index in topic.partition_indexes],
            )
            for topic in topics
        ],
        code,
    )
