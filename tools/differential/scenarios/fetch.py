"""Fetch without sessions: offsets, limits, waiting, rejections."""

from penstock.protocol.compression import Codec
from penstock.protocol.messages.fetch import FETCH, FetchTopic
from penstock.types import TopicId
from tools.differential.batches import batch
from tools.differential.replies import UNKNOWN_TOPIC_ID
from tools.differential.scenarios.asking import (
    data_topic,
    every_version,
    fetch,
    fetch_partition,
    fetch_request,
    produce,
)
from tools.differential.steps import RequestStep, Scenario

_TOPIC = "fetched"
_THREE = batch(b"a", b"b", b"c")
_BATCH_BYTES = len(_THREE)
_END = 12


def _at(name: str, offset: int, version: int = 12, **fields: int) -> RequestStep:
    return fetch(name, _TOPIC, fetch_partition(0, offset, **fields), version=version)


def _two(name: str, max_bytes: int, **fields: int) -> RequestStep:
    partitions = (fetch_partition(index, 0, **fields) for index in (0, 1))
    return fetch(name, _TOPIC, *partitions, max_bytes=max_bytes)


def _of(name: str, topic: FetchTopic, version: int = 12) -> RequestStep:
    return RequestStep(name, FETCH, version, fetch_request([topic]))


def _id(topic_id: bytes) -> FetchTopic:
    return FetchTopic(topic_id=TopicId(topic_id), partitions=[fetch_partition(0, 0)])


def _name(topic: str) -> FetchTopic:
    return FetchTopic(topic, partitions=[fetch_partition(0, 0)])


SCENARIOS = (
    Scenario(
        "fetch",
        (
            *(produce(f"batch {number}", _TOPIC, _THREE) for number in range(3)),
            produce("compressed batch", _TOPIC, batch(b"a", b"b", b"c", codec=Codec.GZIP)),
            produce("other partition", _TOPIC, _THREE, partition=1),
            *(_at(f"v{v}", 0, v) for v in every_version(FETCH)),
            *(_at(f"v{v} beyond the end", _END + 1, v) for v in every_version(FETCH)),
            _at("inside a batch", 4),
            _at("last of a batch", 5),
            _at("at the end", _END),
            _at("negative", -1),
            _at("very negative", -7),
            fetch("read committed", _TOPIC, isolation_level=1),
            fetch("read committed at the end", _TOPIC, fetch_partition(0, _END), isolation_level=1),
            fetch("read committed beyond the end", _TOPIC, fetch_partition(0, 99), isolation_level=1),
            fetch("isolation 2", _TOPIC, isolation_level=2),
            *(_at(f"partition bytes {n}", 0, partition_max_bytes=n) for n in (-1, 0, 1, _BATCH_BYTES)),
            _at("partition bytes for one and a half", 0, partition_max_bytes=_BATCH_BYTES * 3 // 2),
            _at("partition bytes for two", 0, partition_max_bytes=_BATCH_BYTES * 2),
            *(fetch(f"bytes {n}", _TOPIC, max_bytes=n) for n in (-1, 0, 1, _BATCH_BYTES)),
            fetch("bytes for two", _TOPIC, max_bytes=_BATCH_BYTES * 2),
            _two("two partitions", 1_000_000),
            _two("two partitions, 1 byte", 1),
            _two("two partitions, one batch", _BATCH_BYTES),
            _two("two partitions, 1 byte each", 1_000_000, partition_max_bytes=1),
            fetch("same partition twice", _TOPIC, fetch_partition(0, 0), fetch_partition(0, 3)),
            *(_of(f"v{v} missing topic", _name("fetched-missing"), v) for v in (4, 5, 7, 11, 12)),
            _of("invalid topic", _name("bad name")),
            fetch("partition 9", _TOPIC, fetch_partition(9, 0)),
            fetch("partition -1", _TOPIC, fetch_partition(-1, 0)),
            fetch("partition 9 v17", _TOPIC, fetch_partition(9, 0), version=17),
            _of("unknown id v13", _id(UNKNOWN_TOPIC_ID), 13),
            _of("unknown id v17", _id(UNKNOWN_TOPIC_ID), 17),
            _of("zero id", _id(bytes(16)), 13),
            *(_at(f"leader epoch {n}", 0, current_leader_epoch=n) for n in (-2, 0, 1)),
            _at("leader epoch 5 v9", 0, 9, current_leader_epoch=5),
            _at("leader epoch 5 v17", 0, 17, current_leader_epoch=5),
            *(_at(f"last epoch {n}", 0, last_fetched_epoch=n) for n in (0, 1, 5)),
            _at("last epoch 0 at the end", _END, last_fetched_epoch=0),
            _at("last epoch 0 beyond the end", 50, last_fetched_epoch=0),
            _at("last epoch 1 beyond the end", 50, last_fetched_epoch=1),
            fetch("replica 5", _TOPIC, version=11, replica_id=5),
            fetch("replica -2", _TOPIC, version=11, replica_id=-2),
            fetch("rack", _TOPIC, rack_id="somewhere"),
            fetch("another cluster", _TOPIC, cluster_id="another"),
            fetch("waiting for more than there is", _TOPIC, max_wait_ms=300, min_bytes=1_000_000),
            fetch("waiting at the end", _TOPIC, fetch_partition(0, _END), max_wait_ms=300),
            fetch("waiting beyond the end", _TOPIC, fetch_partition(0, 99), max_wait_ms=5_000),
            RequestStep("no topics", FETCH, 12, fetch_request([], max_wait_ms=5_000)),
        ),
        (data_topic(_TOPIC, 2),),
    ),
    Scenario(
        "fetch-empty",
        tuple(fetch(f"v{v}", "fetched-empty", version=v) for v in every_version(FETCH)),
        (data_topic("fetched-empty"),),
    ),
)
