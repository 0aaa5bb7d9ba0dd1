"""OffsetFetch: api key 9, versions 1 to 10.

Reads the places that groups have kept.

Behaviour
    Where nothing was committed the offset is -1 and there is no error, also for a group that nobody
    knows. While the coordinator loads it says so instead: "nothing" would send clients to the
    beginning or the end.
    No list of topics means everything the group has committed, as far as the client may see it.
    Members of the new group protocol that give their epoch are held to it.
Versions
    2   all topics, error code of the group
    5   leader epochs       7   require_stable
    8   many groups at once
    9   members of the new group protocol
    10  topic ids: an offset of an earlier topic of that name is not shown
Differs from Kafka
    require_stable has nothing to wait for while there are no transactions
"""

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.broker.cluster import Cluster
from penstock.broker.context import RequestContext
from penstock.broker.group_coordinator import GroupCoordinator, Refusal, asking
from penstock.broker.router import Later
from penstock.errors import ApiError, ErrorCode
from penstock.groups.groups import Groups
from penstock.groups.offsets import Committed
from penstock.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from penstock.security.access import Operation, ResourceType
from penstock.types import NO_EPOCH, NO_OFFSET

ERROR_OF_GROUP_SINCE, MANY_GROUPS_SINCE, TOPIC_IDS_SINCE = 2, 8, 10


class OffsetFetch:
    def __init__(self, groups: GroupCoordinator, cluster: Cluster) -> None:
        self._groups = groups
        self._cluster = cluster

    def __call__(self, request: OffsetFetchRequest, context: RequestContext) -> Later:
        wanted = request.groups
        if context.version < MANY_GROUPS_SINCE:
            wanted = [OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)]
        by_id = {group.group_id: group for group in wanted}

        def refusal(group_id: str) -> Refusal:
            return lambda code, _: _refused(by_id[group_id], code, context.version)

        def finish(groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
            if context.version >= MANY_GROUPS_SINCE:
                return OffsetFetchResponse(groups=groups)
            return OffsetFetchResponse(topics=groups[0].topics, error_code=groups[0].error_code)

        return self._groups.each(
            [group.group_id for group in wanted],
            lambda group_id: asking(lambda state, now: self._answer(by_id[group_id], state, context)),
            refusal,
            finish,
        )

    def _answer(
        self, group: OffsetFetchRequestGroup, state: Groups, context: RequestContext
    ) -> OffsetFetchResponseGroup:
        if group.group_id in context.denied:
            return _refused(group, ErrorCode.GROUP_AUTHORIZATION_FAILED, context.version)
        try:
            state.check_fetch(group.group_id, group.member_id, group.member_epoch)
        except ApiError as refusal:
            return _refused(group, refusal.code, context.version)
        if group.topics is None:
            return OffsetFetchResponseGroup(group.group_id, list(self._all(group.group_id, state, context)))
        topics = [self._topic(group.group_id, topic, state, context) for topic in group.topics]
        return OffsetFetchResponseGroup(group.group_id, topics)

    def _all(
        self, group_id: str, state: Groups, context: RequestContext
    ) -> Iterator[OffsetFetchResponseTopic]:
        topics = self._cluster.image.topics
        for name, partitions in state.offsets.of_group(group_id).items():
            topic = topics.get(name)
            if topic is None or not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                continue
            answers = [
                _found(index, committed)
                for index, committed in partitions.items()
                if committed.is_of(topic.id)
            ]
            if answers:
                yield OffsetFetchResponseTopic(name, topic.id, answers)

    def _topic(
        self, group_id: str, asked: OffsetFetchRequestTopic, state: Groups, context: RequestContext
    ) -> OffsetFetchResponseTopic:
        image = self._cluster.image
        by_id = context.version >= TOPIC_IDS_SINCE
        topic = image.topics_by_id.get(asked.topic_id) if by_id else image.topics.get(asked.name)
        name = topic.name if topic else asked.name
        code = ErrorCode.NONE
        if by_id and topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answers = []
        for index in asked.partition_indexes:
            committed = state.offsets.find(group_id, name, index) if code is ErrorCode.NONE else None
            if committed is not None and topic is not None and not committed.is_of(topic.id):
                committed = None
            answers.append(_found(index, committed, code))
        return OffsetFetchResponseTopic(asked.name, asked.topic_id, answers)


def _found(
    index: int, committed: Committed | None, code: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartition:
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
                [_found(index, None, code) for index in topic.partition_indexes],
            )
            for topic in topics
        ],
        code,
    )
