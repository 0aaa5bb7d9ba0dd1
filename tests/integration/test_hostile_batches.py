"""Batches that no honest producer sends, and names that no honest person gives, through real requests."""

import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.batches import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    seal_in_place,
)
from penstock.protocol.compression import Codec
from penstock.protocol.frames import encode_request
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.protocol.messages.fetch import FETCH, FetchRequest
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset
from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.hostile import peak_memory_mib, unharmed, verify_logs
from tests.integration.raw_client import RawClient, batch_of, connected, fetch_request

MIB = 1024 * 1024
PEAK_MIB_MAX = 512
NOW_MS = time.time_ns() // 1_000_000
LAST_OFFSET_DELTA_AT, BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT = 23, 27, 35
PRODUCER_ID_AT, BASE_SEQUENCE_AT, COUNT_AT = 43, 53, 57
FAR_FUTURE_MS = 2**62


@pytest.fixture(scope="module")
def hostile_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with serving(tmp_path_factory.mktemp("batches") / "data") as broker:
        yield broker


def changed(at: int, layout: str, value: int, *, sealed: bool = True) -> bytes:
    """An honest batch of two records with one field changed, its checksum mended unless told not to."""
    batch = bytearray(batch_of(b"one", b"two"))
    struct.pack_into(layout, batch, at, value)
    if sealed:
        seal_in_place(batch)
    return bytes(batch)


def cut(count: int) -> bytes:
    return batch_of(b"one", b"two")[:count]


MALFORMED: dict[str, tuple[bytes, set[ErrorCode]]] = {
    "a wrong checksum": (changed(17, ">I", 1, sealed=False), {ErrorCode.CORRUPT_MESSAGE}),
    "a flipped bit": (changed(65, ">B", 0xEE, sealed=False), {ErrorCode.CORRUPT_MESSAGE}),
    "magic 0": (changed(16, ">b", 0), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "magic 1": (changed(16, ">b", 1), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "magic 3": (changed(16, ">b", 3), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "a negative count": (changed(COUNT_AT, ">i", -1), {ErrorCode.INVALID_RECORD}),
    "a count of 0": (changed(COUNT_AT, ">i", 0), {ErrorCode.INVALID_RECORD}),
    "a count that is not the deltas'": (changed(COUNT_AT, ">i", 3), {ErrorCode.INVALID_RECORD}),
    "a last offset that lies": (changed(LAST_OFFSET_DELTA_AT, ">i", 2**31 - 1), {ErrorCode.INVALID_RECORD}),
    "a negative last offset": (changed(LAST_OFFSET_DELTA_AT, ">i", -5), {ErrorCode.INVALID_RECORD}),
    "a base offset at the end": (changed(0, ">q", 2**63 - 1, sealed=False), {ErrorCode.INVALID_RECORD}),
    "a negative base offset": (changed(0, ">q", -1, sealed=False), {ErrorCode.INVALID_RECORD}),
    "a time far ahead": (changed(MAX_TIMESTAMP_AT, ">q", FAR_FUTURE_MS), {ErrorCode.INVALID_TIMESTAMP}),
    "a control batch": (changed(ATTRIBUTES_AT, ">h", CONTROL_BIT), {ErrorCode.INVALID_RECORD}),
    "a broker's time": (changed(ATTRIBUTES_AT, ">h", LOG_APPEND_TIME_BIT), {ErrorCode.INVALID_TIMESTAMP}),
    "no transaction": (
        changed(ATTRIBUTES_AT, ">h", TRANSACTIONAL_BIT),
        {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED},
    ),
    "compression 5": (changed(ATTRIBUTES_AT, ">h", 5), {ErrorCode.INVALID_RECORD}),
    "compression 7": (changed(ATTRIBUTES_AT, ">h", 7), {ErrorCode.INVALID_RECORD}),
    "a producer without a sequence": (changed(PRODUCER_ID_AT, ">q", 7), {ErrorCode.INVALID_RECORD}),
    "a length beyond the bytes": (changed(8, ">i", 2**30, sealed=False), {ErrorCode.INVALID_RECORD}),
    "a negative length": (
        changed(8, ">i", -1, sealed=False),
        {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD},
    ),
    "nothing": (b"", {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "less than a header": (cut(40), {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "a header alone": (cut(HEADER_BYTES), {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "two batches": (cut(10_000) * 2, {ErrorCode.INVALID_RECORD}),
}


def test_every_malformed_batch_is_refused_and_nothing_of_it_is_kept(
    hostile_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(hostile_broker, topic) as honest, connected(hostile_broker.bootstrap) as client:
        for name, (batch, allowed) in MALFORMED.items():
            answer = client.produce(topic, batch)
            assert answer.error_code in allowed, f"{name}: {ErrorCode(answer.error_code).name}"
            assert answer.base_offset == -1, name
            honest.writes()  # at the next offset: nothing came between


def test_less_than_a_batch_behind_a_batch_is_not_stored(hostile_broker: BrokerProcess, topic: str) -> None:
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        client.create_topic(f"{topic}-tail")
        for number in range(3):
            assert client.produce(f"{topic}-tail", batch_of(b"x") + b"more").base_offset == number


@pytest.mark.parametrize("base_ms", [-(2**63), -1, 0])
def test_times_long_past_are_stored_and_the_log_still_reads(
    hostile_broker: BrokerProcess, topic: str, base_ms: int
) -> None:
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        client.create_topic(f"{topic}-old")
        batch = bytearray(changed(BASE_TIMESTAMP_AT, ">q", base_ms))
        struct.pack_into(">q", batch, MAX_TIMESTAMP_AT, base_ms)
        seal_in_place(batch)
        assert client.produce(f"{topic}-old", bytes(batch)).error_code == 0
        assert client.fetch(f"{topic}-old", 0).responses[0].partitions[0].high_watermark == 2


# Records that are malformed inside a sound batch matter where they are looked at


def record_bytes(body: bytes) -> bytes:
    """A batch of one record with this body, behind its length."""
    batch = bytearray(batch_of(b"x")[:HEADER_BYTES]) + bytes([2 * len(body)]) + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    seal_in_place(batch)
    return bytes(batch)


INSIDE: dict[str, bytes] = {
    "a record beyond its batch": record_bytes(b"\x00\x00\x00\x02k\x02v\x00")[:-3],
    "a header without a key": record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x01\x01"),
    "more headers than bytes": record_bytes(b"\x00\x00\x00\x02k\x02v\x7e"),
    "a key longer than the record": record_bytes(b"\x00\x00\x00\x7ek\x02v\x00"),
    "an offset of its own": record_bytes(b"\x00\x00\x08\x02k\x02v\x00"),
    "no key": batch_of(b"value"),
}


def make_topic(client: RawClient, name: str, **settings: str) -> int:
    configs = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in settings.items()]
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    reply = client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(timeout_ms=10_000, topics=[wanted]))
    return reply.topics[0].error_code


def test_a_compacted_topic_takes_no_record_that_its_cleaner_could_not_read(
    hostile_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        assert make_topic(client, f"{topic}-kept", cleanup_policy="compact") == 0
        for name, batch in INSIDE.items():
            sealed = bytearray(batch)
            struct.pack_into(">i", sealed, 8, len(sealed) - 12)
            seal_in_place(sealed)
            answer = client.produce(f"{topic}-kept", bytes(sealed))
            assert answer.error_code == ErrorCode.INVALID_RECORD, name


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.GZIP, Codec.LZ4])
def test_a_batch_that_expands_beyond_the_limit_is_refused(
    own_broker: BrokerProcess, topic: str, codec: Codec
) -> None:
    bomb = build_batch([Record(Offset(0), NOW_MS, b"key", bytes(70 * MIB))], codec=codec, level=None)
    assert len(bomb) < MIB
    with unharmed(own_broker, topic) as honest, connected(own_broker.bootstrap) as client:
        assert make_topic(client, "kept", cleanup_policy="compact") == 0
        assert make_topic(client, "again", compression_type="snappy") == 0
        for name in ("kept", "again"):
            assert client.produce(name, bomb).error_code == ErrorCode.INVALID_RECORD
            honest.writes()
        assert peak_memory_mib(own_broker.pid) < PEAK_MIB_MAX


def test_a_topic_that_recompresses_serves_what_was_sent(hostile_broker: BrokerProcess, topic: str) -> None:
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        assert make_topic(client, f"{topic}-gzip", compression_type="gzip") == 0
        assert client.produce(f"{topic}-gzip", batch_of(b"value" * 100, codec=Codec.ZSTD)).error_code == 0
        garbage = bytearray(batch_of(b"value" * 100, codec=Codec.ZSTD))
        garbage[HEADER_BYTES + 2 :] = b"\xee" * (len(garbage) - HEADER_BYTES - 2)
        seal_in_place(garbage)
        answer = client.produce(f"{topic}-gzip", bytes(garbage))
        assert answer.error_code == ErrorCode.INVALID_RECORD


# Names

BAD_NAMES = [
    "..",
    ".",
    "",
    "a/b",
    "../../outside",
    "/absolute",
    "nul\x00byte",
    "new\nline",
    "carriage\rreturn",
    "réservé",
    "時",
    "%s%n{0}",
    "\x1b[31mred",
    "line\u2028separator",
    "x" * 250,
    "x" * 30_000,
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
def test_a_bad_topic_name_is_refused_and_touches_no_file_and_no_other_line(
    hostile_broker: BrokerProcess, topic: str, name: str
) -> None:
    before = files_below(hostile_broker.data_dir.parent)
    with connected(hostile_broker.bootstrap) as client:
        assert make_topic(client, name) == ErrorCode.INVALID_TOPIC_EXCEPTION
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        assert client.ask(METADATA, 9, request).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert client.produce(name, batch_of(b"x")).error_code
        assert client.ask(FETCH, 12, fetch_request(name, 0)).responses[0].partitions[0].error_code
    assert files_below(hostile_broker.data_dir.parent) - before == set()
    with unharmed(hostile_broker, topic):
        pass


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.suffix == ".log"}


def test_names_that_differ_in_dot_and_underscore_cannot_both_exist(
    hostile_broker: BrokerProcess, topic: str
) -> None:
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        assert make_topic(client, "metrics.a_b") == 0
        assert make_topic(client, "metrics_a.b") == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("client_id", ["two\nlines", "%s%n", "x" * 30_000, "\x00", "\u2028"], ids=ascii)
def test_a_strange_client_id_cannot_imitate_a_log_line(
    hostile_broker: BrokerProcess, topic: str, client_id: str
) -> None:
    forged = "2026-11-15T08:00:00.123Z INFO  forged"
    with unharmed(hostile_broker, topic), connected(hostile_broker.bootstrap) as client:
        frame = bytearray(
            b"".join(encode_request(FETCH, 12, 1, f"{client_id}\n{forged}"[:30_000], FetchRequest()))
        )
        frame[-1] = 0x7F  # a tag section without its end: refused, and said in a line
        client.socket.sendall(frame)
        assert client.is_closed_by_broker()
    assert not re.search(rf"^{re.escape(forged)}", hostile_broker.stderr, re.MULTILINE)


def test_what_is_on_disk_after_all_this_can_be_read(hostile_broker: BrokerProcess) -> None:
    with connected(hostile_broker.bootstrap) as client:
        client.create_topic("last")
        assert client.produce("last", batch_of(b"x")).error_code == 0
    assert verify_logs(hostile_broker.data_dir) > 0
