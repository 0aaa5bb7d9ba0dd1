"""Comparison through real clients: the results that a user's program gets from both brokers.

A story is a function from a broker's address to plain values. Client libraries may retry and reorder
requests; only their results are compared.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaNewTopic
from kafka.errors import KafkaError as KafkaPythonError

from tools.differential.broker import Broker
from tools.differential.compare import Plain
from tools.differential.gaps import Gap
from tools.differential.run import Case, case_name, compare_case

ClientScenario = Callable[[str], Plain]

_WARNINGS = 4
_WAIT_S = 20.0
_RECORDS = 200
_BASE_MS = 1_700_000_000_000
_ONE_HAS = ("local.retention.", "remote.", "flush.policy", "retention.topic.bytes")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def run_on_both(kafka: Broker, penstock: Broker, gaps: Sequence[Gap]) -> Iterator[Case]:
    """Run every story on both brokers."""
    for name, scenario in CLIENT_SCENARIOS.items():
        heard = [_run_scenario(scenario, broker.address) for broker in (kafka, penstock)]
        yield compare_case(case_name("stories", name), heard[0], heard[1], gaps)


def _run_scenario(scenario: ClientScenario, address: str) -> Plain:
    try:
        return scenario(address)
    except KafkaException as problem:
        return f"(raised {_code(problem)})"
    except KafkaPythonError as problem:
        return f"(raised {type(problem).__name__})"
    except TimeoutError:
        return "(did not end in time)"


def _code(problem: KafkaException) -> str:
    error = problem.args[0]
    return str(error.name()) if isinstance(error, KafkaError) else repr(error)


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": _WARNINGS})


def _outcome(future: Future[Any]) -> Plain:
    try:
        future.result(_WAIT_S)
    except KafkaException as problem:
        return _code(problem)
    return "done"


def _make_topic(address: str, name: str, partitions: int = 1) -> None:
    topic = NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
    admin = _admin(address)  # a client that is dropped takes its futures with it
    for future in admin.create_topics([topic]).values():
        future.result(_WAIT_S)


def _consume(address: str, topic: str, count: int, **settings: str) -> list[Plain]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "scenario", "enable.auto.commit": False, **settings}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Plain] = []
        while len(found) < count:
            message = consumer.poll(_WAIT_S)
            if message is None:
                return [*found, "(no more came)"]
            if (error := message.error()) is not None:
                return [*found, str(error.name())]
            found.append([message.offset(), str(message.key()), str(message.value()), message.timestamp()[1]])
        return found
    finally:
        consumer.close()


def _produced_and_consumed(codec: str) -> ClientScenario:
    def scenario(address: str) -> Plain:
        topic = f"story-{codec}"
        _make_topic(address, topic)
        delivered: list[Plain] = []
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        for number in range(_RECORDS):
            producer.produce(
                topic,
                key=b"k%d" % number,
                value=b"v%d" % number,
                timestamp=_BASE_MS + number,
                on_delivery=lambda error, message: delivered.append(
                    str(error) if error else message.offset()
                ),
            )
        left = producer.flush(_WAIT_S)
        return {"left": left, "delivered": delivered, "ordered": _consume(address, topic, _RECORDS)}

    return scenario


def _watermarks_and_times(address: str) -> Plain:
    topic = "story-times"
    _make_topic(address, topic)
    producer = Producer({"bootstrap.servers": address})
    for number in range(10):
        producer.produce(topic, value=b"v", timestamp=_BASE_MS + number * 10)
    producer.flush(_WAIT_S)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "scenario"})
    try:
        marks = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_WAIT_S)
        asked = [TopicPartition(topic, 0, _BASE_MS + 45)]
        later = [TopicPartition(topic, 0, _BASE_MS + 450)]
        found = [
            each[0].offset
            for each in (consumer.offsets_for_times(at, timeout=_WAIT_S) for at in (asked, later))
        ]
    finally:
        consumer.close()
    specs = {
        "earliest": OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
        "latest": OffsetSpec.latest(),  # type: ignore[no-untyped-call]
        "newest": OffsetSpec.max_timestamp(),  # type: ignore[no-untyped-call]
    }
    admin = _admin(address)
    listed: dict[str, Plain] = {}
    for name, spec in specs.items():
        futures = admin.list_offsets({TopicPartition(topic, 0): spec})
        result = next(iter(futures.values())).result(_WAIT_S)
        listed[name] = [result.offset, result.timestamp]
    return {"low": marks[0], "high": marks[1], "times": list(found), "listed": listed}


def _administration(address: str) -> Plain:
    admin = _admin(address)
    seen: dict[str, Plain] = {}
    made = admin.create_topics(
        [NewTopic("story-admin", 2, 1), NewTopic("bad name", 1, 1), NewTopic("story-rf", 1, 5)]
    )
    seen["created"] = {name: _outcome(future) for name, future in made.items()}
    again = admin.create_topics([NewTopic("story-admin", 2, 1)])
    seen["again"] = {name: _outcome(future) for name, future in again.items()}
    grown = admin.create_partitions([NewPartitions("story-admin", 4)])
    seen["grown"] = {name: _outcome(future) for name, future in grown.items()}
    shrunk = admin.create_partitions([NewPartitions("story-admin", 1)])
    seen["shrunk"] = {name: _outcome(future) for name, future in shrunk.items()}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "story-admin", {"retention.ms": "12345"})
    altered = admin.alter_configs([resource])
    seen["altered"] = [_outcome(future) for future in altered.values()]
    gone = admin.delete_topics(["story-admin", "story-missing"])
    seen["deleted"] = {name: _outcome(future) for name, future in gone.items()}
    return seen


def _order_of_settings(address: str) -> Plain:
    """Names of settings in the order of the response, without those that only one broker has."""
    topic = "story-settings"
    _make_topic(address, topic)
    admin = _admin(address)
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    names = [name for name in future.result(_WAIT_S) if not name.startswith(_ONE_HAS)]
    return {"ordered": [*names]}


def _kafka_python(address: str) -> Plain:
    topic = "story-kafka-python"
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([KafkaNewTopic(topic, 1, 1, topic_configs={"retention.ms": "-1"})])
    producer = KafkaProducer(bootstrap_servers=address)
    sent = [producer.send(topic, b"v%d" % number, timestamp_ms=_BASE_MS + number) for number in range(20)]
    offsets = [future.get(timeout=_WAIT_S).offset for future in sent]
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=3_000
    )
    partition = KafkaTopicPartition(topic, 0)
    consumer.assign([partition])
    found: list[Plain] = []
    for record in consumer:
        found.append([record.offset, str(record.value), record.timestamp])
        if len(found) == len(sent):
            break
    ends = [consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]]
    consumer.close()
    admin.delete_topics([topic])
    admin.close()
    return {"offsets": list(offsets), "found": found, "ends": list(ends)}


CLIENT_SCENARIOS: dict[str, ClientScenario] = {
    **{f"produced and consumed, {codec}": _produced_and_consumed(codec) for codec in _CODECS},
    "watermarks and times": _watermarks_and_times,
    "administration": _administration,
    "order of settings": _order_of_settings,
    "kafka-python": _kafka_python,
}
