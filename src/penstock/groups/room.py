"""Whether a request makes the broker remember more than before.

All groups together may take so much memory and no more. Whoever asks for nothing beyond what is
remembered already is served as before when that is used up; who would add to it is refused.
"""

from penstock.groups.classic_group import ClassicGroup
from penstock.groups.commits import CommitRequest
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import JOINING_EPOCH
from penstock.groups.migration import Group
from penstock.groups.offsets import Offsets
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest

_NOTE_BYTES = 100
"""Notes may grow by so much: they often tell a time or a number."""


def does_commit_grow(offsets: Offsets, request: CommitRequest) -> bool:
    for partition, committed in request.commits:
        before = offsets.find(request.group_id, *partition)
        if before is None or len(committed.metadata) > len(before.metadata) + _NOTE_BYTES:
            return True
    return False


def does_join_grow(group: Group | None, request: JoinGroupRequest) -> bool:
    said = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    if isinstance(group, ClassicGroup) and request.member_id in group.members:
        return said > group.members[request.member_id].weight_bytes
    if isinstance(group, ConsumerGroup) and request.member_id in group.members:
        member = group.members[request.member_id]
        return said > member.about.weigh(group.group_id, member.member_id)
    return True


def does_heartbeat_grow(group: Group | None, request: ConsumerGroupHeartbeatRequest) -> bool:
    if isinstance(group, ConsumerGroup) and request.member_id in group.members:
        known = group.members[request.member_id].about.subscription.names
        return _bytes_of(request.subscribed_topic_names or ()) > _bytes_of(known)
    return request.member_epoch == JOINING_EPOCH


def _bytes_of(names: tuple[str, ...] | list[str]) -> int:
    return sum(map(len, names))
