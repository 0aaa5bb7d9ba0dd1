"""What a topic obeys, given its own settings and its broker's."""

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.layers import GivenSettings
from penstock.config.topic import CleanupPolicy, CompressionType, FlushPolicy, TimestampType, TopicConfig
from penstock.errors import ConfigError

DEFAULT = BrokerConfig.of()


def broker(**static: str) -> BrokerConfig:
    return BrokerConfig.of(GivenSettings({name.replace("_", "."): text for name, text in static.items()}))


def test_a_topics_own_setting_wins_over_its_brokers() -> None:
    shared = broker(log_retention_ms="1000", log_segment_bytes="2097152")
    topic = TopicConfig.effective({"retention.ms": "5"}, shared)
    assert topic.retention_ms == 5
    assert topic.segment_bytes == 2_097_152


def test_settings_are_typed() -> None:
    overrides = {
        "cleanup.policy": "compact,delete",
        "flush.policy": "os",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.after.max.ms": "7",
        "compression.type": "zstd",
    }
    topic = TopicConfig.effective(overrides, DEFAULT)
    assert topic.cleanup_policy == {CleanupPolicy.COMPACT, CleanupPolicy.DELETE}
    assert topic.flush_policy is FlushPolicy.OS
    assert topic.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert topic.timestamp_after_max_ms == 7
    assert topic.compression_type is CompressionType.ZSTD
    assert topic.is_compacted
    assert not TopicConfig.effective({}, DEFAULT).is_compacted


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({"log_retention_hours": "2"}, 7_200_000),
        ({"log_retention_hours": "2", "log_retention_minutes": "3"}, 180_000),
        ({"log_retention_hours": "2", "log_retention_minutes": "3", "log_retention_ms": "4"}, 4),
        ({"log_retention_hours": "-1"}, -1),
        ({"log_retention_minutes": "0"}, 0),
    ],
)
def test_retention_follows_the_finest_unit_that_is_set(static: dict[str, str], retention_ms: int) -> None:
    assert broker(**static).topic_defaults.retention_ms == retention_ms


def test_a_segments_age_can_be_given_in_hours() -> None:
    assert broker(log_roll_hours="1").topic_defaults.segment_ms == 3_600_000


def test_flushing_at_intervals_falls_back_on_the_schedulers_interval() -> None:
    static = {"log_flush_scheduler_interval_ms": "50"}
    assert broker(**static).topic_defaults.flush_ms == 50
    assert broker(**static, log_flush_interval_ms="9").topic_defaults.flush_ms == 9


def test_keys_this_release_does_not_know_are_passed_over_when_a_topic_is_loaded() -> None:
    stored = {"from.a.newer.release": "1", "message.format.version": "2.8"}
    assert TopicConfig.effective(stored, DEFAULT) == DEFAULT.topic_defaults


def test_a_stored_value_that_makes_no_sense_is_reported_not_guessed() -> None:
    with pytest.raises(ConfigError, match=r"retention\.ms = 'soon'"):
        TopicConfig.effective({"retention.ms": "soon"}, DEFAULT)


def test_the_largest_batch_fits_a_segment_too() -> None:
    topic = TopicConfig.effective({"segment.bytes": "1048576"}, DEFAULT)
    assert topic.batch_bytes_max == 1_048_576
    assert TopicConfig.effective({"max.message.bytes": "100"}, DEFAULT).batch_bytes_max == 100


@pytest.mark.parametrize(
    ("name", "level"), [("gzip", 4), ("lz4", 5), ("zstd", 6), ("snappy", None), ("producer", None)]
)
def test_the_level_is_that_of_the_chosen_compression(name: str, level: int | None) -> None:
    overrides = {
        "compression.type": name,
        "compression.gzip.level": "4",
        "compression.lz4.level": "5",
        "compression.zstd.level": "6",
    }
    assert TopicConfig.effective(overrides, DEFAULT).compression_level == level


@pytest.mark.parametrize(
    ("partition_bytes", "topic_bytes", "expected"),
    [
        (-1, -1, -1),
        (100, -1, 100),
        (-1, 1000, 250),
        (100, 1000, 100),
        (300, 1000, 250),
        (-1, 0, 0),
        (0, 1000, 0),
    ],
)
def test_a_topics_size_limit_is_shared_by_its_partitions(
    partition_bytes: int, topic_bytes: int, expected: int
) -> None:
    overrides = {"retention.bytes": str(partition_bytes), "retention.topic.bytes": str(topic_bytes)}
    assert TopicConfig.effective(overrides, DEFAULT).retention_bytes_of_partition(4) == expected


def test_a_change_at_run_time_reaches_topics_without_their_own_value() -> None:
    changed = broker(log_retention_ms="10").with_dynamic(
        own={"log.retention.ms": "30"}, cluster={"log.retention.ms": "20"}
    )
    assert TopicConfig.effective({}, changed).retention_ms == 30
    assert (
        TopicConfig.effective({}, changed.with_dynamic(cluster={"log.retention.ms": "20"})).retention_ms == 20
    )
    assert TopicConfig.effective({}, changed.with_dynamic()).retention_ms == 10
    assert TopicConfig.effective({"retention.ms": "1"}, changed).retention_ms == 1
