"""What every client can do with a broker, each through its adapter."""

import time

import pytest
from confluent_kafka import KafkaError

from penstock.errors import ErrorCode
from tests.integration.clients.aiokafka_client import AiokafkaClient
from tests.integration.clients.client import Capability, Client, Refused, Sending, Sent
from tests.integration.clients.confluent_client import ConfluentClient
from tests.integration.clients.kafka_python_client import KafkaPythonClient, WithoutSessions
from tests.integration.clients.kcat_client import KcatClient
from tests.integration.messages import COMPRESSIONS, FIRST_TIMESTAMP_MS, Stored, assert_same, spread

PARTITIONS = 3
CLIENTS: list[type[Client]] = [ConfluentClient, KafkaPythonClient, AiokafkaClient, KcatClient]
TWENTY_SECONDS_MS = 20_000


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    kind: type[Client] = request.param
    if (reason := kind.absent()) is not None:
        pytest.skip(reason)
    return kind(bootstrap)


def read_all(client: Client, topic: str, count: int, partitions: int = 1) -> list[Stored]:
    with client.reading(topic, partitions) as reader:
        return reader.read(count)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_come_back_as_they_were_sent(client: Client, topic: str, compression: str) -> None:
    client.create_topic(topic, PARTITIONS)
    sent = spread(client.messages(300), PARTITIONS)

    acknowledged = client.produce(topic, sent, Sending(compression=compression))
    found = read_all(client, topic, 300, PARTITIONS)

    assert_same(found, sent)
    if Capability.PLACES not in client.lacks:
        assert sorted(acknowledged) == sorted((each.partition, each.offset) for each in found)


def test_an_idempotent_producer_keeps_order_with_many_requests(client: Client, topic: str) -> None:
    client.create_topic(topic, 1)
    sent = {0: client.messages(5_000)}

    client.produce(topic, sent, Sending(in_small_batches=True))

    assert_same(read_all(client, topic, 5_000), sent)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_kept_whatever_acks_was_asked_for(client: Client, topic: str, acks: str) -> None:
    client.create_topic(topic, 1)
    sent = {0: client.messages(50)}

    client.produce(topic, sent, Sending(acks=acks))

    assert_same(read_all(client, topic, 50), sent)


def test_writing_to_an_unknown_topic_creates_it(client: Client, topic: str) -> None:
    client.produce(topic, {0: client.messages(3)})

    assert_same(read_all(client, topic, 3), {0: client.messages(3)})


@pytest.mark.parametrize("client", [*CLIENTS, WithoutSessions], ids=lambda kind: kind.name, indirect=True)
def test_records_that_come_bit_by_bit_are_all_read(client: Client, topic: str) -> None:
    """An incremental fetch session names only partitions that changed, and must miss none."""
    client.create_topic(topic, PARTITIONS)
    messages = client.messages(60)
    sent: Sent = {number: [] for number in range(PARTITIONS)}
    found: list[Stored] = []

    with client.reading(topic, PARTITIONS, wait_ms=100) as reader:
        for first in range(0, 60, 10):
            partition, some = first // 10 % PARTITIONS, messages[first : first + 10]
            client.produce(topic, {partition: some})
            sent[partition] += some
            found += reader.read(10)

    assert_same(found, sent)


def test_seeking_reads_again_from_there(client: Client, topic: str) -> None:
    client.create_topic(topic, 1)
    client.produce(topic, {0: client.messages(100)})

    with client.reading(topic, 1) as reader:
        reader.read(100)
        reader.seek(0, 57)
        again = reader.read(43)

    assert [each.offset for each in again] == list(range(57, 100))


def test_offsets_are_found_by_time_whatever_the_compression(client: Client, topic: str) -> None:
    client.require(Capability.EVERY_FIELD)
    client.create_topic(topic, len(COMPRESSIONS))
    for partition, compression in enumerate(COMPRESSIONS):
        client.produce(topic, {partition: client.messages(50)}, Sending(compression=compression))

    first = FIRST_TIMESTAMP_MS
    expected = {0: 0, first + 41_001: 42, first + 42_000: 42, first + 10**9: None}
    for timestamp_ms, offset in expected.items():
        found = client.offsets_at(topic, len(COMPRESSIONS), timestamp_ms)
        assert found == [offset] * len(COMPRESSIONS)


def test_watermarks_span_what_was_written(client: Client, topic: str) -> None:
    client.create_topic(topic, 1)
    assert client.watermarks(topic) == (0, 0)

    client.produce(topic, {0: client.messages(25)})

    assert client.watermarks(topic) == (0, 25)


def test_a_consumer_that_waits_is_woken_by_the_next_record(client: Client, topic: str) -> None:
    client.require(Capability.WAITING)
    client.create_topic(topic, 1)

    with client.reading(topic, 1, wait_ms=TWENTY_SECONDS_MS) as reader:
        assert reader.poll(0.5) == []
        client.produce(topic, {0: client.messages(1)})
        written_at = time.monotonic()
        (message,) = reader.read(1)

        assert message.offset == 0
        assert time.monotonic() - written_at < 5, "it must not wait for its twenty seconds to pass"


def test_a_record_beyond_the_limit_of_its_topic_is_refused(client: Client, topic: str) -> None:
    client.require(Capability.ERRORS)
    client.create_topic(topic, 1, {"max.message.bytes": "10000"})
    too_large = client.messages(1)[0]._replace(value=bytes(20_000))

    with pytest.raises(Refused) as refusal:
        client.produce(topic, {0: [too_large]})

    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_topic_can_keep_the_time_of_the_broker(client: Client, topic: str) -> None:
    client.require(Capability.EVERY_FIELD)
    client.create_topic(topic, 1, {"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000

    client.produce(topic, {0: client.messages(5)}, Sending(compression="gzip"))

    for each in read_all(client, topic, 5):
        assert before_ms - 1 <= each.message.timestamp_ms <= time.time_ns() // 1_000_000


def test_an_offset_that_does_not_exist_is_an_error_to_the_user(client: Client, topic: str) -> None:
    client.require(Capability.ERRORS)
    client.create_topic(topic, 1)
    client.produce(topic, {0: client.messages(5)})

    with client.reading(topic, 1, start=1_000) as reader, pytest.raises(Refused) as refusal:
        reader.read(1)

    assert refusal.value.code in (ErrorCode.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


def test_topics_are_made_grown_and_removed(client: Client, topic: str) -> None:
    client.require(Capability.ADMINISTRATION)
    client.create_topic(topic, 2, {"retention.ms": "1234567"})
    with pytest.raises(Refused) as refusal:
        client.create_topic(topic, 2)
    assert refusal.value.code == ErrorCode.TOPIC_ALREADY_EXISTS

    with client.administration() as admin:
        assert admin.setting(topic, "retention.ms") == "1234567"
        sent = {0: client.messages(5), 4: client.messages(7)}
        client.produce(topic, {0: sent[0]})
        admin.grow(topic, 5)
        assert admin.partitions_of(topic) == [0, 1, 2, 3, 4]
        client.produce(topic, {4: sent[4]})
        assert_same(read_all(client, topic, 12, partitions=5), sent)
        with pytest.raises(Refused) as refusal:
            admin.grow(topic, 2)
        assert refusal.value.code == ErrorCode.INVALID_PARTITIONS

        admin.delete(topic)
        assert topic not in admin.topics()
        with pytest.raises(Refused) as refusal:
            admin.delete(topic)
        assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    client.create_topic(topic, 1)
    assert client.watermarks(topic) == (0, 0), "nothing of the topic that had this name"


def test_a_setting_is_changed_and_taken_back(client: Client, topic: str) -> None:
    client.require(Capability.ADMINISTRATION)
    client.create_topic(topic, 1)
    with client.administration() as admin:
        default = admin.setting(topic, "retention.ms")
        admin.alter(topic, "retention.ms", "60000")
        assert admin.setting(topic, "retention.ms") == "60000" != default
        admin.alter(topic, "retention.ms", None)
        assert admin.setting(topic, "retention.ms") == default


def test_deleted_records_are_not_read_any_more(client: Client, topic: str) -> None:
    client.require(Capability.ADMINISTRATION)
    client.create_topic(topic, 1)
    client.produce(topic, {0: client.messages(20)})

    with client.administration() as admin:
        admin.delete_records(topic, 12)

    assert client.watermarks(topic) == (12, 20)
    with client.reading(topic, 1) as reader:
        assert [each.offset for each in reader.read(8)] == list(range(12, 20))
