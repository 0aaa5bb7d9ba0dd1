"""Stored values: what was written reads back, and anything else is refused by name."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.metadata.cluster_image import PartitionState
from penstock.metadata.documents import (
    BrokerSessionValue,
    BrokerValue,
    ControllerValue,
    Endpoint,
    OverridesValue,
    PartitionValue,
    ProducerIdsValue,
    TopicValue,
    decode_as,
    decode_document,
    encode_document,
)

KEY = "/penstock/c/somewhere"
PARTITION = PartitionValue(replicas=(1, 2), leader=1, leader_epoch=4, isr=(1,), partition_epoch=9)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_a_topic_reads_back(overrides: dict[str, str]) -> None:
    value = TopicValue("A" * 22, partitions=3, internal=False, created_ms=5, overrides=overrides)
    assert decode_document(TopicValue, KEY, encode_document(value)) == value


def test_the_other_values_read_back() -> None:
    broker = BrokerValue(rack="r1", endpoints={"PLAINTEXT": Endpoint("localhost", 9092)}, start_id="s")
    config = OverridesValue({"log.retention.ms": "5"})
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
        lost={"A" * 22: (0, 2)},
    )
    assert decode_document(PartitionValue, KEY, encode_document(PARTITION)) == PARTITION
    assert decode_document(PartitionValue, KEY, encode_document(moving)) == moving
    assert decode_document(BrokerSessionValue, KEY, encode_document(live)) == live
    assert decode_document(ControllerValue, KEY, encode_document(ControllerValue(3))) == ControllerValue(3)
    assert decode_document(BrokerValue, KEY, encode_document(broker)) == broker
    assert decode_document(OverridesValue, KEY, encode_document(config)) == config
    assert decode_document(
        ProducerIdsValue, KEY, encode_document(ProducerIdsValue(2**62))
    ) == ProducerIdsValue(2**62)


def test_every_document_says_its_version() -> None:
    assert json.loads(encode_document(PARTITION))["version"] == 1
    assert json.loads(encode_document(ProducerIdsValue(0)))["version"] == 1


def test_a_document_that_leaves_out_defaults_reads_back() -> None:
    data = b'{"version":1,"replicas":[1,2],"leader":1,"leader_epoch":4,"isr":[1],"partition_epoch":9}'
    assert encode_document(PARTITION) == data
    assert decode_document(PartitionValue, KEY, data) == PARTITION


def test_what_the_image_adds_to_a_document_is_not_stored() -> None:
    state = decode_as(PartitionState, KEY, encode_document(PARTITION), index=3, revision=7)
    assert (state.index, state.revision, state.replicas) == (3, 7, (1, 2))
    assert encode_document(state) == encode_document(PARTITION)


def test_a_newer_version_is_refused_by_its_number_although_its_fields_differ() -> None:
    data = b'{"version":2,"replicas":[[1,2]],"elr":[]}'
    with pytest.raises(CorruptData, match=f"metadata key {KEY}: version 2 is not known"):
        decode_document(PartitionValue, KEY, data)


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
        decode_document(ProducerIdsValue, KEY, data)


@given(st.integers(0), st.binary(max_size=3))
def test_damaged_bytes_never_raise_anything_else(position: int, damage: bytes) -> None:
    data = bytearray(encode_document(PARTITION))
    position %= len(data)
    data[position : position + len(damage)] = damage
    with suppress(CorruptData):
        found = decode_document(PartitionValue, KEY, bytes(data))
        assert decode_document(PartitionValue, KEY, encode_document(found)) == found


def test_a_document_that_names_no_topic_id_is_corrupt() -> None:
    topic = TopicValue("not an id", partitions=1, internal=False, created_ms=0, overrides={})
    with pytest.raises(CorruptData, match=KEY):
        decode_document(TopicValue, KEY, encode_document(topic))
    with pytest.raises(CorruptData, match=KEY):
        decode_document(
            BrokerSessionValue, KEY, encode_document(BrokerSessionValue("i", "d", lost={"t": (0,)}))
        )
