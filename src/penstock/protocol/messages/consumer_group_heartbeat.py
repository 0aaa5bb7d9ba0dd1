"""ConsumerGroupHeartbeat: api key 68, versions 0 to 1, flexible throughout.

The membership protocol of consumer groups (KIP-848): joining, staying, leaving, and the assigned
partitions. A null field has not changed since the last heartbeat.

Versions
    1   subscription by regular expression; the member generates its own id (KIP-1082)
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, String, Struct, TopicUuid, versions
from penstock.types import NO_TOPIC_ID


class HeartbeatTopicPartitions(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Struct):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, versions(1)] = None
    server_assignor: String | None = None
    topic_partitions: list[HeartbeatTopicPartitions] | None = None


class HeartbeatAssignment(Struct):
    topic_partitions: list[HeartbeatTopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


CONSUMER_GROUP_HEARTBEAT = Api(
    key=68,
    versions=(0, 1),
    flexible=0,
    request=ConsumerGroupHeartbeatRequest,
    response=ConsumerGroupHeartbeatResponse,
)
