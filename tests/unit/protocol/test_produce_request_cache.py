"""What is recalled is what the decoder gives, and what could differ is not recalled."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.frames import RequestHeader, decode_request, encode_request, parse_request_header
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.produce_request_cache import HEAD_BYTES_MAX, ProduceRequestCache
from penstock.types import NO_TOPIC_ID, TopicId

RECORDS = bytes(range(200))
TOPIC_ID = TopicId(b"\x07" * 16)
Decoded = tuple[RequestHeader, ProduceRequest]


def frame_of(
    records: bytes = RECORDS,
    *,
    version: int = 10,
    correlation_id: int = 1,
    client_id: str | None = "tests",
    topic: str = "orders",
    index: int = 0,
    acks: int = -1,
) -> bytes:
    data = [PartitionProduceData(index, records)]
    topics = [TopicProduceData(topic, TOPIC_ID if version >= 13 else NO_TOPIC_ID, data)]
    request = ProduceRequest(None, acks, 30_000, topics)
    return b"".join(encode_request(PRODUCE, version, correlation_id, client_id, request))[4:]


def decoded(frame: bytes) -> tuple[RequestHeader, int, ProduceRequest]:
    header, position = parse_request_header(memoryview(frame))
    return header, position, decode_request(PRODUCE, header.api_version, memoryview(frame), position)


def after(frame: bytes) -> ProduceRequestCache:
    """The memory of a connection on which `frame` came."""
    repeats = ProduceRequestCache()
    header, position, request = decoded(frame)
    repeats.remember(memoryview(frame), header, position, request)
    return repeats


def recalled(repeats: ProduceRequestCache, frame: bytes) -> Decoded | None:
    return repeats.recall(memoryview(frame))


def test_the_next_batch_of_a_producer_is_recalled() -> None:
    for version in (9, 10, 13):
        following = frame_of(bytes(1000), version=version, correlation_id=2, index=7)
        header, _, request = decoded(following)
        assert recalled(after(frame_of(version=version)), following) == (header, request)


def test_a_request_that_differs_in_anything_else_is_decoded() -> None:
    repeats = after(frame_of())
    for other in (
        frame_of(version=9),
        frame_of(client_id="others"),
        frame_of(client_id=None),
        frame_of(topic="orderz"),
        frame_of(topic="order"),
        frame_of(acks=1),
        frame_of(bytes(100)),
        frame_of(bytes(20_000)),
    ):
        assert recalled(repeats, other) is None


def test_only_a_flexible_request_for_one_partition_is_remembered() -> None:
    frame = frame_of(version=8)
    assert recalled(after(frame), frame) is None
    data = [PartitionProduceData(number, RECORDS) for number in range(2)]
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData("orders", partition_data=data)])
    frame = b"".join(encode_request(PRODUCE, 10, 1, "tests", request))[4:]
    assert recalled(after(frame), frame) is None


def test_a_request_with_bytes_that_are_not_accounted_for_is_not_remembered() -> None:
    for frame in (frame_of() + bytes(3), frame_of()[:-1] + b"\x01\x63\x00"):
        assert recalled(after(frame), frame) is None


def test_a_long_client_id_is_not_kept() -> None:
    frame = frame_of(client_id="c" * HEAD_BYTES_MAX)
    assert recalled(after(frame), frame) is None


def test_null_records_with_a_length_of_two_bytes_are_left_to_the_decoder() -> None:
    head = frame_of()[: -3 - len(RECORDS) - 2]
    assert recalled(after(frame_of()), head + b"\x80\x00" + bytes(2)) is None


def test_another_request_in_between_does_not_matter() -> None:
    repeats = after(frame_of())
    assert recalled(repeats, bytes(300)) is None
    assert recalled(repeats, b"") is None
    assert recalled(repeats, frame_of(correlation_id=9)) is not None


@given(
    data=st.data(),
    size=st.sampled_from((127, 128, 200, 16382)),
    version=st.sampled_from((9, 12, 13)),
)
def test_what_is_recalled_is_what_would_be_decoded(data: st.DataObject, size: int, version: int) -> None:
    """Whatever bytes of the next request are changed, cut or added."""
    first = frame_of(bytes(size), version=version)
    following = bytearray(first)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, 60) | st.integers(len(first) - 4, len(first) - 1))
        following[at] = data.draw(st.integers(0, 255))
    following += bytes(data.draw(st.integers(0, 3)))
    del following[data.draw(st.integers(0, len(following)) | st.just(len(following))) :]
    found = recalled(after(first), bytes(following))
    if found is not None:
        header, _, request = decoded(bytes(following))
        assert found == (header, request)


@given(st.binary(max_size=400), st.integers(0, 80))
def test_no_bytes_make_the_memory_fail(tail: bytes, kept: int) -> None:
    repeats = after(frame_of())
    frame = frame_of()[:kept] + tail
    found = recalled(repeats, frame)
    try:
        header, _, request = decoded(frame)
    except ProtocolError:
        assert found is None
    else:
        assert found is None or found == (header, request)
