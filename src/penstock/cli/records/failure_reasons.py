"""Reasons why librdkafka reads or writes nothing: it retries these errors, and reports only a timeout."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.cli.broker_connector import BrokerConnector, leaderless_in, leaderless_text, reported_error
from penstock.cli.output import bytes_text
from penstock.errors import ErrorCode
from penstock.limits import BATCH_BYTES_MAX
from penstock.protocol.messages.describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.types import TopicPartition
from penstock.wire.cluster_metadata import Leader
from penstock.wire.list_offsets import LATEST

# Errors that librdkafka handles during a fetch, for example by resetting to the log start.
_HANDLED_BY_CLIENT: Final = (
    ErrorCode.NONE,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


def diagnose_read_failure(
    broker: BrokerConnector, offsets: Mapping[TopicPartition, int], *, waits_for_leaders: bool
) -> str | None:
    """Return the error of a fetch at one of these offsets, or name the partitions without a leader.

    None without an error. `waits_for_leaders`: a partition without a leader is no error.
    """
    with broker.client() as client:
        leaders = client.leaders(offsets)
        for partition, leader in leaders.items():
            if not isinstance(leader, Leader):
                continue
            wanted = FetchPartition(
                partition.partition, fetch_offset=offsets[partition], partition_max_bytes=1
            )
            # One byte, no wait and no fetch session: only the error code matters.
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                session_epoch=-1,
                topics=[FetchTopic(partition.topic, leader.topic_id, [wanted])],
            )
            answer = client.ask(FETCH, request, at=leader.address)
            for entry in (entry for found in answer.responses for entry in found.partitions):
                if entry.error_code not in _HANDLED_BY_CLIENT:
                    return f"{reported_error(entry.error_code, partition)}."
    leaderless = [] if waits_for_leaders else leaderless_in(leaders)
    return f"{leaderless_text(leaderless)}." if leaderless else None


class WriteFailure(NamedTuple):
    """Reason why records are not acknowledged."""

    reason: str
    """Without a full stop."""
    is_rejection: bool = False
    """Whether the leader rejects the records. Otherwise it may have stored them before it was lost."""


def diagnose_write_failure(broker: BrokerConnector, partition: TopicPartition) -> WriteFailure | None:
    """Return why the leader cannot store records; None if no reason is found.

    No batch is sent as a test, since the leader might store it.
    """
    with broker.client() as client:
        leaders = client.leaders([partition])
        leader = leaders[partition]
        if not isinstance(leader, Leader):
            return WriteFailure(leaderless_text([partition])) if leaderless_in(leaders) else None
        asked = ListOffsetsTopic(
            partition.topic, [ListOffsetsPartition(partition.partition, timestamp=LATEST)]
        )
        request = ListOffsetsRequest(replica_id=-1, topics=[asked])
        answer = client.ask(LIST_OFFSETS, request, at=leader.address)
        for entry in (entry for found in answer.topics for entry in found.partitions):
            if entry.error_code:
                return WriteFailure(
                    reported_error(entry.error_code, partition),
                    is_rejection=entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR,
                )
        request_dirs = DescribeLogDirsRequest(topics=[])
        for directory in client.ask(DESCRIBE_LOG_DIRS, request_dirs, at=leader.address).results:
            if directory.error_code:
                return WriteFailure("the broker's disk failed: see its log")
            # Less than one batch of maximum size fits on the disk.
            if 0 <= directory.usable_bytes < BATCH_BYTES_MAX:
                free, total = bytes_text(directory.usable_bytes), bytes_text(directory.total_bytes)
                full = f"the broker's disk is full ({free} of {total} are free)"
                return WriteFailure(full, is_rejection=True)
    return None
