"""Reading and committing a group's offsets without membership.

Requests use topic names: versions with topic ids would lose the committed offset of a recreated topic, and
add nothing that is needed here.
"""

from collections.abc import Iterable, Iterator, Mapping
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
from penstock.wire.connection_pool import BrokerConnection
from penstock.wire.retry_policy import RequestFailure, failure_of

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

    def ask(broker: BrokerConnection) -> Iterator[RequestFailure | None]:
        version = broker.version_of(OFFSET_COMMIT, newest=_LAST_VERSION_WITH_NAMES)
        pending = session.start_request(broker, lambda: broker.send(OFFSET_COMMIT, request, version=version))
        for topic in session.wait(broker, pending).topics:
            for entry in topic.partitions:
                yield _failure(entry.error_code, f"{topic.name}-{entry.partition_index}")

    session.run_on_coordinator(session.deadline(f"committing offsets of group {group}"), group, ask)


def committed(
    session: ClusterSession, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Offset | None]:
    """Committed offsets; None for partitions without one."""
    requested: dict[str, list[int]] = {}
    for topic, number in partitions:
        requested.setdefault(topic, []).append(number)
    topics = [OffsetFetchRequestTopic(name, partition_indexes=numbers) for name, numbers in requested.items()]
    request = OffsetFetchRequest(group, topics, [OffsetFetchRequestGroup(group, topics=topics)])
    found: dict[TopicPartition, Offset | None] = {}

    def ask(broker: BrokerConnection) -> Iterator[RequestFailure | None]:
        version = broker.version_of(OFFSET_FETCH, newest=_LAST_VERSION_WITH_NAMES)
        pending = session.start_request(broker, lambda: broker.send(OFFSET_FETCH, request, version=version))
        code, answered = _answer_of(session.wait(broker, pending), version)
        yield _failure(code, f"group {group}")
        for topic in answered:
            for entry in topic.partitions:
                partition = TopicPartition(topic.name, entry.partition_index)
                # -1 means that the group has no committed offset.
                found[partition] = Offset(entry.committed_offset) if entry.committed_offset >= 0 else None
                yield _failure(entry.error_code, str(partition))

    session.run_on_coordinator(session.deadline(f"reading offsets of group {group}"), group, ask)
    return found


def _answer_of(answer: OffsetFetchResponse, version: int) -> tuple[int, list[OffsetFetchResponseTopic]]:
    if version < _FIRST_VERSION_WITH_GROUPS:
        return answer.error_code, answer.topics
    if not answer.groups:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
    return answer.groups[0].error_code, answer.groups[0].topics


def _failure(code: int, whose: str) -> RequestFailure | None:
    if code == ErrorCode.NONE:
        return None
    failure = failure_of(code)
    return failure._replace(what=f"{whose}: {failure.what}")
