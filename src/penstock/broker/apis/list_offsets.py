"""ListOffsets: api key 2, versions 1 to 11.

Finds the offset of a timestamp, or of a special one, in each partition.

Behaviour
    -1  latest: the high watermark, or the last stable offset with isolation level read_committed
    -2  earliest, -4 earliest on this disk: the log start offset
    -3  the earliest record that has the largest timestamp; the time index leads to its batch
    -5, -6  tiered storage, which does not exist here: offset -1
    0 and above: the first record, in offset order, that is at least as new; offset -1 if none is
    With read_committed, records from the last stable offset on are not found.
    Other numbers, and special ones in versions before theirs, give UNSUPPORTED_VERSION.
    A partition that is named twice gets one reply, INVALID_REQUEST.
    Lookups by time read from disk, in a thread of their own; everything else gets an immediate reply. Lookups
    end when the client disconnects, and after timeout_ms or 30 s with REQUEST_TIMED_OUT for the remaining
    ones.
    A lookup that finds damage reports it as a fetch does: the partition goes offline here, and in a cluster
    another replica leads it.
Versions
    2  isolation level          7  -3    8  -4    9  -5
    4  leader epochs            10 timeout
    6  flexible encoding        11 -6
Differs from Kafka
    -3 is the newest record below the high watermark. Kafka takes the newest of the log, and returns offset -1
    if that is above the high watermark or was removed by compaction.
    Batch headers are as producers wrote them (G18). If they claim a time that their records do not have, a
    lookup decodes at most 200,000 records and 64 MiB in vain. It then returns the first offset of the next
    batch that claims the time: no record before it is as new.
"""

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import READ_COMMITTED
from penstock.broker.data.timestamp_lookups import NO_TIMEOUT, Lookup, TimeLookups
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import TOPIC, ServedApi, names_at
from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.schema import VERSION_MAX
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import NO_EPOCH, NO_TOPIC_ID, LeaderEpoch, TopicPartition

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING = range(-1, -7, -1)
FIRST_VERSION = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING: 11}
NO_VERSION = VERSION_MAX + 1
ISOLATION_LEVELS = (0, 1)

FIRST_WITH_TIMEOUT = 10


class ListOffsets:
    api = ServedApi(LIST_OFFSETS, Operation.DESCRIBE, TOPIC, names_at("topics", "name"))

    def __init__(self, partitions: ReplicaManager, lookups: TimeLookups) -> None:
        self._partitions = partitions
        self._lookups = lookups

    def __call__(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse | DeferredReply:
        topics: dict[str, ListOffsetsTopicResponse] = {}
        lookups: list[Lookup] = []
        is_committed = request.isolation_level == READ_COMMITTED
        for name, asked in _by_partition(request).items():
            entry = ListOffsetsPartitionResponse(name.partition)
            topics.setdefault(name.topic, ListOffsetsTopicResponse(name.topic)).partitions.append(entry)
            try:
                _check_request(request, name, asked, context)
                partition = self._found(name, asked[0].current_leader_epoch)
                # The high watermark of a new leader may still be below its predecessor's (KIP-207).
                if asked[0].timestamp not in (EARLIEST, EARLIEST_LOCAL):
                    partition.require_end_known()
            except ApiError as rejection:
                entry.error_code = rejection.code
                continue
            timestamp = asked[0].timestamp
            if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
                wanted = None if timestamp == MAX_TIMESTAMP else timestamp
                lookups.append(Lookup(entry, partition, wanted, is_committed))
            else:
                _fill_in(entry, partition, timestamp, is_committed=is_committed)
        response = ListOffsetsResponse(topics=list(topics.values()))
        if not lookups:
            return response
        timeout_ms = request.timeout_ms if context.version >= FIRST_WITH_TIMEOUT else NO_TIMEOUT
        return self._lookups.begin(lookups, response, timeout_ms)

    def _found(self, name: TopicPartition, epoch: int) -> Partition:
        partition = self._partitions.find(name.topic, name.partition)
        if partition is None:
            raise self._partitions.missing_partition_error(name.topic, NO_TOPIC_ID, name.partition)
        if epoch < NO_EPOCH:  # only -1 skips the check
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"no leader has epoch {epoch}")
        partition.check_epoch(epoch)
        partition.require_online()
        partition.require_leader()
        return partition


def _by_partition(request: ListOffsetsRequest) -> dict[TopicPartition, list[ListOffsetsPartition]]:
    asked: dict[TopicPartition, list[ListOffsetsPartition]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            asked.setdefault(name, []).append(partition)
    return asked


def _check_request(
    request: ListOffsetsRequest,
    name: TopicPartition,
    asked: list[ListOffsetsPartition],
    context: RequestContext,
) -> None:
    """Errors of the request itself, whether or not the partition exists."""
    if name.topic in context.denied:
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if request.isolation_level not in ISOLATION_LEVELS:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"isolation level {request.isolation_level}")
    if len(asked) > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is named twice")
    timestamp = asked[0].timestamp
    if timestamp < 0 and context.version < FIRST_VERSION.get(timestamp, NO_VERSION):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp}")


def _fill_in(
    entry: ListOffsetsPartitionResponse, partition: Partition, timestamp: int, *, is_committed: bool
) -> None:
    """Fill in the offsets that are known without reading the log."""
    if timestamp == LATEST:
        entry.offset = partition.last_stable_offset if is_committed else partition.high_watermark
        entry.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        entry.offset = partition.log.log_start_offset
        entry.leader_epoch = _epoch_of_start(partition)


def _epoch_of_start(partition: Partition) -> LeaderEpoch:
    log = partition.log
    is_empty = log.log_start_offset == log.log_end_offset
    return partition.leader_epoch if is_empty else log.epochs.epoch_at(log.log_start_offset)
