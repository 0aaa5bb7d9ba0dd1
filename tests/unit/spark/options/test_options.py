"""What users may say in `.option(...)`, and what they are told if it is wrong."""

import pickle

import pytest

from penstock.config.listeners import Address
from penstock.errors import ConfigError
from penstock.protocol.compression import Codec
from penstock.spark.options.names import READ_OPTIONS
from penstock.spark.options.options import (
    AssignedPartitions,
    EarliestOrLatest,
    GlobalTimestamp,
    NamedTopics,
    ReadSettings,
    SpecificOffsets,
    SpecificTimestamps,
    TopicPattern,
    TriggerLimits,
    batch_read_settings,
    stream_read_settings,
    write_settings,
)
from penstock.types import TopicPartition

EARLIEST, LATEST = EarliestOrLatest(-2), EarliestOrLatest(-1)
NEEDED = {"kafka.bootstrap.servers": "one:9092", "subscribe": "orders"}


def batch(**options: str) -> ReadSettings:
    return batch_read_settings(NEEDED | options)


def stream(**options: str) -> ReadSettings:
    return stream_read_settings(NEEDED | options)


def kafka(name: str, value: str) -> dict[str, str]:
    return {f"kafka.{name}": value}


def test_a_batch_reads_everything_there_is_unless_told_otherwise() -> None:
    settings = batch()
    assert (settings.start, settings.end) == (EARLIEST, LATEST)
    assert settings.subscription == NamedTopics(("orders",))
    assert settings.access.bootstrap == (Address("one", 9092),)
    assert settings.fail_on_data_loss
    assert settings.read_committed
    assert not settings.include_headers


def test_a_stream_starts_with_what_comes_next_unless_told_otherwise() -> None:
    assert stream().start == LATEST
    assert stream().limits == TriggerLimits()


def test_names_of_options_have_no_case() -> None:
    settings = stream(MAXOFFSETSPERTRIGGER="7", startingoffsets="Earliest", FailOnDataLoss="FALSE")
    assert settings.limits.offsets_max == 7
    assert settings.start == EARLIEST
    assert not settings.fail_on_data_loss


def test_settings_travel_to_executors() -> None:
    settings = batch(startingOffsets='{"orders":{"0":5}}')
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_topics_are_named_once_each() -> None:
    assert batch(subscribe=" a, b,,a ").subscription == NamedTopics(("a", "b"))


def test_a_pattern_must_match_the_whole_name() -> None:
    options = {"bootstrap": "one:9092", "subscribePattern": "orders-.*"}
    subscription = stream_read_settings(options).subscription
    assert subscription == TopicPattern("orders-.*")
    assert subscription.matches("orders-eu")
    assert not subscription.matches("old-orders-eu")


def test_partitions_can_be_assigned() -> None:
    options = {"bootstrap": "one:9092", "assign": '{"a":[0,2],"b":[1]}'}
    expected = frozenset({TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)})
    assert stream_read_settings(options).subscription == AssignedPartitions(expected)


def test_a_time_for_all_wins_over_times_and_these_over_offsets() -> None:
    offsets, times = '{"orders":{"0":5}}', '{"orders":{"0":1000}}'
    said = {"startingOffsets": offsets, "startingOffsetsByTimestamp": times, "startingTimestamp": "2000"}
    partition = TopicPartition("orders", 0)
    assert stream(**said).start == GlobalTimestamp(2000)
    del said["startingTimestamp"]
    assert stream(**said).start == SpecificTimestamps({partition: 1000})
    del said["startingOffsetsByTimestamp"]
    assert stream(**said).start == SpecificOffsets({partition: 5})


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("90s", 90_000), ("250", 250), ("1h", 3_600_000), ("100ms", 100)]
)
def test_a_delay_is_written_as_spark_writes_times(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).limits.delay_ms_max == ms


def test_large_partitions_are_cut_in_batches_only() -> None:
    assert batch().records_per_task_max == 1_000_000
    assert stream().records_per_task_max is None
    assert batch(minPartitions="4").records_per_task_max is None


def test_the_group_is_the_one_that_was_named() -> None:
    assert stream(**kafka("group.id", "mine")).group == "mine"
    assert stream(queryName="orders-archive").group == "orders-archive"
    assert stream().group is None


def test_what_spark_adds_and_what_kafkas_clients_know_is_taken() -> None:
    stream(path="/x", checkpointLocation="/y", **kafka("max.poll.records", "5"), **kafka("linger.ms", "5"))
    stream(**{"fetchOffset.numRetries": "3"}, **kafka("session.timeout.ms", "10000"))


def test_every_option_of_the_official_source_is_known() -> None:
    official = """assign subscribe subscribePattern startingTimestamp startingOffsetsByTimestamp
    startingOffsets endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss
    kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger
    minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix includeHeaders
    startingOffsetsByTimestampStrategy"""
    assert set(official.split()) <= set(READ_OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "no option startingOffset; did you mean startingOffsets?"),
        ({"kafka.bootstrap.server": "x"}, "did you mean kafka.bootstrap.servers"),
        ({"wibble": "1"}, "no option wibble; docs/spark.md"),
        (
            {"kafka.auto.offset.reset": "earliest"},
            "kafka.auto.offset.reset is not supported.*startingOffsets",
        ),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is not supported"),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer is not supported.*bytes"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.mechanism: SASL is not supported yet"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.security.protocol is SASL_SSL"),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol is 'TLS'; give one of plaintext, ssl"),
        ({"kafka.bootstrap.servers": "nowhere"}, "kafka.bootstrap.servers is 'nowhere'; give host:port"),
        ({"assign": '{"a":[0]}'}, "more than one is: subscribe, assign"),
        ({"subscribe": " , "}, "option subscribe is ' , '; give the name"),
        ({"startingOffsets": "begin"}, "startingOffsets is 'begin'; give earliest, latest or JSON"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "-1 is latest, -2 earliest"),
        ({"startingOffsets": '{"a":[1]}'}, 'give JSON such as {"orders":{"0":23'),
        ({"startingOffsets": '{"a":{"0":1.5}}'}, "give JSON such as"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'; give a whole number"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-5}}'}, "in milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "give one of error, latest"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'; give a whole number, at least 1"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "9, is higher than maxOffsetsPerTrigger, 5",
        ),
        ({"maxTriggerDelay": "soon"}, "give a time such as 30s"),
        ({"maxTriggerDelay": "5y"}, "give a time such as 30s"),
        ({"maxTriggerDelay": "9" * 5_000}, "give a time such as 30s"),
        ({"maxOffsetsPerTrigger": "1_000"}, "maxOffsetsPerTrigger is '1_000'; give a whole number"),
        ({"maxOffsetsPerTrigger": "\N{ARABIC-INDIC DIGIT THREE}"}, "give a whole number, at least 1"),
        ({"maxOffsetsPerTrigger": str(2**63)}, "give a whole number, at least 1"),
        ({"kafka.max.partition.fetch.bytes": str(2**31)}, "give a whole number, from 1 to 2147483647"),
        ({"kafka.fetch.max.bytes": str(2**31)}, "give a whole number, from 1 to 2147483647"),
        ({"kafka.request.timeout.ms": str(2**31)}, "give a whole number, from 1 to 2147483647"),
        ({"startingOffsets": '{"a":{"1_0":5}}'}, "give JSON such as"),
        ({"startingOffsets": f'{{"a":{{"0":{2**63}}}}}'}, "-1 is latest, -2 earliest"),
        ({"minPartitions": "-1"}, "minPartitions is '-1'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'; give one of true, false"),
        ({"kafka.isolation.level": "serializable"}, "give one of read_committed, read_uncommitted"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_give_instead(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("{", r"\{").replace("?", r"\?")):
        stream_read_settings(NEEDED | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets is latest: a batch read would find nothing"),
        ({"startingOffsets": '{"orders":{"1":-1}}'}, "would find nothing in orders-1"),
        ({"endingOffsets": "earliest"}, "endingOffsets is earliest"),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "startingTimestamp 5 is after endingTimestamp 4",
        ),
        (
            {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":8}}'},
            "startingOffsets of orders-0 is 9, after endingOffsets, 8",
        ),
        (
            {"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"1":8}}'},
            "name different partitions: orders-0",
        ),
    ],
)
def test_a_batch_that_could_only_be_empty_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_read_settings(NEEDED | options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for batch reads"):
        stream(**{name: "latest"})


def test_what_to_read_must_be_said() -> None:
    with pytest.raises(ConfigError, match="one of the options subscribe, subscribePattern, assign"):
        stream_read_settings({"bootstrap": "one:9092"})
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers must say where"):
        stream_read_settings({"subscribe": "orders"})


def test_a_bad_pattern_is_no_expression() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        stream_read_settings({"bootstrap": "one:9092", "subscribePattern": "orders-("})


def test_tls_takes_files_of_kafkas_and_of_librdkafkas_names() -> None:
    secure = kafka("security.protocol", "ssl")
    java = stream(
        **secure,
        **kafka("ssl.truststore.location", "/ca.pem"),
        **kafka("ssl.keystore.location", "/me.pem"),
        **kafka("ssl.key.password", "secret"),
        **kafka("ssl.endpoint.identification.algorithm", ""),
    ).access.tls
    assert java is not None
    assert (java.ca, java.certificate, java.key_password) == ("/ca.pem", "/me.pem", "secret")
    assert not java.check_hostname
    assert "secret" not in repr(java)
    other = stream(
        **secure, **kafka("ssl.ca.location", "/ca.pem"), **kafka("ssl.key.location", "/key.pem")
    ).access.tls
    assert other is not None
    assert (other.ca, other.key, other.check_hostname) == ("/ca.pem", "/key.pem", True)


def test_a_java_keystore_is_refused_with_the_way_to_convert_it() -> None:
    with pytest.raises(ConfigError, match=r"/store\.jks is a Java keystore; convert it: openssl pkcs12"):
        stream(**kafka("security.protocol", "SSL"), **kafka("ssl.keystore.location", "/store.jks"))
    with pytest.raises(ConfigError, match=r"kafka\.ssl\.truststore\.type: only PEM"):
        stream(**kafka("security.protocol", "SSL"), **kafka("ssl.truststore.type", "PKCS12"))


def test_writing_has_the_defaults_of_the_official_sink() -> None:
    settings = write_settings({"kafka.bootstrap.servers": "one:9092", "topic": " orders "})
    assert (settings.topic, settings.codec, settings.acks) == ("orders", Codec.NONE, -1)
    compressed = write_settings({"bootstrap": "one:9092", "kafka.compression.type": "LZ4", "kafka.acks": "1"})
    assert (compressed.topic, compressed.codec, compressed.acks) == (None, Codec.LZ4, 1)


def test_a_writer_is_idempotent_unless_acks_or_an_option_forbid_it() -> None:
    def is_idempotent(**options: str) -> bool:
        kafka = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
        return write_settings({"bootstrap": "one:9092"} | kafka).is_idempotent

    assert is_idempotent()
    assert is_idempotent(acks="all", enable_idempotence="true")
    assert not is_idempotent(acks="1")
    assert not is_idempotent(enable_idempotence="false")
    with pytest.raises(ConfigError, match=r"kafka\.acks is 1, and an idempotent producer needs all"):
        is_idempotent(acks="1", enable_idempotence="true")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.compression.type": "rar"}, "give one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.max.request.size": str(2**31)}, "give a whole number, from 1 to 2147483647"),
        ({"kafka.acks": "2"}, "give one of all, -1, 1, 0"),
        ({"topics": "x"}, r"no option topics; did you mean topic\?"),
        ({"kafka.value.serializer": "x"}, "not supported"),
        ({"startingOffsets": "earliest"}, "no option startingOffsets"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_settings({"bootstrap": "one:9092"} | options)
