"""The cache of a connection's last produce request, for requests that repeat it.

A producer that sends batch after batch to a topic repeats the same bytes, except the correlation id, the
partition number and the records:

    key and version | correlation id | client id ... topic | partition | length | records | tags
         same             new               same                new       new      new       none

One `unpack` and two comparisons detect such a request and extract the new parts. Broker CPU of a produce of
one record: 13.4 µs, and 20.1 µs if every request is decoded (medians of five runs,
`python -m benchmarks.run --only requests --partitions 1`, flush policy os, two busy cores).

Rule 1: a recalled request equals the decoder's result. A request is cached only if every part of it has its
        minimum size: then it has no bytes that are not accounted for here, and equal bytes mean equal
        fields.
Rule 2: a request head above HEAD_BYTES_MAX is not cached.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct as Layout
from typing import Any, Final

import msgspec

from penstock.protocol.frames import RequestHeader
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.schema import Struct
from penstock.types import NO_TOPIC_ID, Buffer, TopicId

HEAD_BYTES_MAX: Final = 512
_SAME_FROM: Final = 8
_BEFORE_TOPIC_BYTES: Final = 8
"""Null transactional id (1), acks (2), timeout (4), array of one topic (1)."""
_ONE_PARTITION_BYTES: Final = 1
_PARTITION_AND_LENGTH_BYTES: Final = 6
_NO_TAGS: Final = bytes(3)
"""Empty tag sections of the partition, the topic and the request."""
_RECORDS_BYTES_MIN: Final = 127
_RECORDS_BYTES_MAX: Final = 16382
"""Between these sizes a compact length takes two bytes."""
_NAME_BYTES_MAX: Final = 126
_ID_BYTES: Final = 16


class _RequestTemplate(msgspec.Struct, frozen=True, gc=False):
    unpack: Callable[[Buffer], tuple[Any, ...]]
    key_and_version: bytes
    same: bytes
    records_at: int
    header: RequestHeader
    acks: int
    timeout_ms: int
    name: str
    topic_id: TopicId


class ProduceRequestCache:
    """Template of the last produce request of one connection."""

    __slots__ = ("_template",)

    def __init__(self) -> None:
        self._template: _RequestTemplate | None = None

    def recall(self, frame: memoryview) -> tuple[RequestHeader, ProduceRequest] | None:
        """Return the request in `frame` if it repeats the cached one."""
        template = self._template
        if template is None or len(frame) <= (records_at := template.records_at):
            return None
        key_and_version, correlation_id, same, index, low, high = template.unpack(frame)
        if same != template.same or key_and_version != template.key_and_version:
            return None
        if low < 128 or not 0 < high < 128:
            return None  # the length does not take two bytes
        end = records_at + low + (high << 7) - 129
        # Tags or further bytes after the records: left to the decoder.
        if frame[end:].tobytes() != _NO_TAGS:
            return None
        header = template.header
        data = [PartitionProduceData(index, frame[records_at:end])]
        topics = [TopicProduceData(template.name, template.topic_id, data)]
        return (
            RequestHeader(header.api_key, header.api_version, correlation_id, header.client_id),
            ProduceRequest(None, template.acks, template.timeout_ms, topics),
        )

    def remember(self, frame: memoryview, header: RequestHeader, position: int, request: Struct) -> None:
        """Cache a decoded request; `position` is the start of its body."""
        if type(request) is ProduceRequest:
            self._template = _template(frame, header, position, request)


def _template(
    frame: memoryview, header: RequestHeader, position: int, request: ProduceRequest
) -> _RequestTemplate | None:
    """The template of a decoded request. None: requests of this kind are not cached."""
    if not PRODUCE.is_flexible(header.api_version) or request.transactional_id is not None:
        return None
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return None
    topic = request.topic_data[0]
    records = topic.partition_data[0].records
    name_bytes = len(topic.name.encode())
    if records is None or name_bytes > _NAME_BYTES_MAX:
        return None
    topic_bytes = 1 + name_bytes if topic.topic_id == NO_TOPIC_ID else _ID_BYTES
    index_at = position + _BEFORE_TOPIC_BYTES + topic_bytes + _ONE_PARTITION_BYTES
    records_at = index_at + _PARTITION_AND_LENGTH_BYTES
    is_smallest = len(frame) == records_at + len(records) + len(_NO_TAGS)
    has_long_length = _RECORDS_BYTES_MIN <= len(records) <= _RECORDS_BYTES_MAX
    if not is_smallest or not has_long_length or index_at > HEAD_BYTES_MAX:
        return None
    return _RequestTemplate(
        unpack=_unpacker(index_at),
        key_and_version=bytes(frame[:4]),
        same=bytes(frame[_SAME_FROM:index_at]),
        records_at=records_at,
        header=header,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        name=topic.name,
        topic_id=topic.topic_id,
    )


@lru_cache(HEAD_BYTES_MAX)
def _unpacker(head_bytes: int) -> Callable[[Buffer], tuple[Any, ...]]:
    return Layout(f">4si{head_bytes - _SAME_FROM}siBB").unpack_from
