"""ConsumerGroupDescribe: api key 69, versions 0 to 1, flexible throughout.

Describes consumer groups (KIP-848): their state, and the assignment and target of each member.

Versions
    1   member type: classic protocol (0) or consumer protocol (1)
"""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from penstock.protocol.schema import (
    OPERATIONS_NOT_REQUESTED,
    Api,
    Bool,
    Int8,
    Int16,
    Int32,
    String,
    Struct,
    TopicUuid,
    versions,
)
from penstock.types import NO_TOPIC_ID


class ConsumerGroupDescribeRequest(Struct):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class DescribedTopicPartitions(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    topic_name: String = ""
    partitions: list[Int32] = []


class DescribedAssignment(Struct):
    topic_partitions: list[DescribedTopicPartitions] = []


class DescribedMember(Struct):
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    target_assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    member_type: Annotated[Int8, versions(1)] = -1


class DescribedConsumerGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_REQUESTED


class ConsumerGroupDescribeResponse(Struct):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup] = []


CONSUMER_GROUP_DESCRIBE = Api(
    key=69,
    versions=(0, 1),
    flexible=0,
    request=ConsumerGroupDescribeRequest,
    response=ConsumerGroupDescribeResponse,
)
