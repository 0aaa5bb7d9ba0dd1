"""The fast path for plain produce replies: one partition, no error, packed with one call.

The bytes are those of `encode_response`, at a third of the cost. All replies for a topic differ only in the
offsets and a few other numbers, so the layout is cached by topic name or id.

Rule 1: replies of any other form are left to the general encoder, which is always correct.
Rule 2: at most TOPICS_KEPT_MAX layouts are cached, and only for topics that exist: an error reply has the
        name that the client chose, which may be as long as its request.
"""

from collections.abc import Callable
from struct import Struct as Layout
from typing import Final, NamedTuple

from penstock.limits import TOPIC_NAME_CHARACTERS_MAX
from penstock.protocol.encoders import varint_bytes
from penstock.protocol.messages.produce import PRODUCE, PartitionProduceResponse, ProduceResponse

TOPICS_KEPT_MAX: Final = 1024
TOPIC_IDS_SINCE: Final = 13
_SIZE_BYTES: Final = 4
_ONE: Final = 2
"""Compact length of an array of one element, which is one too large."""
_EMPTY: Final = 1
_NULL: Final = 0
_NO_ERROR: Final = 0
_FLEXIBLE: Final = PRODUCE.flexible or 0
_NO_LEADER: Final = PartitionProduceResponse().current_leader


class _ReplyLayout(NamedTuple):
    pack: Callable[..., bytes]
    size: int
    """Size of the frame without the four bytes of the size prefix."""
    topic: bytes


_layouts: dict[str | bytes, _ReplyLayout] = {}


def encode_plain_reply(version: int, correlation_id: int, reply: ProduceResponse) -> bytes | None:
    """Encode a complete frame. None: this reply is not a plain one."""
    topics = reply.responses
    if version < _FLEXIBLE or len(topics) != 1 or reply.node_endpoints:
        return None
    topic = topics[0]
    answers = topic.partition_responses
    if len(answers) != 1:
        return None
    answer = answers[0]
    if (
        answer.error_code
        or answer.record_errors
        or answer.error_message is not None
        or answer.current_leader is not _NO_LEADER
    ):
        return None
    key = topic.name if version < TOPIC_IDS_SINCE else topic.topic_id
    reply_layout = _layouts.get(key) or _layout_for(key)
    if reply_layout is None:
        return None
    pack, size, encoded = reply_layout
    return pack(
        size,
        correlation_id,
        _ONE,
        encoded,
        _ONE,
        answer.index,
        _NO_ERROR,
        answer.base_offset,
        answer.log_append_time_ms,
        answer.log_start_offset,
        _EMPTY,
        _NULL,
        reply.throttle_time_ms,
    )


def _layout_for(topic: str | bytes) -> _ReplyLayout | None:
    if len(topic) > TOPIC_NAME_CHARACTERS_MAX:
        return None
    if len(_layouts) >= TOPICS_KEPT_MAX:
        _layouts.clear()
    encoded = topic
    if isinstance(encoded, str):
        name = encoded.encode()
        encoded = varint_bytes(len(name) + 1) + name
    # A tag section (x) follows the correlation id, the partition, the topic and the body.
    layout = Layout(f">iixB{len(encoded)}sBihqqqBBxxix")
    reply_layout = _layouts[topic] = _ReplyLayout(layout.pack, layout.size - _SIZE_BYTES, encoded)
    return reply_layout
