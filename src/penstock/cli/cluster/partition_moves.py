"""Partition reassignments over the wire client: start, cancel, progress, and what blocks them.

Any broker accepts these requests. The broker that receives a replica reports how many records it still lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.cli.broker_connector import BrokerClient, BrokerConnector
from penstock.cli.topic_metadata import metadata_of
from penstock.config.listeners import Address
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from penstock.protocol.messages.list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
)
from penstock.types import TopicPartition
from penstock.wire.retry_policy import error_name

RecordsLeft = dict[int, int | None]
"""Number of records that each broker still lacks; None if unknown."""


class PartitionMove(NamedTuple):
    partition: TopicPartition
    adding: list[int]
    removing: list[int]


class BlockedMove(NamedTuple):
    """A move that cannot continue by itself, and why."""

    partition: TopicPartition
    is_led: bool
    holders: list[int]
    """In-sync replicas: a partition without a leader needs one of these brokers to return."""
    away: list[int]
    """Brokers of the target replicas that are unavailable."""

    @property
    def summary(self) -> str:
        return f"waits for {_named(self.away, 'and')} to come back" if self.is_led else "no broker leads it"

    @property
    def sentence(self) -> str:
        """Return the problem and the remedy, without a full stop."""
        if self.is_led:
            calling_off = f"penstock cluster reassign --topic {self.partition.topic} --cancel"
            return f"partition {self.partition} {self.summary}; `{calling_off}` calls the move off"
        remedy = f"bring {_named(self.holders, 'or')} back, or delete the topic"
        return f"partition {self.partition} has no leader to copy from: {remedy}"


def alter_reassignments(
    broker: BrokerConnector, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, str]:
    """Start moves; a target of None cancels one. Returns the rejected partitions with their errors."""
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in targets.items():
        wanted = ReassignablePartition(index, None if replicas is None else list(replicas))
        topics.setdefault(name, ReassignableTopic(name)).partitions.append(wanted)
    request = AlterPartitionReassignmentsRequest(topics=list(topics.values()))
    with broker.client() as client:
        answer = client.ask(ALTER_PARTITION_REASSIGNMENTS, request)
    if answer.error_code:
        raise CommandFailed(f"nothing was changed: {answer.error_message or error_name(answer.error_code)}")
    return {
        TopicPartition(topic.name, entry.partition_index): entry.error_message or error_name(entry.error_code)
        for topic in answer.responses
        for entry in topic.partitions
        if entry.error_code
    }


def moves_under_way(broker: BrokerConnector) -> dict[TopicPartition, PartitionMove]:
    """Return all partition reassignments in progress."""
    with broker.client() as client:
        answer = client.ask(LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None))
    if answer.error_code:
        raise CommandFailed(f"reassignments cannot be listed: {error_name(answer.error_code)}.")
    return {
        (name := TopicPartition(topic.name, entry.partition_index)): PartitionMove(
            name, list(entry.adding_replicas), list(entry.removing_replicas)
        )
        for topic in answer.topics
        for entry in topic.partitions
    }


def blocked_moves(
    broker: BrokerConnector, moves: Iterable[PartitionMove]
) -> dict[TopicPartition, BlockedMove]:
    """Return the moves that wait for an unavailable broker."""
    by_name = {move.partition: move for move in moves}
    with broker.client() as client:
        answer = metadata_of(client, sorted({name.topic for name in by_name}))
    there = {node.node_id for node in answer.brokers}
    found = {}
    for topic in answer.topics:
        for state in topic.partitions:
            move = by_name.get(TopicPartition(topic.name or "", state.partition_index))
            if move is None:
                continue
            is_led = state.leader_id in there
            # Target replicas and added replicas must all be available; replicas being removed need not be.
            away = sorted({*state.replica_nodes, *move.adding}.difference(move.removing, there))
            if away or not is_led:
                found[move.partition] = BlockedMove(move.partition, is_led, list(state.isr_nodes), away)
    return found


def records_left(
    broker: BrokerConnector, moves: Iterable[PartitionMove]
) -> dict[TopicPartition, RecordsLeft]:
    """Return, per partition, the number of records that each broker with a new replica still lacks."""
    asked: dict[int, list[TopicPartition]] = {}
    left: dict[TopicPartition, RecordsLeft] = {}
    for move in moves:
        left[move.partition] = dict.fromkeys(move.adding)
        for node in move.adding:
            asked.setdefault(node, []).append(move.partition)
    if not asked:
        return left
    with broker.client() as client:
        for node, address in client.brokers().items():
            for partition, lag in _lags(client, address, asked.get(node, ())).items():
                left[partition][node] = lag
    return left


def _lags(
    client: BrokerClient, address: Address, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    topics: dict[str, DescribableLogDirTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, DescribableLogDirTopic(name)).partitions.append(index)
    try:
        request = DescribeLogDirsRequest(topics=list(topics.values()))
        answer = client.ask(DESCRIBE_LOG_DIRS, request, at=address)
    except CommandFailed:
        return {}  # the broker is unavailable, as the status shows; its lag is unknown
    return {
        TopicPartition(topic.name, entry.partition_index): entry.offset_lag
        for directory in answer.results
        if directory.error_code == ErrorCode.NONE
        for topic in directory.topics
        for entry in topic.partitions
        if entry.offset_lag >= 0
    }


def left_text(left: RecordsLeft) -> str:
    """Format as `1200 on broker 3, 0 on broker 4`; unknown numbers are a dash."""
    texts = [f"{'-' if count is None else count} on broker {node}" for node, count in left.items()]
    return ", ".join(texts) or "nothing to copy"


def _named(nodes: Sequence[int], word: str) -> str:
    return f" {word} ".join(f"broker {node}" for node in nodes)
