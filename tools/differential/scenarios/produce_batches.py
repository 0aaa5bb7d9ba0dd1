"""Produce: batches that are malformed, too large, have future timestamps, or violate the topic's config."""

from penstock.protocol.compression import Codec, compress
from tools.differential.batches import (
    BASE_MS,
    FUTURE_MS,
    batch,
    keyed,
    record_bytes,
    timed,
    with_bad_crc,
    with_payload,
)
from tools.differential.scenarios.asking import data_topic, fetch, fetch_partition, produce
from tools.differential.steps import NO_REPLY_S, Scenario

_LENGTH = len(batch()) - 12
_SMALL_BYTES = 200
_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
_NULL_HEADER_KEY = bytes([1, 2]) + b"x"
"""A record header: length -1 for its key, then one byte of value."""


_Case = tuple[str, bytes | None, int]
"""A name, the records, and the version of the request."""


def _case(name: str, records: bytes | None, *, version: int = 9) -> _Case:
    return name, records, version


def _gzipped(name: str, payload: bytes, **lies: int) -> _Case:
    return _case(name, with_payload(compress(Codec.GZIP, payload), attributes=1, **lies))


def _scenario(topic: str, *cases: _Case, **configs: str) -> Scenario:
    """Produce each batch to a partition of its own, so that batches do not influence each other's offsets.

    All partitions are fetched at the end.
    """
    partitions = [fetch_partition(index, 0) for index in range(len(cases))]
    steps = (
        produce(name, topic, records, version=version, partition=index, timeout_s=NO_REPLY_S)
        for index, (name, records, version) in enumerate(cases)
    )
    read = fetch("what is there", topic, *partitions)
    return Scenario(topic, (*steps, read), (data_topic(topic, len(cases), **configs),))


SCENARIOS = (
    _scenario(
        "produce-lengths",
        _case("null", None),
        _case("null v8", None, version=8),
        _case("empty", b""),
        _case("10 zero bytes", bytes(10)),
        _case("17 zero bytes", bytes(17)),
        _case("61 zero bytes", bytes(61)),
        _case("cut in the header", batch()[:60]),
        _case("cut in the records", batch()[:-3]),
        _case("5 bytes behind", batch() + b"xxxxx"),
        _case("20 bytes behind", batch() + b"x" * 20),
        _case("two batches", batch() + batch()),
        _case("a batch and part of another", batch() + batch()[:40]),
        *(_case(f"length {n}", batch(batch_length=n)) for n in (-1, 0, 13, 14, 48)),
        _case("one too long", batch(batch_length=_LENGTH + 1)),
        _case("one too short", batch(batch_length=_LENGTH - 1)),
    ),
    _scenario(
        "produce-headers",
        _case("bad crc", with_bad_crc(batch())),
        *(_case(f"magic {magic}", batch(magic=magic)) for magic in (0, 1, 3, -1)),
        _case("count -1", batch(record_count=-1)),
        _case("count 0", batch(record_count=0, last_offset_delta=-1)),
        _case("count one too high", batch(record_count=2, last_offset_delta=1)),
        _case("count one too low", batch(b"a", b"b", record_count=1, last_offset_delta=0)),
        _case("last offset delta too high", batch(last_offset_delta=5)),
        _case("last offset delta -1", batch(last_offset_delta=-1)),
        *(_case(f"base offset {n}", batch(base_offset=n)) for n in (100, -5, 2**63 - 1)),
        _case("leader epoch 5", batch(leader_epoch=5)),
        _case("control", batch(attributes=32)),
        *(_case(f"codec {codec}", batch(attributes=codec)) for codec in (5, 6, 7)),
        *(_case(f"{codec.name.lower()} that is not", batch(attributes=codec.value)) for codec in _CODECS),
        *(_case(f"attributes {bits:#x}", batch(attributes=bits)) for bits in (0x40, 0x80, 0x4000)),
        _case("append time by the client", batch(attributes=8)),
    ),
    _scenario(
        "produce-records",
        _case("header without a key", with_payload(record_bytes(header_count=1, rest=_NULL_HEADER_KEY))),
        _case("record beyond the batch", with_payload(b"\x7e" + bytes(10))),
        _case("record of negative length", with_payload(b"\x01" + bytes(10))),
        _case("bytes after the last record", with_payload(record_bytes() + b"junk")),
        _case("no record at all", with_payload(b"")),
        _case("offset delta 5", with_payload(record_bytes(offset_delta=5))),
        _gzipped("gzip, header without a key", record_bytes(header_count=1, rest=_NULL_HEADER_KEY)),
        _gzipped("gzip, record beyond the batch", b"\x7e" + bytes(10)),
        _gzipped("gzip, bytes after the last record", record_bytes() + b"junk"),
        _gzipped("gzip, offset delta 5", record_bytes(offset_delta=5)),
        _gzipped("gzip, count one too high", record_bytes(), record_count=2, last_offset_delta=1),
        *(_case(f"{codec.name.lower()}", batch(b"a", b"b", codec=codec)) for codec in _CODECS),
        *(_case(f"zstd v{v}", batch(codec=Codec.ZSTD), version=v) for v in (3, 6, 7)),
    ),
    _scenario(
        "produce-times",
        _case("none", timed(-1)),
        _case("negative", timed(-5)),
        _case("future", timed(FUTURE_MS)),
        _case("future v7", timed(FUTURE_MS), version=7),
        _case("one of three", timed(BASE_MS, FUTURE_MS, BASE_MS)),
        _case("one of two, gzip", timed(BASE_MS, FUTURE_MS, codec=Codec.GZIP)),
        _case("maximum a little too high", timed(BASE_MS, max_timestamp=BASE_MS + 50)),
        _case("maximum in the future", timed(BASE_MS, max_timestamp=FUTURE_MS)),
    ),
    _scenario("produce-too-old", _case("two", batch(b"a", b"b")), message_timestamp_before_max_ms="1000"),
    _scenario(
        "produce-compacted",
        _case("keys", batch(b"a", b"b")),
        _case("one of three", keyed(b"k", None, None)),
        _case("one of three v7", keyed(b"k", None, None), version=7),
        _case("gzip", keyed(b"k", None, codec=Codec.GZIP)),
        _case("no key and from the future", keyed(None, b"k", times_ms=(BASE_MS, FUTURE_MS))),
        cleanup_policy="compact",
    ),
    _scenario(
        "produce-append-time",
        _case("two", batch(b"a", b"b")),
        _case("v3", batch(), version=3),
        _case("append time by the client", batch(attributes=8)),
        _case("future", timed(FUTURE_MS)),
        _case("gzip", batch(b"a", b"b", codec=Codec.GZIP)),
        message_timestamp_type="LogAppendTime",
    ),
    _scenario(
        "produce-sizes",
        _case("too large", batch(b"x" * 300)),
        _case("too large v7", batch(b"x" * 300), version=7),
        _case("too large and a bad crc", with_bad_crc(batch(b"x" * 300))),
        _case("exactly", batch(b"x" * (_SMALL_BYTES - len(batch(b"x" * 100)) + 100))),
        max_message_bytes=str(_SMALL_BYTES),
    ),
    _scenario("produce-above-the-default", _case("one", batch(b"x" * 1_100_000))),
    _scenario(
        "produce-uncompressed",
        _case("gzip", batch(b"a", b"b", codec=Codec.GZIP)),
        _case("zstd", batch(b"a", b"b", codec=Codec.ZSTD)),
        _case("plain", batch(b"a", b"b")),
        compression_type="uncompressed",
    ),
)
