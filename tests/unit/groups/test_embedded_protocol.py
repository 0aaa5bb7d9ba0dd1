"""What consumers tell each other, against kio and kafka-python, which each have the same tables."""

import importlib
import io
import warnings
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.embedded_protocol import (
    VERSION_MAX,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from penstock.protocol import compiler
from penstock.protocol.compiler import encode
from penstock.protocol.schema import Struct
from tests.protocol.samples import sample
from tests.protocol.test_against_kio import assert_same

VERSIONS = range(VERSION_MAX + 1)
KINDS = {
    ConsumerProtocolSubscription: decode_subscription,
    ConsumerProtocolAssignment: decode_assignment,
}
any_version, any_kind, any_seed = (
    st.sampled_from(VERSIONS),
    st.sampled_from(list(KINDS)),
    st.integers(0, 2**32),
)


def kafka_python() -> Any:
    with warnings.catch_warnings():
        # It reads its schemas with functions that Python 3.11 and 3.12 call deprecated.
        warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
        return importlib.import_module("kafka.protocol.consumer.metadata")


def wire(message: Struct, version: int) -> bytes:
    return version.to_bytes(2) + b"".join(encode(type(message), version, False, message))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_kio_reads_the_same_and_writes_the_same_bytes(kind: type[Struct], version: int) -> None:
    package = {
        ConsumerProtocolSubscription: "consumer_protocol_subscription",
        ConsumerProtocolAssignment: "consumer_protocol_assignment",
    }[kind]
    serial = importlib.import_module("kio.serial")
    theirs = getattr(importlib.import_module(f"kio.schema.{package}.v{version}.data"), kind.__name__)
    random = Random(version)
    for _ in range(20):
        message = sample(kind, version, random)
        encoded = wire(message, version)
        read, size = serial.entity_reader(theirs)(encoded, 2)
        assert size == len(encoded) - 2
        assert_same(message, read, version)
        with io.BytesIO() as again:
            serial.entity_writer(theirs)(again, read)
            assert again.getvalue() == encoded[2:]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscription_that_kafka_python_made_is_read(version: int) -> None:
    module = kafka_python()
    owned = module.ConsumerProtocolSubscription.TopicPartition("orders", [0, 2])
    made = module.ConsumerProtocolSubscription(
        version=version,
        topics=["orders", "réservé"],
        user_data=b"state",
        owned_partitions=[owned],
        generation_id=7,
        rack_id="r1",
    )
    assert decode_version(made.encode()) == version
    assert decode_subscription(made.encode()) == ConsumerProtocolSubscription(
        ["orders", "réservé"],
        b"state",
        [ConsumerTopicPartitions("orders", [0, 2])] if version >= 1 else [],
        7 if version >= 2 else -1,
        "r1" if version >= 3 else None,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_an_assignment_that_we_made_is_read_by_kafka_python(version: int) -> None:
    assignment = ConsumerProtocolAssignment([ConsumerTopicPartitions("orders", [0, 2])], b"state")
    encoded = encode_assignment(assignment, version)
    theirs = kafka_python().ConsumerProtocolAssignment.decode(encoded)
    assert theirs.partitions() == [("orders", 0), ("orders", 2)]
    assert theirs.user_data == b"state"
    assert bytes(theirs.encode(version=version)) == encoded


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    subscription = ConsumerProtocolSubscription(["orders"], None, [], 7, "r1")
    newer = bytes.fromhex("0009") + wire(subscription, VERSION_MAX)[2:] + b"fields to come"
    assert decode_version(newer) == 9
    assert decode_subscription(newer) == subscription


def test_versions_that_a_client_makes_up_cost_no_memory() -> None:
    encoded = wire(ConsumerProtocolAssignment(), VERSION_MAX)[2:]
    decode_assignment(VERSION_MAX.to_bytes(2) + encoded)
    compiled = len(compiler.compiled_decoders)
    for version in range(VERSION_MAX, 50):
        assert decode_assignment(version.to_bytes(2) + encoded) == ConsumerProtocolAssignment()
    assert len(compiler.compiled_decoders) == compiled


def test_an_assignment_for_a_newer_client_has_the_newest_version_that_we_know() -> None:
    encoded = encode_assignment(ConsumerProtocolAssignment(), version=9)
    assert encoded == bytes.fromhex("0003 00000000 ffffffff")
    assert decode_assignment(encoded) == ConsumerProtocolAssignment()


@pytest.mark.parametrize(
    "data",
    ["", "00", "ffff 00000000 ffffffff", "0000 00000001", "0000 ffffffff ffffffff", "0001 00000000 ffffffff"],
    ids=["empty", "half a version", "negative version", "cut", "no topics", "nothing said of what it owns"],
)
def test_a_subscription_that_cannot_be_read_is_none(data: str) -> None:
    assert decode_subscription(bytes.fromhex(data)) is None


def test_topics_that_the_bytes_cannot_hold_are_refused_before_anything_is_made() -> None:
    assert decode_assignment(bytes.fromhex("0000 7fffffff") + bytes(1000)) is None


@given(any_kind, any_version, any_seed)
def test_every_message_comes_back_in_every_version(kind: type[Struct], version: int, seed: int) -> None:
    message = sample(kind, version, Random(seed))
    for buffer in (bytes, bytearray, memoryview):
        assert KINDS[kind](buffer(wire(message, version))) == message


@given(any_version, any_seed)
def test_an_assignment_is_encoded_as_its_table_says(version: int, seed: int) -> None:
    assignment = sample(ConsumerProtocolAssignment, version, Random(seed))
    assert encode_assignment(assignment, version) == wire(assignment, version)


@given(any_kind, any_version, any_seed)
def test_a_message_cut_short_is_none(kind: type[Struct], version: int, seed: int) -> None:
    random = Random(seed)
    encoded = wire(sample(kind, version, random), version)
    assert KINDS[kind](encoded[: random.randrange(len(encoded))]) is None


@given(any_kind, any_version, st.binary(max_size=200))
def test_any_bytes_are_read_or_none(kind: type[Struct], version: int, noise: bytes) -> None:
    for start in (b"", version.to_bytes(2)):
        decoded = KINDS[kind](start + noise)
        assert decoded is None or type(decoded) is kind
