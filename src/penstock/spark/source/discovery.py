"""Discovery of what a query reads: the partitions, and the offsets of its bounds.

Rule: A partition that the user named and the cluster does not have is an error that names it. Partitions
      that disappear later are handled by the caller, which has the earlier ones.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.errors import ConfigError
from penstock.spark.options.options import (
    AssignedPartitions,
    EarliestOrLatest,
    GlobalTimestamp,
    NamedTopics,
    ReadBound,
    ReadSettings,
    SpecificOffsets,
    SpecificTimestamps,
    TopicPattern,
    TopicSubscription,
)
from penstock.spark.options.values import EARLIEST, LATEST
from penstock.types import TopicId, TopicPartition
from penstock.wire.cluster_client import ClusterClient, LogEnd, TopicMetadata

log = logging.getLogger("penstock.spark")

_NAMED_IN_MESSAGES_MAX = 5


class DataLost(Exception):
    """Records that the query was to read no longer exist."""


class DiscoveredTopics(NamedTuple):
    """Partitions and topic ids that a subscription matches now."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, TopicId]
    missing: tuple[str, ...]
    """Named topics, or named partitions, that do not exist."""


def discover(
    client: ClusterClient, subscription: TopicSubscription, ids: Mapping[str, TopicId] | None = None
) -> DiscoveredTopics:
    """The topics and partitions of a subscription.

    `ids`: the ids that topics had before. A broker that returns another id may have stale metadata.
    """
    match subscription:
        case NamedTopics(names):
            topics = client.topics(names, ids)
            missing = [name for name in names if name not in topics]
        case TopicPattern():
            everything = client.topics()
            topics = {
                name: facts
                for name, facts in everything.items()
                if subscription.matches(name) and not facts.internal
            }
            missing = []
        case AssignedPartitions(wanted):
            topics = client.topics(sorted({partition.topic for partition in wanted}), ids)
            there = wanted & _all_partitions(topics)
            missing = [str(partition) for partition in sorted(wanted - there)]
            return DiscoveredTopics(there, {name: facts.id for name, facts in topics.items()}, tuple(missing))
    ids = {name: facts.id for name, facts in topics.items()}
    return DiscoveredTopics(_all_partitions(topics), ids, tuple(missing))


def _all_partitions(topics: Mapping[str, TopicMetadata]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, number) for name, facts in topics.items() for number in range(facts.partitions)
    )


def require_found(found: DiscoveredTopics, subscription: TopicSubscription) -> frozenset[TopicPartition]:
    """The partitions found. ConfigError if a named topic or partition does not exist."""
    if found.missing:
        what = "partition" if isinstance(subscription, AssignedPartitions) else "topic"
        raise ConfigError(
            f"there is no {what} {shortened_list(found.missing)}; create it, as with "
            "penstock topic create NAME, or correct the option"
        )
    return found.partitions


def resolve_bound(
    client: ClusterClient, settings: ReadSettings, bound: ReadBound, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offset of the bound in each partition.

    A `bound` that is settings.start has the rules of a start, any other one has those of an end.
    """
    which = "starting" if bound is settings.start else "ending"
    match bound:
        case EarliestOrLatest(offset):
            wanted = dict.fromkeys(partitions, offset)
        case SpecificOffsets(offsets):
            _check_same(f"{which}Offsets", offsets, partitions)
            wanted = dict(offsets)
        case GlobalTimestamp(timestamp_ms):
            times = dict.fromkeys(partitions, timestamp_ms)
            wanted = _at_times(client, settings, times, is_start=which == "starting")
        case SpecificTimestamps(timestamps_ms):
            _check_same(f"{which}OffsetsByTimestamp", timestamps_ms, partitions)
            wanted = _at_times(client, settings, timestamps_ms, is_start=which == "starting")
    special = {partition: offset for partition, offset in wanted.items() if offset < 0}
    return wanted | fetch_offsets(client, special, settings)


def fetch_offsets(
    client: ClusterClient, wanted: Mapping[TopicPartition, int], settings: ReadSettings
) -> dict[TopicPartition, int]:
    """Resolve EARLIEST and LATEST to offsets."""
    if not wanted:
        return {}
    found = client.offsets(wanted, read_committed=settings.read_committed)
    return {partition: offset for partition, (offset, _) in found.items()}


def fetch_earliest(
    client: ClusterClient, partitions: Iterable[TopicPartition], settings: ReadSettings
) -> dict[TopicPartition, int]:
    return fetch_offsets(client, dict.fromkeys(partitions, EARLIEST), settings)


def fetch_latest(
    client: ClusterClient, partitions: Iterable[TopicPartition], settings: ReadSettings
) -> dict[TopicPartition, int]:
    return fetch_offsets(client, dict.fromkeys(partitions, LATEST), settings)


def fetch_ends(
    client: ClusterClient, partitions: Iterable[TopicPartition], settings: ReadSettings
) -> dict[TopicPartition, LogEnd]:
    """The ends of partitions, with leader epochs."""
    wanted = list(partitions)
    return client.log_ends(wanted, read_committed=settings.read_committed) if wanted else {}


def _at_times(
    client: ClusterClient, settings: ReadSettings, times: Mapping[TopicPartition, int], *, is_start: bool
) -> dict[TopicPartition, int]:
    found = client.offsets(times, read_committed=settings.read_committed)
    if is_start and not settings.latest_if_no_match:
        for partition, (offset, _) in sorted(found.items()):
            if offset < 0:
                raise ConfigError(
                    f"{partition} has no record at or after timestamp {times[partition]}; give an earlier "
                    "time, or the option startingOffsetsByTimestampStrategy latest to begin with what comes"
                )
    return {partition: LATEST if offset < 0 else offset for partition, (offset, _) in found.items()}


def _check_same(
    option: str, named: Mapping[TopicPartition, int], partitions: frozenset[TopicPartition]
) -> None:
    if unknown := sorted(named.keys() - partitions):
        raise ConfigError(f"option {option} names {shortened_list(unknown)}, which this query does not read")
    if left_out := sorted(partitions - named.keys()):
        raise ConfigError(
            f"option {option} leaves out {shortened_list(left_out)}; name every partition, "
            "with -1 for latest or -2 for earliest where it does not matter"
        )


def report_losses(losses: Iterable[str], settings: ReadSettings) -> None:
    """Raise DataLost, or log a warning if the option failOnDataLoss is false."""
    for loss in losses:
        if settings.fail_on_data_loss:
            raise DataLost(
                f"{loss}. Records that this query was to read may be lost. To go on with what is there, "
                "set the option failOnDataLoss to false"
            )
        log.warning("%s; going on, because failOnDataLoss is false", loss)


def shortened_list(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    more = len(texts) - _NAMED_IN_MESSAGES_MAX
    return ", ".join(texts[:_NAMED_IN_MESSAGES_MAX]) + (f" and {more} more" if more > 0 else "")
