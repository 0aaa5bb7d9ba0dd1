"""TopicConfig: the typed form of a topic's settings, as its log uses them.

The broker keeps one `TopicConfig` with its defaults; a topic's overrides replace fields of it. Two kinds of
settings have no field here: those without effect, and those on which all brokers must agree, which
metadata/durability.py reads from the image.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.config.layers import NO_SETTINGS, GivenSettings, topic_value_of
from penstock.config.setting import SettingValue
from penstock.config.topic_settings import TOPIC_SETTINGS

if TYPE_CHECKING:
    from penstock.config.broker import BrokerConfig


class FlushPolicy(StrEnum):
    """When records are flushed to disk."""

    BEFORE_ACK = "before_ack"
    INTERVAL = "interval"
    OS = "os"


class CleanupPolicy(StrEnum):
    DELETE = "delete"
    COMPACT = "compact"


class TimestampType(StrEnum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class CompressionType(StrEnum):
    """Compression of stored batches. `PRODUCER` stores batches as they were received."""

    PRODUCER = "producer"
    UNCOMPRESSED = "uncompressed"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class TopicConfig(NamedTuple):
    retention_ms: int
    """-1 keeps records for ever."""
    retention_bytes: int
    """Limit for one partition; -1 sets no limit."""
    retention_topic_bytes: int
    """Limit for all partitions together; -1 sets no limit."""
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    timestamp_type: TimestampType
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression_type: CompressionType
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    flush_policy: FlushPolicy
    flush_messages: int
    flush_ms: int
    cleanup_policy: frozenset[CleanupPolicy]
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int

    @classmethod
    def effective(cls, overrides: Mapping[str, str], broker: "BrokerConfig") -> "TopicConfig":
        """The effective settings of a topic: its overrides, and the broker's values for the rest."""
        own = {
            _FIELDS[name]: _typed(_FIELDS[name], TOPIC_SETTINGS[name].parse(text))
            for name, text in overrides.items()
            if name in _FIELDS
        }
        return broker.topic_defaults._replace(**own)

    @classmethod
    def defaults(cls, given: GivenSettings) -> "TopicConfig":
        """The effective settings of a topic without overrides on a broker with these settings."""
        values = {field: topic_value_of(name, NO_SETTINGS, given) for name, field in _FIELDS.items()}
        return cls(**{field: _typed(field, value) for field, value in values.items()})

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that can be written: it must fit a segment too."""
        return min(self.max_message_bytes, self.segment_bytes)

    @property
    def compression_level(self) -> int | None:
        """The level of the chosen compression, where it has levels."""
        levels = {
            CompressionType.GZIP: self.compression_gzip_level,
            CompressionType.LZ4: self.compression_lz4_level,
            CompressionType.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def is_compacted(self) -> bool:
        return CleanupPolicy.COMPACT in self.cleanup_policy

    def retention_bytes_of_partition(self, partitions: int) -> int:
        """The size limit of one of `partitions` partitions; -1 if there is none."""
        assert partitions > 0, "a topic has partitions"
        if self.retention_topic_bytes < 0:
            return self.retention_bytes
        # The topic's limit is divided evenly over its partitions.
        share = self.retention_topic_bytes // partitions
        return share if self.retention_bytes < 0 else min(share, self.retention_bytes)


# The word "message" adds nothing here, except before "bytes".
_FIELDS = {
    name: field
    for name in TOPIC_SETTINGS
    if (field := name.replace(".", "_").replace("message_timestamp", "timestamp")) in TopicConfig._fields
}
assert len(_FIELDS) == len(TopicConfig._fields), "every field has a setting"

_ENUMS: dict[str, type[StrEnum]] = {
    "timestamp_type": TimestampType,
    "compression_type": CompressionType,
    "flush_policy": FlushPolicy,
}


def _typed(field: str, value: SettingValue) -> Any:
    if isinstance(value, tuple):
        return frozenset(CleanupPolicy(item) for item in value)
    return _ENUMS[field](value) if isinstance(value, str) else value
