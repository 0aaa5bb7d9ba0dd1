"""Stored values: what was written reads back, and anything else is refused by name."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.metadata.documents import (
    BrokerConfigValue,
    BrokerSessionValue,
    BrokerValue,
    ControllerValue,
    EndpointValue,
    MetadataValue,
    PartitionValue,
    ProducerIdsValue,
    TopicValue,
    decode,
    encode,
    topic_id_of,
)

KEY = "/penstock/c/somewhere"
PARTITION = PartitionValue(replicas=(1, 2), leader=1, leader_epoch=4, isr=(1,), partition_epoch=9)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_a_topic_reads_back(overrides: dict[str, str]) -> None:
    value = TopicValue("A" * 22, partitions=3, internal=False, created_ms=5, overrides=overrides)
    assert decode(TopicValue, KEY, encode(value)) == value


def test_the_other_values_read_back() -> None:
    broker = BrokerValue(rack="r1", endpoints={"PLAINTEXT": EndpointValue("localhost", 9092)}, start_id="s")
    config = BrokerConfigValue({"log.retention.ms": "5"})
    moving = PartitionValue(
        replicas=(1, 2, 3),
        leader=-1,
        leader_epoch=4,
        isr=(),
        partition_epoch=9,
        elr=(1,),
        last_known_elr=(2,),
        adding=(3,),
        removing=(2,),
        is_recovering=True,
        min_isr_changes=5,
    )
    live = BrokerSessionValue(
        "i",
        "d",
        clean_epoch=7,
        flushes_before_ack=False,
        start_id="s",
        lock="l",
        has_lost_all=True,
        lost={"t": (0, 2)},
    )
    assert decode(PartitionValue, KEY, encode(PARTITION)) == PARTITION
    assert decode(PartitionValue, KEY, encode(moving)) == moving
    assert decode(BrokerSessionValue, KEY, encode(live)) == live
    assert decode(ControllerValue, KEY, encode(ControllerValue(3))) == ControllerValue(3)
    assert decode(BrokerValue, KEY, encode(broker)) == broker
    assert decode(BrokerConfigValue, KEY, encode(config)) == config
    assert decode(ProducerIdsValue, KEY, encode(ProducerIdsValue(2**62))) == ProducerIdsValue(2**62)


def test_every_value_says_its_version() -> None:
    assert json.loads(encode(PARTITION))["version"] == 2
    assert json.loads(encode(ProducerIdsValue(0)))["version"] == 1


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (
            b'{"version":1,"replicas":[1,2],"leader":1,"leader_epoch":4,"isr":[1],"partition_epoch":9}',
            PARTITION,
        ),
        (
            b'{"version":1,"rack":"r1","endpoints":{"PLAINTEXT":{"host":"localhost","port":9092}}}',
            BrokerValue("r1", {"PLAINTEXT": EndpointValue("localhost", 9092)}),
        ),
        (
            b'{"version":1,"topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":3,"internal":false,'
            b'"created_ms":5,"overrides":{"a":"b"}}',
            TopicValue("A" * 22, 3, internal=False, created_ms=5, overrides={"a": "b"}),
        ),
        (b'{"version":1,"overrides":{"a":"b"}}', BrokerConfigValue({"a": "b"})),
    ],
)
def test_what_an_older_release_wrote_is_read_as_the_newest(data: bytes, value: MetadataValue) -> None:
    assert decode(type(value), KEY, data) == value


def test_an_older_document_has_no_newer_fields() -> None:
    data = b'{"version":1,"replicas":[1],"leader":1,"leader_epoch":4,"isr":[1],"partition_epoch":9,"elr":[]}'
    with pytest.raises(CorruptData, match="unknown field `elr`"):
        decode(PartitionValue, KEY, data)


def test_a_newer_version_is_refused_by_its_number_although_its_fields_differ() -> None:
    data = b'{"version":3,"replicas":[[1,2]],"elr":[]}'
    with pytest.raises(CorruptData, match=f"metadata key {KEY}: version 3 is not known"):
        decode(PartitionValue, KEY, data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b"[1]",
        b'{"version":1}',
        b'{"version":"1","next_id":0}',
        b'{"version":1,"next_id":-1}',
        b'{"version":1,"next_id":"0"}',
        b'{"version":1,"next_id":0,"more":1}',
        b'{"version":1,"next_id":0',
        b'{"next_id":0,"version":1}',
        b'{"next_id":0}',
    ],
)
def test_a_malformed_value_is_corrupt_and_its_key_is_named(data: bytes) -> None:
    with pytest.raises(CorruptData, match=f"metadata key {KEY}: "):
        decode(ProducerIdsValue, KEY, data)


@given(st.integers(0), st.binary(max_size=3))
def test_damaged_bytes_never_raise_anything_else(position: int, damage: bytes) -> None:
    data = bytearray(encode(PARTITION))
    position %= len(data)
    data[position : position + len(damage)] = damage
    with suppress(CorruptData):
        found = decode(PartitionValue, KEY, bytes(data))
        assert decode(PartitionValue, KEY, encode(found)) == found


def test_a_topic_whose_id_is_no_id_is_corrupt() -> None:
    value = TopicValue("not an id", partitions=1, internal=False, created_ms=0, overrides={})
    with pytest.raises(CorruptData, match=KEY):
        topic_id_of(value, KEY)
