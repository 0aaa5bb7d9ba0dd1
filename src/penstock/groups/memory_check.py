"""Checks of whether a request adds to the memory of the groups.

All groups together may use a limited amount of memory. When it is used up, requests that add nothing are
still served, and requests that would add to it are rejected.

A subscription of few bytes can mean very many partitions. So a request that names a new topic or a new
regular expression counts as adding memory.
"""

from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_member import JOIN_GROUP_EPOCH, ConsumerMemberMetadata
from penstock.groups.migration import Group
from penstock.groups.offsets.commit import CommitRequest
from penstock.groups.offsets.committed_offsets import CommittedOffsets
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest
from penstock.protocol.messages.sync_group import SyncGroupRequest

_METADATA_GROWTH_BYTES = 100
"""Allowed growth of an offset's metadata text, which often holds a time or a number."""
_ASSIGNMENT_BYTES = 1_000
"""Assignment bytes per member that are always allowed. A member itself takes more memory than this."""


def commit_needs_memory(offsets: CommittedOffsets, request: CommitRequest) -> bool:
    for partition, committed in request.commits:
        before = offsets.find(request.group_id, *partition)
        if before is None or len(committed.metadata) > len(before.metadata) + _METADATA_GROWTH_BYTES:
            return True
    return False


def join_needs_memory(group: Group | None, request: JoinGroupRequest) -> bool:
    protocol_bytes = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    if isinstance(group, ClassicGroup) and request.member_id in group.members:
        return protocol_bytes > group.members[request.member_id].metadata_bytes
    if isinstance(group, ConsumerGroup) and request.member_id in group.members:
        member = group.members[request.member_id]
        return protocol_bytes > member.metadata.weigh(group.group_id, member.member_id)
    return True


def sync_needs_memory(group: Group | None, request: SyncGroupRequest) -> bool:
    """Only the leader of a classic group sends assignments, and they change with every generation."""
    if not isinstance(group, ClassicGroup):
        return False
    given = sum(len(each.assignment) for each in request.assignments)
    # A new generation mostly redistributes the same partitions, so only growth counts.
    before = sum(len(member.last_assigned) for member in group.members.values())
    return given > max(before, _ASSIGNMENT_BYTES * len(group.members))


def heartbeat_needs_memory(group: Group | None, request: ConsumerGroupHeartbeatRequest) -> bool:
    if isinstance(group, ConsumerGroup) and request.member_id in group.members:
        return _subscribes_to_more(group.members[request.member_id].metadata, request)
    return request.member_epoch == JOIN_GROUP_EPOCH


def _subscribes_to_more(known: ConsumerMemberMetadata, request: ConsumerGroupHeartbeatRequest) -> bool:
    names, regex = known.subscription
    is_other_regex = request.subscribed_topic_regex not in (None, "", regex)
    is_other_rack = request.rack_id not in (None, known.rack_id)
    return is_other_regex or is_other_rack or not set(request.subscribed_topic_names or ()) <= set(names)
