"""Keys: every name stays inside its folder, and every key has one spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.metadata.keys import (
    BrokerConfigKey,
    BrokerKey,
    BrokerSessionKey,
    ClusterKeys,
    ControllerKey,
    GroupConfigKey,
    PartitionKey,
    ProducerIdsKey,
    TopicKey,
    UnreachableBrokersKey,
    acceptable_topic_id,
    topic_id_from_text,
    topic_id_text,
)
from penstock.types import TopicId

KEYS = ClusterKeys("cluster-1")
ID = TopicId(bytes(range(16)))


def test_the_layout_is_as_documented() -> None:
    assert KEYS.topic("orders.eu_1") == "/penstock/cluster-1/topics/orders.eu_1"
    assert KEYS.partition(ID, 12) == "/penstock/cluster-1/partitions/AAECAwQFBgcICQoLDA0ODw/12"
    assert KEYS.broker(3) == "/penstock/cluster-1/brokers/3"
    assert KEYS.live(3) == "/penstock/cluster-1/live/3"
    assert KEYS.controller == "/penstock/cluster-1/controller"
    assert KEYS.broker_config(3) == "/penstock/cluster-1/configs/broker/3"
    assert KEYS.broker_config(None) == "/penstock/cluster-1/configs/broker/default"
    assert KEYS.group_config("a/b") == "/penstock/cluster-1/configs/group/a%2Fb"
    assert KEYS.producer_ids == "/penstock/cluster-1/producer_ids/next_block"


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_no_topic_name_escapes_its_folder(name: str) -> None:
    key = KEYS.topic(name)
    assert key.startswith("/penstock/cluster-1/topics/")
    assert key.count("/") == 4
    assert key.isascii()
    assert key.isprintable()
    assert KEYS.parse(key) == TopicKey(name)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_no_cluster_reads_the_keys_of_another(one: str, other: str) -> None:
    if one != other:
        assert not ClusterKeys(one).topic("t").startswith(ClusterKeys(other).prefix)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**31))
def test_a_partition_key_reads_back(topic_id: bytes, index: int) -> None:
    assert KEYS.parse(KEYS.partition(TopicId(topic_id), index)) == PartitionKey(TopicId(topic_id), index)


def test_the_other_keys_read_back() -> None:
    assert KEYS.parse(KEYS.broker(7)) == BrokerKey(7)
    assert KEYS.parse(KEYS.broker_config(7)) == BrokerConfigKey(7)
    assert KEYS.parse(KEYS.broker_config(None)) == BrokerConfigKey(None)
    assert KEYS.parse(KEYS.group_config("a/b ü")) == GroupConfigKey("a/b ü")
    assert KEYS.parse(KEYS.producer_ids) == ProducerIdsKey()
    assert KEYS.parse(KEYS.live(7)) == BrokerSessionKey(7)
    assert KEYS.parse(KEYS.unreachable(7)) == UnreachableBrokersKey(7)
    assert KEYS.parse(KEYS.controller) == ControllerKey()


def test_keys_of_other_parts_are_passed_over() -> None:
    assert KEYS.parse(KEYS.prefix + "users/alice") is None
    assert KEYS.parse(KEYS.prefix + "configs/user/u") is None


@pytest.mark.parametrize(
    "tail",
    [
        "topics/",
        "topics/a/b",
        "topics/a%2fb",
        "topics/a b",
        "topics/%FF",
        "brokers/01",
        "brokers/-1",
        "brokers/x",
        "brokers/1/live",
        "live/01",
        "live",
        "unreachable/01",
        "unreachable",
        "controller/1",
        "configs/broker/",
        "configs/broker/1/2",
        "producer_ids/other",
        "partitions/AAECAwQFBgcICQoLDA0ODw",
        "partitions/AAECAwQFBgcICQoLDA0ODw/+1",
        "partitions/AAECAwQFBgcICQoLDA0ODx/1",
        "partitions/AAECAwQFBgcICQoLDA0O/1",
        "partitions/AAECAwQFBgcICQoLDA0O!!/1",
    ],
)
def test_a_key_with_another_spelling_is_corrupt_and_named(tail: str) -> None:
    with pytest.raises(CorruptData, match="metadata key /penstock/cluster-1/"):
        KEYS.parse(KEYS.prefix + tail)


@given(st.binary(min_size=16, max_size=16))
def test_the_text_of_a_topic_id_reads_back(topic_id: bytes) -> None:
    text = topic_id_text(TopicId(topic_id))
    assert len(text) == 22
    assert topic_id_from_text(text) == topic_id


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 21 + "B", "A" * 21 + "+", "é" * 22])
def test_what_is_not_the_text_of_a_topic_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a topic id"):
        topic_id_from_text(text)


@pytest.mark.parametrize(
    ("topic_id", "acceptable"),
    [
        (bytes(16), False),
        (bytes(15) + b"\x01", False),
        (b"\xfb" + bytes(15), False),  # its text begins with a dash
        (bytes(15) + b"\x02", True),
        (b"\xff" * 16, True),
        (b"\xf7" + bytes(15), True),
    ],
)
def test_reserved_topic_ids_are_not_acceptable(topic_id: bytes, acceptable: bool) -> None:
    assert acceptable_topic_id(topic_id) is acceptable
