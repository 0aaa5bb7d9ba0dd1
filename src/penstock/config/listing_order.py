"""The order in which DescribeConfigs lists settings: Kafka's own, because tests of clients rely on it.

Kafka lists settings in the order of its hash table: by the low bits of the hash of their name, as many bits
as the table for that kind of resource has. Settings that Kafka does not have are sorted by the same rule.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol, TypeVar

TOPIC_SLOTS: Final = 64
BROKER_SLOTS: Final = 512
GROUP_SLOTS: Final = 16

# Settings in the same slot are listed in the order in which Kafka inserts them.
_SAME_SLOT: Final = (
    ("segment.bytes", "retention.ms", "compression.gzip.level"),
    ("flush.messages", "compression.zstd.level"),
    ("max.compaction.lag.ms", "file.delete.delay.ms"),
    ("index.interval.bytes", "min.cleanable.dirty.ratio"),
    ("retention.bytes", "delete.retention.ms"),
    ("group.consumer.max.session.timeout.ms", "ssl.keystore.type"),
    ("group.consumer.max.size", "group.consumer.assignors"),
    ("group.max.session.timeout.ms", "group.consumer.heartbeat.interval.ms"),
    ("log.retention.minutes", "log.segment.delete.delay.ms"),
    ("compression.lz4.level", "log.roll.hours"),
    ("offset.metadata.max.bytes", "ssl.truststore.location"),
)
_WITHIN_SLOT: Final = {name: place for names in _SAME_SLOT for place, name in enumerate(names)}


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def in_kafkas_order(settings: Iterable[N], slots: int) -> list[N]:
    """The settings of one resource in Kafka's order. `slots` is a power of two."""
    return sorted(settings, key=lambda setting: _listing_key(setting.name, slots))


@lru_cache(maxsize=1024)
def _listing_key(name: str, slots: int) -> tuple[int, int]:
    # Java's String.hashCode and the bit spreading of HashMap.
    value = 0
    for character in name:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return (value ^ value >> 16) & (slots - 1), _WITHIN_SLOT.get(name, 0)
