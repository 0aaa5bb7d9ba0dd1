"""Declarations of topic settings, with Kafka's names.

`synonyms` are the broker settings that apply while a topic has no override; their defaults agree, which a
test proves. A setting without effect is still accepted and returned, because tools set it and read it back;
its `effect` gives the reason.
"""

import re

from penstock.config.setting import ConfigType, Setting, SettingRule, by_name
from penstock.limits import (
    BATCH_BYTES_MAX,
    DAY_MS,
    FILE_DELETE_DELAY_MS,
    HOUR_MS,
    INDEX_BYTES_MAX,
    INDEX_INTERVAL_BYTES,
    LONG_MAX,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MIN,
)

BOOLEAN, STRING, INT, LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
DOUBLE, LIST = ConfigType.DOUBLE, ConfigType.LIST

ALL_ADDED = "none: every replica that a reassignment adds is held to the rate of its broker"

_THROTTLED = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)

THROTTLED_REPLICAS = SettingRule(
    lambda items: items == ("*",) or all(_THROTTLED.fullmatch(item) for item in items),
    "'*' or a comma-separated list of partition:broker pairs",
)

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
GZIP_LEVELS = (-1, 1, 2, 3, 4, 5, 6, 7, 8, 9)
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = ("compact", "delete")
FLUSH_POLICIES = ("before_ack", "interval", "os")


_RETENTION_AND_SEGMENTS = (
    Setting(
        "retention.ms",
        LONG,
        7 * DAY_MS,
        "How long a record is kept, counted from its timestamp; -1 keeps it for ever.",
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Setting(
        "retention.bytes",
        LONG,
        -1,
        "How large one partition may grow before its oldest segments are removed; -1 sets no limit.",
        minimum=-1,
        synonyms=("log.retention.bytes",),
    ),
    Setting(
        "retention.topic.bytes",
        LONG,
        -1,
        "How large the whole topic may grow, divided evenly among its partitions; -1 sets no limit.",
        minimum=-1,
        synonyms=("log.retention.topic.bytes",),
    ),
    Setting(
        "segment.bytes",
        INT,
        SEGMENT_BYTES_DEFAULT,
        "A segment that would exceed this size is closed and the next one begun.",
        minimum=SEGMENT_BYTES_MIN,
        synonyms=("log.segment.bytes",),
    ),
    Setting(
        "segment.ms",
        LONG,
        7 * DAY_MS,
        "A segment older than this is closed even if it is not full, so that retention can remove it.",
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Setting(
        "segment.jitter.ms",
        LONG,
        0,
        "The most that is taken off segment.ms at random, so that segments do not all close at once.",
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        effect="none yet: segments close after segment.ms exactly",
    ),
    Setting(
        "segment.index.bytes",
        INT,
        INDEX_BYTES_MAX,
        "The largest offset index of a segment.",
        minimum=4,
        synonyms=("log.index.size.max.bytes",),
        effect="none yet: an index has the size its segment needs",
    ),
    Setting(
        "index.interval.bytes",
        INT,
        INDEX_INTERVAL_BYTES,
        "How many bytes of log lie between two entries of its index. A larger value than 65536 counts as"
        " 65536, so that no read has to look far for its place.",
        minimum=0,
        synonyms=("log.index.interval.bytes",),
    ),
    Setting(
        "file.delete.delay.ms",
        LONG,
        FILE_DELETE_DELAY_MS,
        "How long a removed segment's files stay on disk.",
        minimum=0,
        synonyms=("log.segment.delete.delay.ms",),
        effect="none yet: files go as soon as the last reader has left them",
    ),
    Setting(
        "preallocate",
        BOOLEAN,
        False,
        "Whether a new segment's file is given its full size at once.",
        synonyms=("log.preallocate",),
        effect="none yet: files grow as they are written",
    ),
)


_RECORDS = (
    Setting(
        "max.message.bytes",
        INT,
        BATCH_BYTES_MAX,
        "The largest record batch accepted, as it is sent (after compression).",
        minimum=0,
        synonyms=("message.max.bytes",),
    ),
    Setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether a record keeps its producer's timestamp or is given the time of its arrival.",
        allowed=TIMESTAMP_TYPES,
        synonyms=("log.message.timestamp.type",),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far a producer's timestamp may lie in the past before the record is rejected.",
        minimum=0,
        synonyms=("log.message.timestamp.before.max.ms",),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        LONG,
        1 * HOUR_MS,
        "How far a producer's timestamp may lie in the future before the record is rejected.",
        minimum=0,
        synonyms=("log.message.timestamp.after.max.ms",),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "How batches are stored: 'producer' leaves them as they came.",
        allowed=COMPRESSION_TYPES,
        synonyms=("compression.type",),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        -1,
        "The level used where compression.type is gzip; -1 is the library's own.",
        allowed=GZIP_LEVELS,
        synonyms=("compression.gzip.level",),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        9,
        "The level used where compression.type is lz4.",
        minimum=1,
        maximum=17,
        synonyms=("compression.lz4.level",),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        3,
        "The level used where compression.type is zstd.",
        minimum=-131_072,
        maximum=22,
        synonyms=("compression.zstd.level",),
    ),
)


_FLUSHING = (
    Setting(
        "flush.policy",
        STRING,
        "before_ack",
        "When records reach the disk: before they are acknowledged, at intervals (flush.ms,"
        " flush.messages), or when the operating system chooses.",
        allowed=FLUSH_POLICIES,
        synonyms=("log.flush.policy",),
    ),
    Setting(
        "flush.messages",
        LONG,
        LONG_MAX,
        "With flush.policy interval: a partition is flushed after so many records.",
        minimum=1,
        synonyms=("log.flush.interval.messages",),
    ),
    Setting(
        "flush.ms",
        LONG,
        LONG_MAX,
        "With flush.policy interval: a partition is flushed after so much time.",
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
)


_COMPACTION = (
    Setting(
        "cleanup.policy",
        LIST,
        ("delete",),
        "What happens to old records: 'delete' removes them by age and size, 'compact' keeps the last"
        " one of each key.",
        allowed=CLEANUP_POLICIES,
        synonyms=("log.cleanup.policy",),
    ),
    Setting(
        "delete.retention.ms",
        LONG,
        1 * DAY_MS,
        "How long a compacted topic keeps the marker of a deleted key.",
        minimum=0,
        synonyms=("log.cleaner.delete.retention.ms",),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "The share of a compacted log that must be uncleaned before it is cleaned again.",
        minimum=0,
        maximum=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        0,
        "How long a record of a compacted topic is left alone at least.",
        minimum=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    ),
    Setting(
        "max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "How long a record of a compacted topic is left alone at most.",
        minimum=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    ),
)


_REPLICATION = (
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "How many replicas must have a record before acks=all is answered. Where it is not set: 2 of three "
        "or more replicas, else 1. It counts as a setting of the topic or of all brokers, not of one broker.",
        minimum=1,
        synonyms=("min.insync.replicas",),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica that lacks acknowledged records may lead when no other is left.",
        synonyms=("unclean.leader.election.enable",),
    ),
    Setting(
        "leader.replication.throttled.replicas",
        LIST,
        (),
        "Replicas whose sending of replicated data is throttled.",
        rule=THROTTLED_REPLICAS,
        effect=ALL_ADDED,
    ),
    Setting(
        "follower.replication.throttled.replicas",
        LIST,
        (),
        "Replicas whose receiving of replicated data is throttled.",
        rule=THROTTLED_REPLICAS,
        effect=ALL_ADDED,
    ),
)


TOPIC_SETTINGS = by_name((*_RETENTION_AND_SEGMENTS, *_RECORDS, *_FLUSHING, *_COMPACTION, *_REPLICATION))

# Kafka removed these; older tools still send them. They are accepted, but neither stored nor returned.
IGNORED_TOPIC_SETTINGS = frozenset(
    {"message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"}
)
