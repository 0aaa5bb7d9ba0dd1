"""The client's side of a connection, fed with bytes as a network may deliver them."""

from collections.abc import Sequence

import pytest

from penstock.errors import ErrorCode, ProtocolError
from penstock.protocol.frames import decode_request, encode_response, parse_request_header
from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse
from penstock.protocol.messages.describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
from penstock.protocol.messages.fetch import (
    FETCH,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataResponse
from penstock.protocol.schema import Api, Request, Response, Struct
from penstock.types import Buffer
from penstock.wire.blocking_client import BlockingClient
from penstock.wire.client_protocol import ClientProtocol, VersionMismatch

OFFERED = [ApiVersion(METADATA.key, 0, 9), ApiVersion(API_VERSIONS.key, 0, 4), ApiVersion(35, 90, 99)]


def reply(api: Api[Request, Response], version: int, correlation_id: int, message: Response) -> bytes:
    return b"".join(encode_response(api, version, correlation_id, message))


def feed(core: ClientProtocol, data: bytes) -> list[Struct]:
    """The answers that these bytes complete, moved as a shell moves them."""
    answers = []
    while data:
        receive_buffer = core.receive_buffer()
        count = min(len(receive_buffer), len(data))
        receive_buffer[:count] = data[:count]
        data = data[count:]
        if (answer := core.bytes_received(count)) is not None:
            answers.append(answer)
    return answers


def greeted() -> ClientProtocol:
    core = ClientProtocol("test")
    core.version_request()
    (answer,) = feed(core, reply(API_VERSIONS, 4, 1, ApiVersionsResponse(api_keys=OFFERED)))
    assert isinstance(answer, ApiVersionsResponse)
    assert core.accept_versions(answer)
    return core


def greeted_for(api: Api[Request, Response]) -> ClientProtocol:
    core = ClientProtocol("test")
    core.version_request()
    (answer,) = feed(
        core, reply(API_VERSIONS, 4, 1, ApiVersionsResponse(api_keys=[ApiVersion(api.key, 0, 99)]))
    )
    assert isinstance(answer, ApiVersionsResponse)
    core.accept_versions(answer)
    return core


def version_and_id(buffers: Sequence[Buffer]) -> tuple[int, int]:
    header, _ = parse_request_header(b"".join(buffers)[4:])
    return header.api_version, header.correlation_id


def test_a_request_goes_out_in_the_newest_version_both_know() -> None:
    sent = greeted().ask(METADATA, MetadataRequest(topics=None))

    assert version_and_id(sent) == (9, 2)
    assert decode_request(METADATA, 9, b"".join(sent)[4:]).topics is None


def test_an_api_the_broker_lacks_is_refused_before_anything_is_sent() -> None:
    core = ClientProtocol("test")
    core.version_request()
    (answer,) = feed(core, reply(API_VERSIONS, 4, 1, ApiVersionsResponse(api_keys=OFFERED[:1])))
    assert isinstance(answer, ApiVersionsResponse)
    core.accept_versions(answer)

    with pytest.raises(VersionMismatch, match="does not offer DescribeLogDirs"):
        core.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest())


def test_versions_that_do_not_overlap_are_named() -> None:
    with pytest.raises(VersionMismatch, match="versions 90 to 99, this client 1 to 4"):
        greeted().ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest())


def test_a_broker_that_knows_only_old_greetings_is_greeted_again() -> None:
    core = ClientProtocol("test")
    assert version_and_id(core.version_request()) == (4, 1)
    refusal = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(API_VERSIONS.key, 0, 2)])
    (answer,) = feed(core, reply(API_VERSIONS, 0, 1, refusal))
    assert isinstance(answer, ApiVersionsResponse)

    assert not core.accept_versions(answer)
    assert version_and_id(core.version_request()) == (2, 2)


def test_two_peers_do_not_greet_each_other_for_ever() -> None:
    core = ClientProtocol("test")
    refusal = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(API_VERSIONS.key, 0, 99)])
    versions = []
    refused = False
    while not refused:
        version, number = version_and_id(core.version_request())
        versions.append(version)
        (answer,) = feed(core, reply(API_VERSIONS, 0, number, refusal))
        assert isinstance(answer, ApiVersionsResponse)
        try:
            core.accept_versions(answer)
        except ProtocolError:
            refused = True
    assert versions == [4, 3, 2, 1, 0]


def test_answers_are_found_however_the_network_cuts_them() -> None:
    core = greeted()
    for _ in range(3):
        core.ask(METADATA, MetadataRequest())
    data = b"".join(
        reply(METADATA, 9, number, MetadataResponse(cluster_id=f"c{number}")) for number in (2, 3, 4)
    )

    answers = [answer for byte in data for answer in feed(core, bytes([byte]))]

    assert [answer.cluster_id for answer in answers if isinstance(answer, MetadataResponse)] == [
        "c2",
        "c3",
        "c4",
    ]


def test_several_answers_may_come_at_once() -> None:
    core = greeted()
    core.ask(METADATA, MetadataRequest())
    core.ask(METADATA, MetadataRequest())
    data = reply(METADATA, 9, 2, MetadataResponse()) + reply(METADATA, 9, 3, MetadataResponse())

    assert len(feed(core, data)) == 2


def test_an_answer_out_of_order_ends_the_trust() -> None:
    core = greeted()
    core.ask(METADATA, MetadataRequest())

    with pytest.raises(ProtocolError, match="response 7 came where 2 was due"):
        feed(core, reply(METADATA, 9, 7, MetadataResponse()))


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(ProtocolError, match="nothing was asked for"):
        feed(greeted(), reply(METADATA, 9, 2, MetadataResponse()))


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_what_cannot_be_a_response_is_refused_at_its_size(data: bytes) -> None:
    core = ClientProtocol("test")
    core.version_request()

    with pytest.raises(ProtocolError, match="was announced"):
        feed(core, data)


class ScriptedStream:
    """Answers whatever is sent with the next of its replies, a few bytes at a time."""

    def __init__(self, *replies: bytes) -> None:
        self._replies = list(replies)
        self._pending = b""

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._pending += self._replies.pop(0)

    def receive_into(self, receive_buffer: memoryview) -> int:
        count = min(len(receive_buffer), len(self._pending), 5)
        receive_buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def test_the_blocking_client_greets_and_asks() -> None:
    refusal = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(API_VERSIONS.key, 0, 0)])
    stream = ScriptedStream(
        reply(API_VERSIONS, 0, 1, refusal),
        reply(API_VERSIONS, 0, 2, ApiVersionsResponse(api_keys=OFFERED)),
        reply(METADATA, 9, 3, MetadataResponse(cluster_id="found")),
    )

    assert BlockingClient(stream, "test").ask(METADATA, MetadataRequest()).cluster_id == "found"


def test_a_broker_that_hangs_up_is_an_error_of_the_connection() -> None:
    with pytest.raises(ConnectionError, match="closed the connection"):
        BlockingClient(ScriptedStream(b""), "test")


def test_records_are_views_of_the_one_buffer_they_came_into() -> None:
    core = greeted_for(FETCH)
    core.ask(FETCH, FetchRequest())
    data = PartitionData(records=b"r" * 1000)
    answer = FetchResponse(responses=[FetchableTopicResponse(partitions=[data])])
    message = reply(FETCH, 17, 2, answer)

    feed(core, message[:4])
    receive_buffer = core.receive_buffer()
    (found,) = feed(core, message[4:])

    assert len(receive_buffer) == len(message) - 4, "room for the whole frame and no more"
    assert isinstance(found, FetchResponse)
    records = found.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is receive_buffer.obj
    assert records.readonly
    assert bytes(records) == b"r" * 1000


def test_answers_that_come_early_are_kept_for_those_who_asked() -> None:
    stream = ScriptedStream(
        reply(API_VERSIONS, 4, 1, ApiVersionsResponse(api_keys=OFFERED)),
        reply(METADATA, 9, 2, MetadataResponse(cluster_id="first")),
        reply(METADATA, 9, 3, MetadataResponse(cluster_id="unwanted")),
        reply(METADATA, 9, 4, MetadataResponse(cluster_id="last")),
    )
    client = BlockingClient(stream, "test")
    first, unwanted, last = (client.send(METADATA, MetadataRequest()) for _ in range(3))
    client.discard(unwanted)

    assert client.wait(last).cluster_id == "last"
    assert client.wait(first).cluster_id == "first"
    assert unwanted.answer is None
    assert client.is_idle
