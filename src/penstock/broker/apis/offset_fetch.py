"""OffsetFetch: api key 9, versions 1 to 10.

Returns the committed offsets of groups.

Behaviour
    Where nothing was committed the offset is -1 without an error, also for a group that does not exist. While
    the coordinator is loading, the reply is an error instead: offset -1 would reset clients to the beginning
    or the end of the log.
    A null list of topics requests everything the group has committed, as far as the client may see it.
    The epoch of members of the consumer protocol is checked if they send it.
    A group that is named several times gets as many replies, each for its own topics.
    An offset that was committed and can no longer be read is UNKNOWN_SERVER_ERROR.
Versions
    2   all topics, error code of the group
    5   leader epochs       7   require_stable
    8   many groups at once
    9   members of the consumer protocol
    10  topic ids: an offset of a deleted topic of that name is not returned
Differs from Kafka
    require_stable has nothing to wait for while there are no transactions
    groups that would make the reply too large are POLICY_VIOLATION
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator, GroupLookup
from penstock.broker.groups.offset_fetch_reply import (
    GroupOffsetsFound,
    OffsetLookup,
    reply_at_once,
    reply_in_chunks,
)
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi
from penstock.limits import GROUPS_REPORTED_PER_CHUNK, OFFSETS_PER_CHUNK
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from penstock.security.access import Operation

MANY_GROUPS_SINCE = 8


def _fetched_groups(request: OffsetFetchRequest, image: ClusterImage) -> Iterable[str]:
    return [request.group_id, *(group.group_id for group in request.groups)]


class OffsetFetch:
    api = ServedApi(OFFSET_FETCH, Operation.DESCRIBE, GROUP, _fetched_groups)

    def __init__(self, groups: GroupCoordinator, cluster: MetadataService) -> None:
        self._groups = groups
        self._cluster = cluster

    def __call__(
        self, request: OffsetFetchRequest, context: RequestContext
    ) -> DeferredReply | Coroutine[Any, Any, OffsetFetchResponse]:
        wanted, version = request.groups, context.version
        if version < MANY_GROUPS_SINCE:
            wanted = [OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)]
        budget = ReplyBudget()
        looking = OffsetLookup(self._cluster.image, context, budget)
        questions = [_question(group, looking) for group in wanted]
        if _is_long(wanted):
            return self._in_turns(questions, budget, version)

        def finish(found: list[GroupOffsetsFound]) -> OffsetFetchResponse:
            return _response([reply_at_once(each, budget, version) for each in found], version)

        return self._groups.query_each(questions, finish)

    async def _in_turns(
        self, questions: Sequence[GroupLookup], budget: ReplyBudget, version: int
    ) -> OffsetFetchResponse:
        groups: list[OffsetFetchResponseGroup] = []
        async with self._groups.long_replies:
            async for found in self._groups.query_in_chunks(questions):
                for answer in reply_in_chunks(found, budget, version):
                    if answer is not None:
                        groups.append(answer)
                    else:
                        await asyncio.sleep(0)
        return _response(groups, version)


def _question(group: OffsetFetchRequestGroup, looking: OffsetLookup) -> GroupLookup:
    return GroupLookup(
        group.group_id,
        lambda state, now: looking.look_up(group, state),
        lambda code, _: GroupOffsetsFound(group, code),
    )


def _is_long(wanted: Sequence[OffsetFetchRequestGroup]) -> bool:
    """Whether the reply is, or may be, long: then it is built in chunks, and other requests run in
    between.
    """
    if len(wanted) > GROUPS_REPORTED_PER_CHUNK or any(group.topics is None for group in wanted):
        return True
    topics = (topic for group in wanted for topic in group.topics or ())
    return sum(len(topic.partition_indexes) for topic in topics) > OFFSETS_PER_CHUNK


def _response(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    if version >= MANY_GROUPS_SINCE:
        return OffsetFetchResponse(groups=groups)
    return OffsetFetchResponse(topics=groups[0].topics, error_code=groups[0].error_code)
