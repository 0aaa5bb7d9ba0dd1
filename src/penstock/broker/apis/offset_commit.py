"""OffsetCommit: api key 8, versions 2 to 10.

Commits offsets of a group. The reply is sent when they are on disk.

Behaviour
    The generation or member epoch of a group's member is checked, so that an evicted member cannot overwrite
    the offsets of its successor. Without a member id the group must be empty.
    A topic or partition that does not exist, a topic the client may not read and metadata that is too long
    are rejected individually; an error of the group is repeated for every partition.
    Commits of very many partitions are stored in several batches, and other requests are processed between
    them; requests for the group itself wait. If the group changes or the disk fails between two batches, the
    partitions of the later batches get the error.
Versions
    5   the broker determines the retention time
    6   leader epochs       7   static members
    9   members of the consumer protocol
    10  topic ids instead of names
Differs from Kafka
    nothing known
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.groups.chunked_commands import CommandChunk
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.coordinator.outcome import CommandOutcome, Now, Reply
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.commit import CommitRequest, check_commit_size
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata, PartitionCommit
from penstock.host.clock import Clock
from penstock.limits import COMMITS_AT_ONCE, LONG_MAX
from penstock.metadata.cluster_image import Topic
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.security.access import Operation, ResourceType
from penstock.types import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition

TOPIC_IDS_SINCE = 10


class _PartitionCommit(NamedTuple):
    """An accepted partition of the request, its entry in the reply, and its topic."""

    answer: OffsetCommitResponsePartition
    partition: OffsetCommitRequestPartition
    topic: Topic


class OffsetCommit:
    api = ServedApi(OFFSET_COMMIT, Operation.READ, GROUP, names_at("group_id"))

    def __init__(self, groups: GroupCoordinator, cluster: MetadataService, clock: Clock) -> None:
        self._groups = groups
        self._cluster = cluster
        self._clock = clock

    def __call__(
        self, request: OffsetCommitRequest, context: RequestContext
    ) -> OffsetCommitResponse | DeferredReply:
        response = OffsetCommitResponse()
        accepted = list(self._accepted(request, response, context))
        if request.group_id in context.denied:
            return _rejected(response, accepted, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not accepted:
            return response
        now_ms = self._clock.wall_ms()
        asked = CommitRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            version=context.version,
            commits=[_commit(entry, request, now_ms) for entry in accepted],
        )
        if len(accepted) > COMMITS_AT_ONCE:
            return self._commit_in_chunks(asked, accepted, response)
        return self._groups.execute(
            request.group_id,
            lambda state, pending, now: CommandOutcome(state.commit(asked, now), (Reply(pending, response),)),
            lambda code, _: _rejected(response, accepted, code),
        )

    def _commit_in_chunks(
        self, asked: CommitRequest, accepted: list[_PartitionCommit], response: OffsetCommitResponse
    ) -> DeferredReply:
        """Commit in several iterations of the event loop. Chunks before a rejected one stay committed."""
        processed = durable = 0

        def commit_some(state: GroupStateMachine, now: Now) -> CommandChunk:
            nonlocal processed
            if not processed:  # the size limit applies to the whole request, before any chunk commits
                check_commit_size(asked)
            some = asked.commits[processed : processed + COMMITS_AT_ONCE]
            records = state.commit(asked._replace(commits=some), now)
            processed += len(some)
            return CommandChunk(records, response) if processed == len(accepted) else CommandChunk(records)

        def is_durable() -> None:
            nonlocal durable
            durable = processed

        def rejected(code: ErrorCode, detail: str) -> OffsetCommitResponse:
            # Not from `processed`: the rejected chunk was processed, too.
            return _rejected(response, accepted[durable:], code)

        return self._groups.execute_chunked(asked.group_id, commit_some, rejected, is_durable)

    def _accepted(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse, context: RequestContext
    ) -> Iterator[_PartitionCommit]:
        """Add an entry to the reply for each partition, and yield those that can be committed."""
        metadata_bytes_max = self._cluster.config.groups.offsets.metadata_bytes_max
        for asked in request.topics:
            answers: list[OffsetCommitResponsePartition] = []
            topic, rejection = self._topic(asked, context)
            if topic is not None and not asked.partitions:
                continue  # Kafka replies only for requested partitions
            response.topics.append(OffsetCommitResponseTopic(asked.name, asked.topic_id, answers))
            for partition in asked.partitions:
                code = rejection if topic is None else _check(partition, topic, metadata_bytes_max)
                answers.append(OffsetCommitResponsePartition(partition.partition_index, code))
                if topic is not None and code is ErrorCode.NONE:
                    yield _PartitionCommit(answers[-1], partition, topic)

    def _topic(
        self, asked: OffsetCommitRequestTopic, context: RequestContext
    ) -> tuple[Topic | None, ErrorCode]:
        image = self._cluster.image
        by_id = context.version >= TOPIC_IDS_SINCE
        topic = image.topics_by_id.get(asked.topic_id) if by_id else image.topics.get(asked.name)
        if not context.may(Operation.READ, ResourceType.TOPIC, topic.name if topic else asked.name):
            return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return topic, ErrorCode.NONE


def _check(partition: OffsetCommitRequestPartition, topic: Topic, metadata_bytes_max: int) -> ErrorCode:
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len((partition.committed_metadata or "").encode()) > metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _commit(entry: _PartitionCommit, request: OffsetCommitRequest, now_ms: int) -> PartitionCommit:
    partition, topic, kept_ms = entry.partition, entry.topic, request.retention_time_ms
    return PartitionCommit(
        TopicPartition(topic.name, partition.partition_index),
        OffsetAndMetadata(
            Offset(partition.committed_offset),
            LeaderEpoch(partition.committed_leader_epoch),
            partition.committed_metadata or "",
            now_ms,
            # Versions before 5 send a retention time; without one, the broker's setting applies at expiry.
            min(now_ms + kept_ms, LONG_MAX) if kept_ms >= 0 else NO_TIMESTAMP,
            topic.id,
        ),
    )


def _rejected(
    response: OffsetCommitResponse, accepted: list[_PartitionCommit], code: ErrorCode
) -> OffsetCommitResponse:
    for entry in accepted:
        entry.answer.error_code = code
    return response
