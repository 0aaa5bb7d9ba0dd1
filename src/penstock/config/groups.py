"""GroupConfig: the typed form of the group coordinator's settings."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.layers import GivenSettings, part_of, value_of
from penstock.limits import MINUTE_MS


class ClassicConfig(NamedTuple):
    session_ms_min: Annotated[int, "group.min.session.timeout.ms"]
    session_ms_max: Annotated[int, "group.max.session.timeout.ms"]
    initial_delay_ms: Annotated[int, "group.initial.rebalance.delay.ms"]
    members_max: Annotated[int, "group.max.size"]


class ConsumerConfig(NamedTuple):
    """Settings of groups that use the consumer protocol (KIP-848)."""

    session_ms: Annotated[int, "group.consumer.session.timeout.ms"]
    heartbeat_ms: Annotated[int, "group.consumer.heartbeat.interval.ms"]
    heartbeat_rebalancing_ms: Annotated[int, "group.consumer.rebalance.heartbeat.interval.ms"]
    members_max: Annotated[int, "group.consumer.max.size"]
    assignors: Annotated[tuple[str, ...], "group.consumer.assignors"]
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
    metadata_bytes_max: Annotated[int, "offset.metadata.max.bytes"]
    retention_ms: int
    check_ms: Annotated[int, "offsets.retention.check.interval.ms"]


class GroupConfig(NamedTuple):
    classic: ClassicConfig
    consumer: ConsumerConfig
    offsets: OffsetsConfig
    topic_partitions: Annotated[int, "offsets.topic.num.partitions"]
    topic_segment_bytes: Annotated[int, "offsets.topic.segment.bytes"]

    @classmethod
    def of(cls, given: GivenSettings) -> "GroupConfig":
        policy = value_of("group.consumer.migration.policy", given)
        consumer = part_of(
            ConsumerConfig,
            given,
            upgrade_allowed=policy in ("bidirectional", "upgrade"),
            downgrade_allowed=policy in ("bidirectional", "downgrade"),
        )
        retention_ms = value_of("offsets.retention.minutes", given) * MINUTE_MS
        return part_of(
            cls,
            given,
            classic=part_of(ClassicConfig, given),
            consumer=consumer,
            offsets=part_of(OffsetsConfig, given, retention_ms=retention_ms),
        )
