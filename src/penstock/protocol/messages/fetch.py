"""Fetch: api key 1, versions 4 to 18, flexible from 12.

Reads record batches from partition leaders; consumers and followers send the same request.

Versions
    4   isolation level, aborted transactions
    5   log start offset
    7   fetch sessions
    9   leader epoch fencing
    11  rack id, preferred read replica
    12  flexible encoding, diverging epochs
    13  topic ids instead of names
    15  replica state replaces the replica id
    16  leader hints (KIP-951)
    17  replica directory id
    18  the follower's high watermark
"""

from __future__ import annotations

from typing import Annotated

from penstock.limits import LONG_MAX
from penstock.protocol.schema import (
    NO_UUID,
    RARE,
    READY,
    Api,
    FrozenStruct,
    GatheredRecords,
    Int8,
    Int16,
    Int32,
    Int64,
    String,
    Struct,
    TopicUuid,
    Uuid,
    tagged,
    versions,
)
from penstock.types import NO_TOPIC_ID


class ReplicaState(FrozenStruct, frozen=True):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, versions(9)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, versions(12)] = -1
    log_start_offset: Annotated[Int64, versions(5)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, versions(17), tagged(0)] = NO_UUID
    high_watermark: Annotated[Int64, versions(18), tagged(1)] = LONG_MAX


class FetchTopic(Struct):
    topic: Annotated[String, versions(4, 12)] = ""
    topic_id: Annotated[TopicUuid, versions(13)] = NO_TOPIC_ID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Struct):
    topic: Annotated[String, versions(7, 12)] = ""
    topic_id: Annotated[TopicUuid, versions(13)] = NO_TOPIC_ID
    partitions: list[Int32] = []


class FetchRequest(Struct):
    cluster_id: Annotated[String | None, versions(12), tagged(0)] = None
    replica_id: Annotated[Int32, versions(4, 14)] = -1
    replica_state: Annotated[ReplicaState, versions(15), tagged(1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, versions(7)] = 0
    session_epoch: Annotated[Int32, versions(7)] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], versions(7)] = []
    rack_id: Annotated[String, versions(11)] = ""


class EpochEndOffset(FrozenStruct, frozen=True):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(FrozenStruct, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(FrozenStruct, frozen=True):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Struct):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, versions(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, versions(12), tagged(0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, versions(12), tagged(1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, versions(12), tagged(2)] = SnapshotId()
    aborted_transactions: Annotated[list[AbortedTransaction] | None, RARE] = None
    preferred_read_replica: Annotated[Int32, versions(11)] = -1
    records: GatheredRecords | None = None


class ReadyPartitionData(PartitionData):
    """Partition data with its pre-encoded bytes, for flexible versions, which all encode it alike."""

    key: int = 0
    """The kind of reader that it is encoded for (broker/data/fetch_reader.py)."""
    encoded: bytes = b""


class FetchableTopicResponse(Struct):
    topic: Annotated[String, versions(4, 12)] = ""
    topic_id: Annotated[TopicUuid, versions(13)] = NO_TOPIC_ID
    partitions: Annotated[list[PartitionData], READY] = []


class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class FetchResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions(7)] = 0
    session_id: Annotated[Int32, versions(7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], versions(16), tagged(0)] = []


FETCH = Api(key=1, versions=(4, 18), flexible=12, request=FetchRequest, response=FetchResponse)
