"""Produce: versions, routing, acks, sequences of idempotent producers."""

from penstock.protocol.compression import Codec
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.types import TopicId
from tools.differential.batches import batch, sequenced, with_bad_crc
from tools.differential.replies import UNKNOWN_TOPIC_ID
from tools.differential.scenarios.asking import PRODUCE_TIMEOUT_MS, data_topic, every_version, fetch, produce
from tools.differential.steps import NO_REPLY_S, Message, RequestStep, Scenario, ScenarioState

_TOPIC = "produced"
_SEQUENCED = "sequenced"
_SEQUENCE_MAX = 2**31 - 1


def _by_id(name: str, topic_id: TopicId | None) -> RequestStep:
    def message(memory: ScenarioState) -> ProduceRequest:
        partitions = [PartitionProduceData(0, batch())]
        topic = TopicProduceData(topic_id=topic_id or memory.topic_ids[_TOPIC], partition_data=partitions)
        return ProduceRequest(None, -1, PRODUCE_TIMEOUT_MS, [topic])

    return RequestStep(name, PRODUCE, 13, message)


def _whole(name: str, *topics: TopicProduceData, acks: int = -1) -> RequestStep:
    message: Message = ProduceRequest(None, acks, PRODUCE_TIMEOUT_MS, list(topics))
    return RequestStep(name, PRODUCE, 9, message, timeout_s=NO_REPLY_S)


def _topic(name: str, *partitions: int) -> TopicProduceData:
    return TopicProduceData(
        name, partition_data=[PartitionProduceData(index, batch()) for index in partitions]
    )


def _next(
    name: str, producer_id: int, epoch: int, sequence: int, *values: bytes, version: int = 9
) -> RequestStep:
    return produce(name, _SEQUENCED, sequenced(producer_id, epoch, sequence, *values), version=version)


SCENARIOS = (
    Scenario(
        "produce",
        (
            *(produce(f"v{v}", _TOPIC, batch(), version=v) for v in every_version(PRODUCE) if v < 13),
            *(produce(f"v{v} missing", "produced-missing", batch(), version=v) for v in (3, 5, 8, 10, 12)),
            _by_id("v13", None),
            _by_id("v13 unknown id", TopicId(UNKNOWN_TOPIC_ID)),
            _by_id("v13 zero id", TopicId(bytes(16))),
            produce("invalid topic", "bad name", batch()),
            produce("partition 9", _TOPIC, batch(), partition=9),
            produce("partition -1", _TOPIC, batch(), partition=-1),
            produce("acks 1", _TOPIC, batch(), acks=1),
            *(produce(f"acks {acks}", _TOPIC, batch(), acks=acks) for acks in (2, -2)),
            produce("acks 2 to a missing topic", "produced-missing", batch(), acks=2),
            produce("acks 0", _TOPIC, batch(), acks=0, timeout_s=NO_REPLY_S),
            produce("acks 0, missing topic", "produced-missing", batch(), acks=0, timeout_s=NO_REPLY_S),
            produce("acks 0, bad batch", _TOPIC, with_bad_crc(batch()), acks=0, timeout_s=NO_REPLY_S),
            _whole("no topics"),
            _whole("no topics, acks 0", acks=0),
            _whole("no topics, acks 7", acks=7),
            _whole("no partitions", _topic(_TOPIC)),
            _whole("good and bad", _topic("produced-missing", 0), _topic(_TOPIC, 0, 3)),
            _whole("two partitions", _topic(_TOPIC, 0, 1)),
            fetch("what is there", _TOPIC),
        ),
        (data_topic(_TOPIC, 2),),
    ),
    Scenario(
        "produce-same-partition-twice",
        (
            _whole("twice in a topic", _topic("produced-twice", 0, 0)),
            _whole("topic twice", _topic("produced-twice", 0), _topic("produced-twice", 0)),
        ),
        (data_topic("produced-twice"),),
    ),
    Scenario(
        "produce-transactional",
        (
            produce(
                "bit without an id",
                _TOPIC + "-t",
                batch(attributes=16, producer_id=5, producer_epoch=0, base_sequence=0),
            ),
            produce("id without the bit", _TOPIC + "-t", batch(), transactional_id="tx"),
            produce("bit without a producer", _TOPIC + "-t", batch(attributes=16)),
        ),
        (data_topic(_TOPIC + "-t"),),
    ),
    Scenario(
        "produce-sequences",
        (
            _next("an unknown producer at 5", 100, 0, 5),
            _next("0", 200, 0, 0),
            _next("1", 200, 0, 1),
            _next("1 again", 200, 0, 1),
            _next("0 again", 200, 0, 0),
            _next("a gap", 200, 0, 3),
            _next("2", 200, 0, 2),
            _next("new epoch not from 0", 200, 1, 3),
            _next("new epoch from 0", 200, 1, 0),
            _next("old epoch", 200, 0, 3),
            _next("old epoch again", 200, 0, 0),
            *(_next(f"{n} of seven", 300, 0, n) for n in range(7)),
            _next("older than five", 300, 0, 0),
            _next("fifth from the end", 300, 0, 2),
            _next("across two", 300, 0, 5, b"a", b"b"),
            _next("again v3", 300, 0, 6, version=3),
            _next("gap v3", 300, 0, 9, version=3),
            _next("three at once", 301, 0, 0, b"a", b"b", b"c"),
            _next("three again", 301, 0, 0, b"a", b"b", b"c"),
            _next("two of the three", 301, 0, 0, b"a", b"b"),
            _next("the highest sequence", 400, 0, _SEQUENCE_MAX),
            _next("then 0", 400, 0, 0),
            _next("across the end", 401, 0, _SEQUENCE_MAX - 1, b"a", b"b", b"c"),
            _next("then 1", 401, 0, 1),
            produce("producer without a sequence", _SEQUENCED, batch(producer_id=7, producer_epoch=0)),
            produce("producer without an epoch", _SEQUENCED, batch(producer_id=8, base_sequence=0)),
            produce("sequence without a producer", _SEQUENCED, batch(base_sequence=4)),
            produce(
                "compressed",
                _SEQUENCED,
                batch(b"a", b"b", codec=Codec.GZIP, producer_id=500, producer_epoch=0, base_sequence=0),
            ),
            fetch("what is there", _SEQUENCED),
        ),
        (data_topic(_SEQUENCED),),
    ),
)
