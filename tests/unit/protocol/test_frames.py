"""The headers of requests and responses, and frames that are broken in them."""

import pytest

from penstock.errors import ProtocolError
from penstock.protocol.frames import RequestHeader, decode_request, decode_response, parse_request_header
from penstock.protocol.messages.api_versions import API_VERSIONS
from penstock.protocol.messages.metadata import METADATA, MetadataRequest

CLASSIC = bytes.fromhex("0003" + "0001" + "00000009" + "0003") + b"cli"
FLEXIBLE = bytes.fromhex("0003" + "000c" + "00000009" + "0003") + b"cli"
ALL_TOPICS = bytes.fromhex("ffffffff")


def test_a_classic_header_ends_after_the_client_id() -> None:
    assert parse_request_header(memoryview(CLASSIC + ALL_TOPICS)) == (
        RequestHeader(3, 1, 9, "cli"),
        len(CLASSIC),
    )


def test_a_flexible_header_ends_after_its_tags() -> None:
    for tags in (b"\x00", b"\x01\x05\x02ab", b"\x80\x00"):
        frame = FLEXIBLE + tags + b"body"
        assert parse_request_header(memoryview(frame)) == (
            RequestHeader(3, 12, 9, "cli"),
            len(FLEXIBLE + tags),
        )


def test_of_an_unknown_api_or_version_the_header_is_read_up_to_the_client_id() -> None:
    for key, version in ((999, 0), (18, 99), (0, 2)):
        frame = key.to_bytes(2) + version.to_bytes(2) + CLASSIC[4:] + b"\x01\x01"
        header, position = parse_request_header(memoryview(frame))
        assert (header.api_key, header.api_version, position) == (key, version, len(CLASSIC))


@pytest.mark.parametrize("frame", [CLASSIC, FLEXIBLE + b"\x01\x05\x02ab"], ids=["classic", "flexible"])
def test_a_header_cut_short_anywhere_is_refused(frame: bytes) -> None:
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse_request_header(memoryview(frame[:length]))


def test_a_client_id_that_is_not_text_or_has_a_negative_length_is_refused() -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(CLASSIC[:-3] + b"\xff\xfe\xfd")
    with pytest.raises(ProtocolError):
        parse_request_header(CLASSIC[:8] + b"\xff\xfe")


def test_bytes_after_the_body_of_a_request_are_ignored() -> None:
    assert decode_request(METADATA, 1, CLASSIC + ALL_TOPICS + b"more") == MetadataRequest(topics=None)


def test_a_version_without_a_table_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no version 14"):
        decode_request(METADATA, 14, FLEXIBLE + b"\x00")


def test_a_response_without_a_whole_header_is_refused() -> None:
    for frame in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x01"):
        with pytest.raises(ProtocolError):
            decode_response(METADATA, 9, frame)
    with pytest.raises(ProtocolError):
        decode_response(API_VERSIONS, 3, b"\x00\x00\x00\x01")
