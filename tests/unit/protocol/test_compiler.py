"""Tables made for the occasion, so that each rule of the wire is seen alone."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Annotated

import pytest

from penstock.errors import ProtocolError
from penstock.protocol.compiler import decode, decoder, encode, encoder, source_of
from penstock.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.schema import (
    RARE,
    Bytes,
    FrozenStruct,
    Int8,
    Int16,
    Int32,
    String,
    Struct,
    Uuid,
    nullable,
    tagged,
    versions,
)

CLASSIC, FLEXIBLE = False, True


class Point(FrozenStruct, frozen=True):
    x: Int8 = 0


class Everything(Struct):
    number: Int16 = 0
    since_2: Annotated[Int32, versions(2)] = 22
    until_2: Annotated[Int32, versions(0, 2)] = 33
    name: Annotated[String | None, nullable(3)] = ""
    blob: Bytes = b""
    ids: list[Uuid] = []  # noqa: RUF012
    words: list[String] = []  # noqa: RUF012
    point: Point | None = None
    note: Annotated[String | None, tagged(0)] = None
    place: Annotated[Point, tagged(3)] = Point()


def wire(version: int, flexible: bool, message: Everything) -> bytes:
    return b"".join(encode(Everything, version, flexible, message))


def test_a_field_outside_its_versions_is_not_sent_and_has_its_default() -> None:
    message = Everything(number=1, since_2=2, until_2=3)
    for version, since_2, until_2 in ((1, 22, 3), (2, 2, 3), (3, 2, 33)):
        decoded, _ = decode(Everything, version, CLASSIC, wire(version, CLASSIC, message))
        assert (decoded.number, decoded.since_2, decoded.until_2) == (1, since_2, until_2)
    assert len(wire(1, CLASSIC, message)) == len(wire(2, CLASSIC, message)) - 4


def test_null_is_refused_before_the_version_that_allows_it() -> None:
    nameless = wire(3, CLASSIC, Everything(name=None))
    assert decode(Everything, 3, CLASSIC, nameless)[0].name is None
    null_at_version_1 = wire(1, CLASSIC, Everything()).replace(
        b"\x00\x00\x00\x21\x00\x00", b"\x00\x00\x00\x21\xff\xff"
    )
    with pytest.raises(ProtocolError, match="name"):
        decode(Everything, 1, CLASSIC, null_at_version_1)


def test_tagged_fields_are_sent_only_in_flexible_versions_and_not_as_defaults() -> None:
    told = Everything(note="n", place=Point(7))
    assert decode(Everything, 3, FLEXIBLE, wire(3, FLEXIBLE, told))[0] == told
    assert wire(3, FLEXIBLE, Everything(place=Point(0))) == wire(3, FLEXIBLE, Everything())
    assert wire(3, FLEXIBLE, told).endswith(b"\x02" + b"\x00\x02\x02n" + b"\x03\x02\x07\x00")
    assert decode(Everything, 3, CLASSIC, wire(3, CLASSIC, told))[0] == Everything()


def test_unknown_tags_are_skipped_between_known_ones() -> None:
    plain = wire(3, FLEXIBLE, Everything())[:-1]
    decoded, end = decode(
        Everything, 3, FLEXIBLE, plain + b"\x03" + b"\x01\x03abc" + b"\x03\x02\x07\x00" + b"\x09\x00"
    )
    assert (decoded, end) == (Everything(place=Point(7)), len(plain) + 12)


def test_a_struct_in_a_tag_may_be_null_and_be_told_all_the_same() -> None:
    class Placed(Struct):
        word: Annotated[String | None, RARE] = None
        number: Annotated[Int16, tagged(0)] = 7
        point: Annotated[Point | None, tagged(1, always=True)] = None

    for message, encoded in (
        (Placed(), b"\x00" + b"\x01" + b"\x01\x01\x00"),
        (Placed(point=Point(5)), b"\x00" + b"\x01" + b"\x01\x03\x01\x05\x00"),
        (Placed("w", 8), b"\x02w" + b"\x02" + b"\x00\x02\x00\x08" + b"\x01\x01\x00"),
    ):
        assert b"".join(encode(Placed, 0, FLEXIBLE, message)) == encoded
        assert decode(Placed, 0, FLEXIBLE, encoded) == (message, len(encoded))
    assert decode(Placed, 0, FLEXIBLE, b"\x00\x00")[0] == Placed()


@pytest.mark.parametrize(
    "tags",
    [
        b"\x02" + b"\x00\x02\x02n" * 2,  # note, twice
        b"\x01" + b"\x00\x03\x02n\x00",  # note, with a byte left over
        b"\x01" + b"\x00\x01\x02n",  # note, with a size that cuts it
        b"\x01" + b"\x01\x7fabc",  # unknown, past the end
        b"\x02" + b"\x00\x02\x02n",  # one of two is missing
        b"\x01" + b"\xff\xff\xff\xff\xff\x01\x00",  # a tag of six bytes
        b"\x80\x80\x80\x80\x80\x00",  # a count of six bytes
    ],
    ids=["twice", "left over", "cut", "past the end", "missing", "long tag", "long count"],
)
def test_a_broken_tag_section_is_refused(tags: bytes) -> None:
    plain = wire(3, FLEXIBLE, Everything())[:-1]
    with pytest.raises(ProtocolError):
        decode(Everything, 3, FLEXIBLE, plain + tags)


@pytest.mark.parametrize(
    "length", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152]
)
def test_lengths_of_every_varint_size_come_back(length: int) -> None:
    class Numbered(Struct):
        number: Int16 = 0
        blob: Bytes = b""
        text: String = ""

    message = Numbered(7, b"b" * length, "t" * length)
    encoded = b"".join(encode(Numbered, 0, FLEXIBLE, message))
    assert decode(Numbered, 0, FLEXIBLE, encoded) == (message, len(encoded))


def test_a_length_beyond_the_message_is_rejected_before_anything_is_built() -> None:
    class Words(Struct):
        words: list[String] = []  # noqa: RUF012
        numbers: list[Int32] = []  # noqa: RUF012

    with pytest.raises(ProtocolError, match="words has an impossible length"):
        decode(Words, 0, CLASSIC, bytes.fromhex("7fffffff") + bytes(1000))
    with pytest.raises(ProtocolError, match="words has an impossible length"):
        decode(Words, 0, FLEXIBLE, bytes.fromhex("ffffffff0f") + bytes(1000))
    with pytest.raises(ProtocolError, match="numbers has an impossible length"):
        decode(Words, 0, CLASSIC, bytes(4) + bytes.fromhex("00000003") + bytes(11))
    for length in ("ffffffff", "fffffffe", "80000000"):
        with pytest.raises(ProtocolError, match="words has an impossible length"):
            decode(Words, 0, CLASSIC, bytes.fromhex(length) + bytes(1000))


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(Everything, 3, CLASSIC, wire(3, CLASSIC, Everything(name="ab")).replace(b"ab", b"\xc3\x28"))


def test_records_are_a_view_of_the_request_and_not_a_copy() -> None:
    batch = bytes(range(256)) * 8
    request = ProduceRequest(
        topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])]
    )
    frame = memoryview(bytearray(b"".join(encode(ProduceRequest, 9, FLEXIBLE, request))))
    decoded, _ = decode(ProduceRequest, 9, FLEXIBLE, frame)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame.obj
    assert records == batch


def test_bytes_that_are_kept_do_not_keep_the_request() -> None:
    received = bytearray(wire(0, CLASSIC, Everything(blob=b"metadata")))
    decoded, _ = decode(Everything, 0, CLASSIC, memoryview(received))
    received[:] = bytes(len(received))
    assert type(decoded.blob) is bytes
    assert decoded.blob == b"metadata"


def test_records_are_sent_as_they_are_and_all_else_is_merged_around_them() -> None:
    first, second, third = b"1" * 300, memoryview(b"2" * 40), bytearray(b"3")
    partitions = [
        PartitionData(0, records=first),
        PartitionData(1),
        PartitionData(2, records=[second, third]),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])
    buffers = encode(FetchResponse, 12, FLEXIBLE, response)
    assert [type(buffer) for buffer in buffers] == [bytes, bytes, bytes, memoryview, bytearray, bytes]
    assert buffers[1] is first
    assert buffers[3] is second
    assert buffers[4] is third
    decoded, _ = decode(FetchResponse, 12, FLEXIBLE, b"".join(buffers))
    read = [partition.records for partition in decoded.responses[0].partitions]
    assert read == [first, None, bytes(second) + third]


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("aborted", [None, [], [AbortedTransaction(5, 6)]], ids=["null", "none", "one"])
def test_rare_fields_come_back_whether_empty_or_not(
    version: int, aborted: list[AbortedTransaction] | None
) -> None:
    partition = PartitionData(0, aborted_transactions=aborted, records=b"r")
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[partition])])
    encoded = b"".join(encode(FetchResponse, version, version >= 12, response))
    assert decode(FetchResponse, version, version >= 12, encoded)[0] == response


def test_a_codec_is_compiled_once() -> None:
    assert decoder(Everything, 1, CLASSIC) is decoder(Everything, 1, CLASSIC)
    assert encoder(Everything, 1, CLASSIC) is encoder(Everything, 1, CLASSIC)
    assert decoder(Everything, 1, CLASSIC) is not decoder(Everything, 2, CLASSIC)


def test_generated_source_can_be_read_and_tracebacks_show_it() -> None:
    assert "def decode(" in source_of(Everything, 1, CLASSIC)
    assert "def encode(" in source_of(Everything, 1, CLASSIC)
    with pytest.raises(AttributeError) as caught:
        encode(Everything, 1, CLASSIC, Everything(name=None))
    shown = "".join(traceback.format_exception(caught.value))
    assert "encode Everything version 1" in shown
    assert "message.name.encode()" in shown


def test_importing_the_tables_reads_none_of_them() -> None:
    program = (
        "import penstock.protocol.frames; from penstock.protocol.schema import fields_of;"
        "print(fields_of.cache_info().currsize)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "0\n"
