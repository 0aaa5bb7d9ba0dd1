"""Valid inputs from which a fuzzer starts."""

from collections.abc import Iterator
from random import Random

from penstock.metadata.documents import (
    BrokerValue,
    Endpoint,
    MetadataValue,
    OverridesValue,
    PartitionValue,
    ProducerIdsValue,
    TopicValue,
    encode_document,
)
from penstock.protocol import compiler
from penstock.protocol.compression import Codec, compress
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset
from tests.fuzz.mutations import captured_frames
from tests.protocol.samples import CASES, sample

SAMPLES_PER_CASE = 2
_TIMESTAMP_MS = 1_700_000_000_000


def batches() -> list[bytes]:
    records = [
        Record(Offset(0), _TIMESTAMP_MS, b"key", b"value" * 20, (("trace", b"1"), ("empty", None))),
        Record(Offset(1), _TIMESTAMP_MS + 7, None, None),
        Record(Offset(2), _TIMESTAMP_MS - 1000, b"", b""),
    ]
    return [
        build_batch(records, codec=codec, producer_id=5, producer_epoch=0, base_sequence=0) for codec in Codec
    ]


def segments() -> list[bytes]:
    """Files of several batches, one after another."""
    made = []
    for codec in (Codec.NONE, Codec.ZSTD):
        parts = [
            build_batch([Record(Offset(0), _TIMESTAMP_MS, b"k", b"v%d" % number)] * 2, codec=codec)
            for number in range(4)
        ]
        for number, part in enumerate(parts):
            parts[number] = (2 * number).to_bytes(8, "big") + part[8:]
        made.append(b"".join(parts))
    return made


def compressed() -> list[bytes]:
    return [bytes([codec]) + compress(codec, b"abcd" * 50) for codec in Codec]


def frames() -> list[bytes]:
    """Request frames of real clients, with their sizes, alone and concatenated."""
    found = [len(frame).to_bytes(4, "big") + frame for _, frame in captured_frames()]
    return [*found, b"".join(found[:5])]


def requests() -> Iterator[tuple[int, bytes]]:
    """Pairs of case number and body, for every message that a decoder reads."""
    random = Random(1)
    for number, case in enumerate(CASES):
        for _ in range(SAMPLES_PER_CASE):
            message = sample(case.message, case.version, random)
            body = b"".join(compiler.encode(case.message, case.version, case.flexible, message))
            if len(body) < 2000:
                yield number, body


def metadata_values() -> list[bytes]:
    values: tuple[MetadataValue, ...] = (
        TopicValue("AAECAwQFBgcICQoLDA0ODw", 3, False, _TIMESTAMP_MS, {"retention.ms": "1000"}),
        PartitionValue((1, 2), 1, 4, (1, 2), 7),
        BrokerValue("rack", {"PLAINTEXT": Endpoint("host", 9092)}),
        OverridesValue({"log.retention.ms": "1"}),
        ProducerIdsValue(1000),
    )
    return [bytes([number]) + encode_document(value) for number, value in enumerate(values)]


def configs() -> list[bytes]:
    return [
        b'"node.id" = 4\n"log.dirs" = "data"\n[log]\n"retention.ms" = 5\n',
        b'listeners = ["PLAINTEXT://127.0.0.1:0", "SSL://[::1]:9093"]\n',
        b"node.id=1\x00listeners=PLAINTEXT://:9092\x00compression.type=zstd\x00num.partitions=-1",
    ]
