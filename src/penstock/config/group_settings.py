"""Declarations of the settings of consumer groups and of their committed offsets, with Kafka's names."""

from penstock.config.setting import ConfigType, Setting, SettingRule, by_name
from penstock.limits import (
    CONSUMER_HEARTBEAT_MS,
    CONSUMER_HEARTBEAT_REBALANCING_MS,
    DAY_MS,
    GROUP_MEMBERS_MAX,
    HOUR_MS,
    MIB,
    MINUTE_MS,
    OFFSET_METADATA_BYTES_MAX,
    SECOND_MS,
    SHORT_MAX,
)

ASSIGNORS = ("uniform", "range")
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")

STRING, INT, LONG, LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST


def _has_known_assignors(names: tuple[str, ...]) -> bool:
    return bool(names) and len(set(names)) == len(names) and set(names) <= set(ASSIGNORS)


GROUP_SETTINGS = (
    Setting(
        "group.min.session.timeout.ms",
        INT,
        6 * SECOND_MS,
        "The shortest session a member of a classic group may ask for.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "group.max.session.timeout.ms",
        INT,
        30 * MINUTE_MS,
        "The longest session a member of a classic group may ask for.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        3 * SECOND_MS,
        "How long an empty classic group waits for further members before its first assignment.",
        minimum=0,
        dynamic=True,
    ),
    Setting(
        "group.max.size",
        INT,
        GROUP_MEMBERS_MAX,
        "Members of one classic group.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "group.consumer.session.timeout.ms",
        INT,
        45 * SECOND_MS,
        "A member that has not been heard of for so long is removed (new group protocol).",
        minimum=SECOND_MS,
        dynamic=True,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        CONSUMER_HEARTBEAT_MS,
        "How often members report while nothing changes (new group protocol).",
        minimum=100,
        dynamic=True,
    ),
    Setting(
        "group.consumer.rebalance.heartbeat.interval.ms",
        INT,
        CONSUMER_HEARTBEAT_REBALANCING_MS,
        "How often members report while partitions change hands (new group protocol).",
        minimum=50,
        dynamic=True,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms",
        INT,
        45 * SECOND_MS,
        "The shortest `consumer.session.timeout.ms` that a group may be given.",
        minimum=1,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms",
        INT,
        60 * SECOND_MS,
        "The longest `consumer.session.timeout.ms` that a group may be given.",
        minimum=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        CONSUMER_HEARTBEAT_MS,
        "The shortest `consumer.heartbeat.interval.ms` that a group may be given.",
        minimum=1,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        15 * SECOND_MS,
        "The longest `consumer.heartbeat.interval.ms` that a group may be given.",
        minimum=1,
    ),
    Setting(
        "group.consumer.max.size",
        INT,
        GROUP_MEMBERS_MAX,
        "Members of one group of the new protocol.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "group.consumer.assignors",
        LIST,
        ASSIGNORS,
        "How partitions may be divided; the first is used where members name none.",
        rule=SettingRule(_has_known_assignors, f"some of {', '.join(ASSIGNORS)}, each once"),
        dynamic=True,
    ),
    Setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Which living groups may change between the classic and the new protocol.",
        allowed=MIGRATION_POLICIES,
        dynamic=True,
    ),
)

GROUP_OVERRIDE_SETTINGS = by_name(
    (
        Setting(
            "consumer.heartbeat.interval.ms",
            INT,
            CONSUMER_HEARTBEAT_MS,
            "How often members report while nothing changes.",
            minimum=1,
            synonyms=("group.consumer.heartbeat.interval.ms",),
        ),
        Setting(
            "consumer.session.timeout.ms",
            INT,
            45 * SECOND_MS,
            "A member that has not been heard of for so long is removed.",
            minimum=1,
            synonyms=("group.consumer.session.timeout.ms",),
        ),
    )
)
"""Settings that one group of the consumer protocol can have."""

OFFSET_SETTINGS = (
    Setting(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets, when it is created.",
        minimum=1,
        maximum=1_000,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        INT,
        8 * MIB,
        "Segment size of __consumer_offsets, when it is created.",
        minimum=4 * MIB,
    ),
    Setting(
        "offsets.retention.minutes",
        INT,
        7 * DAY_MS // MINUTE_MS,
        "How long offsets are kept after their group became empty.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        10 * MINUTE_MS,
        "How often groups are looked through for offsets to forget.",
        minimum=1,
        maximum=24 * HOUR_MS,
        dynamic=True,
    ),
    Setting(
        "offset.metadata.max.bytes",
        INT,
        OFFSET_METADATA_BYTES_MAX,
        "The longest note a client may leave beside an offset.",
        minimum=0,
        maximum=SHORT_MAX,
        dynamic=True,
    ),
)
