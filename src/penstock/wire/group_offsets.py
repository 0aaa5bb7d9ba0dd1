"""Reading and committing a group's offsets without membership.

Requests use topic names: versions with topic ids would lose the committed offset of a recreated topic, and
add nothing that is needed here.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.errors import ErrorCode
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
)
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_session import ClusterSession
from penstock.wire.connection_pool import AttemptFailed, BrokerConnection
from penstock.wire.retry_policy import failure_of

_LAST_VERSION_WITH_NAMES: Final = 9
_FIRST_VERSION_WITH_GROUPS: Final = 8
"""First version of OffsetFetch with several groups."""


def commit(session: ClusterSession, group: str, offsets: Mapping[TopicPartition, Offset], note: str) -> None:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, number), offset in offsets.items():
        entry = OffsetCommitRequestPartition(number, offset, committed_metadata=note)
        topics.setdefault(topic, []).append(entry)
    request = OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequestTopic(name, partitions=entries) for name, entries in topics.items()],
    )

    def ask(broker: BrokerConnection) -> None:
        answer = session.exchange(broker, OFFSET_COMMIT, request, newest=_LAST_VERSION_WITH_NAMES)
        for topic in answer.topics:
            for entry in topic.partitions:
                _require_success(entry.error_code, f"{topic.name}-{entry.partition_index}")

    session.run_on_coordinator(session.deadline(f"committing offsets of group {group}"), group, ask)


def committed(
    session: ClusterSession, group: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, Offset]:
    """Committed offsets of these partitions that have one; None: of all partitions."""
    requested: dict[str, list[int]] = {}
    for topic, number in partitions or ():
        requested.setdefault(topic, []).append(number)
    named = [OffsetFetchRequestTopic(name, partition_indexes=numbers) for name, numbers in requested.items()]
    topics = None if partitions is None else named
    request = OffsetFetchRequest(group, topics, [OffsetFetchRequestGroup(group, topics=topics)])

    def ask(broker: BrokerConnection) -> dict[TopicPartition, Offset]:
        pending = session.start_request(
            broker, lambda: broker.send(OFFSET_FETCH, request, newest=_LAST_VERSION_WITH_NAMES)
        )
        code, answered = _answer_of(session.wait(broker, pending), pending.version)
        _require_success(code, f"group {group}")
        found = {}
        for topic in answered:
            for entry in topic.partitions:
                partition = TopicPartition(topic.name, entry.partition_index)
                _require_success(entry.error_code, str(partition))
                if entry.committed_offset >= 0:  # -1 means that the group has no committed offset
                    found[partition] = Offset(entry.committed_offset)
        return found

    return session.run_on_coordinator(session.deadline(f"reading offsets of group {group}"), group, ask)


def _answer_of(answer: OffsetFetchResponse, version: int) -> tuple[int, list[OffsetFetchResponseTopic]]:
    if version < _FIRST_VERSION_WITH_GROUPS:
        return answer.error_code, answer.topics
    if not answer.groups:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
    return answer.groups[0].error_code, answer.groups[0].topics


def _require_success(code: int, whose: str) -> None:
    if code != ErrorCode.NONE:
        failure = failure_of(code)
        raise AttemptFailed(failure._replace(what=f"{whose}: {failure.what}"))
