"""Groups, asked frame by frame: what a library would hide or repeat by itself."""

from penstock.errors import ErrorCode
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
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
    OffsetFetchResponseGroup,
)
from tests.integration.broker_process import eventually
from tests.integration.raw_client import RawClient

COMMIT_VERSION = FETCH_VERSION = 9


def find_coordinator(client: RawClient, group: str) -> int:
    """The node that coordinates the group; the first who asks makes the topic that groups live on."""
    (found,) = client.ask(FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[group])).coordinators
    assert found.error_code == ErrorCode.NONE, found
    return found.node_id


def commit(client: RawClient, group: str, topic: str, offsets: dict[int, int]) -> set[ErrorCode]:
    partitions = [
        OffsetCommitRequestPartition(index, offset, 3, "a note") for index, offset in offsets.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(topic, partitions=partitions)]
    )
    reply = client.ask(OFFSET_COMMIT, COMMIT_VERSION, request)
    return {ErrorCode(each.error_code) for each in reply.topics[0].partitions}


def committed(client: RawClient, group: str, topic: str, *partitions: int) -> dict[int, int] | ErrorCode:
    """Offsets by partition as one answer says them, or the error of the group."""
    found = ask_for_offsets(client, group, topic, *partitions)
    if found.error_code:
        return ErrorCode(found.error_code)
    assert not any(each.error_code for each in found.topics[0].partitions)
    return {each.partition_index: each.committed_offset for each in found.topics[0].partitions}


def ask_for_offsets(client: RawClient, group: str, topic: str, *partitions: int) -> OffsetFetchResponseGroup:
    wanted = OffsetFetchRequestTopic(topic, partition_indexes=list(partitions))
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[wanted])])
    return client.ask(OFFSET_FETCH, FETCH_VERSION, request).groups[0]


def committed_once_loaded(client: RawClient, group: str, topic: str, *partitions: int) -> dict[int, int]:
    """What was committed, as soon as the coordinator can say it."""

    def look() -> dict[int, int]:
        found = committed(client, group, topic, *partitions)
        if isinstance(found, dict):
            return found
        assert found in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), found
        return {}

    return eventually(look)
