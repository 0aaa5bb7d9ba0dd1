"""Waits until a broker coordinates groups. The first request makes the broker create the internal topics.

That takes seconds, during which responses vary.
"""

from penstock.errors import ErrorCode
from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from tools.differential.broker import Broker
from tools.differential.wire import Connection

GROUP = 0
_ANSWER_S_MAX = 60


def has_coordinators(broker: Broker, *key_types: int) -> bool:
    with Connection(broker.host, broker.port) as connection:
        for key_type in key_types:
            asked = FindCoordinatorRequest("differential", key_type)
            frame = b"".join(encode_request(FIND_COORDINATOR, 1, 0, None, asked))
            _, reply = decode_response(FIND_COORDINATOR, 1, connection.exchange(frame, _ANSWER_S_MAX))
            if reply.error_code != ErrorCode.NONE:
                return False
        # A coordinator that is known may still be reading what its groups were.
        frame = b"".join(encode_request(LIST_GROUPS, 0, 0, None, ListGroupsRequest()))
        _, listed = decode_response(LIST_GROUPS, 0, connection.exchange(frame, _ANSWER_S_MAX))
        return listed.error_code == ErrorCode.NONE
