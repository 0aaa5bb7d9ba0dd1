"""GroupConfig: the typed form of the group coordinator's settings."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.layers import GivenSettings, value_of
from penstock.limits import MINUTE_MS


class ClassicConfig(NamedTuple):
    session_ms_min: int
    session_ms_max: int
    initial_delay_ms: int
    members_max: int


class ConsumerConfig(NamedTuple):
    """Settings of groups that use the consumer protocol (KIP-848)."""

    session_ms: int
    heartbeat_ms: int
    heartbeat_rebalancing_ms: int
    members_max: int
    assignors: tuple[str, ...]
    """The first assignor is the default."""
    upgrade_allowed: bool
    downgrade_allowed: bool

    def of_group(self, overrides: Mapping[str, str]) -> "ConsumerConfig":
        """The effective settings of a group with these overrides."""
        own: dict[str, Any] = {
            _OVERRIDE_FIELDS[name]: GROUP_OVERRIDE_SETTINGS[name].parse(text)
            for name, text in overrides.items()
            if name in _OVERRIDE_FIELDS
        }
        return self._replace(**own)


_OVERRIDE_FIELDS = {
    "consumer.session.timeout.ms": "session_ms",
    "consumer.heartbeat.interval.ms": "heartbeat_ms",
}
assert _OVERRIDE_FIELDS.keys() == GROUP_OVERRIDE_SETTINGS.keys()


class OffsetsConfig(NamedTuple):
    metadata_bytes_max: int
    retention_ms: int
    check_ms: int


class GroupConfig(NamedTuple):
    classic: ClassicConfig
    consumer: ConsumerConfig
    offsets: OffsetsConfig
    topic_partitions: int
    topic_segment_bytes: int

    @classmethod
    def of(cls, given: GivenSettings) -> "GroupConfig":
        return cls(
            classic=ClassicConfig(
                session_ms_min=value_of("group.min.session.timeout.ms", given),
                session_ms_max=value_of("group.max.session.timeout.ms", given),
                initial_delay_ms=value_of("group.initial.rebalance.delay.ms", given),
                members_max=value_of("group.max.size", given),
            ),
            consumer=_consumer(given),
            offsets=OffsetsConfig(
                metadata_bytes_max=value_of("offset.metadata.max.bytes", given),
                retention_ms=value_of("offsets.retention.minutes", given) * MINUTE_MS,
                check_ms=value_of("offsets.retention.check.interval.ms", given),
            ),
            topic_partitions=value_of("offsets.topic.num.partitions", given),
            topic_segment_bytes=value_of("offsets.topic.segment.bytes", given),
        )


def _consumer(given: GivenSettings) -> ConsumerConfig:
    policy = value_of("group.consumer.migration.policy", given)
    return ConsumerConfig(
        session_ms=value_of("group.consumer.session.timeout.ms", given),
        heartbeat_ms=value_of("group.consumer.heartbeat.interval.ms", given),
        heartbeat_rebalancing_ms=value_of("group.consumer.rebalance.heartbeat.interval.ms", given),
        members_max=value_of("group.consumer.max.size", given),
        assignors=value_of("group.consumer.assignors", given),
        upgrade_allowed=policy in ("bidirectional", "upgrade"),
        downgrade_allowed=policy in ("bidirectional", "downgrade"),
    )
