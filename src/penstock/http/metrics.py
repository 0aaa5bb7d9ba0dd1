"""Metrics for Prometheus.

GET /metrics           the broker, its state in the cluster and the groups that it coordinates
GET /metrics/groups    all groups of the cluster, from any broker

Rule 1: the number of series is bounded. The groups with the largest lag come first, and a metric counts the
        groups that were left out.
Rule 2: on /metrics only a group's coordinator exports its series, for all its partitions. So a sum over the
        brokers of a cluster counts each group once, and no broker scrapes another. On /metrics/groups every
        broker exports all groups, so that a scrape of any one broker sees the lag of the cluster.
Rule 3: after a number of groups, partitions and lines the event loop serves other tasks.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from aiohttp import web

from penstock import __version__
from penstock.broker.broker import RunningBroker
from penstock.broker.groups.cluster_groups import ClusterGroupSurvey
from penstock.broker.groups.coordinator_runtime import CoordinatorErrors
from penstock.broker.groups.group_lag import GroupLagSurvey, GroupReport, PartitionReport
from penstock.broker.storage.compaction import Compaction
from penstock.http.prometheus import CONTENT_TYPE, COUNTER, GAUGE, Metric, Sample, counter, gauge, lines
from penstock.http.replication_metrics import ReplicationSums, cluster_metrics
from penstock.limits import (
    METRICS_GROUP_PARTITIONS_MAX,
    METRICS_LINES_PER_CHUNK,
    METRICS_PARTITIONS_PER_CHUNK,
    METRICS_TOPICS_MAX,
)
from penstock.log.producer_state import ProducerRegistry
from penstock.replication.partition import Partition


class MetricsPage:
    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/metrics", self.metrics)
        router.add_get("/metrics/groups", self.groups)

    async def metrics(self, request: web.Request) -> web.Response:
        survey = await self._broker.own_groups.survey(METRICS_GROUP_PARTITIONS_MAX)
        sizes, replication = await _partition_sums(self._broker.storage.partitions)
        text = await _rendered(
            [
                *self._broker_metrics(),
                *sizes.metrics(),
                *replication.metrics(),
                *cluster_metrics(self._broker.cluster, asyncio.get_running_loop().time()),
                *group_metrics(survey),
                *coordinator_error_metrics(self._broker.own_groups.coordinator_errors()),
            ]
        )
        return _reply(text)

    async def groups(self, request: web.Request) -> web.Response:
        survey = await self._broker.groups.survey(METRICS_GROUP_PARTITIONS_MAX)
        return _reply(await _rendered(cluster_group_metrics(survey)))

    def _broker_metrics(self) -> Iterator[Metric]:
        storage, server = self._broker.storage, self._broker.server
        yield Metric(
            "penstock_info",
            GAUGE,
            "1, with the version of this broker.",
            ("version",),
            [Sample((__version__,), 1)],
        )
        yield gauge("penstock_ready", "1 when clients can be served.", int(self._broker.not_ready() is None))
        yield gauge(
            "penstock_storage_failed",
            "1 after a write or sync failed; the broker rejects all writes.",
            int(storage.partitions.failure is not None),
        )
        yield gauge("penstock_connections", "Clients that are connected.", server.connection_count)
        yield counter(
            "penstock_connections_rejected_total",
            "Connections that were closed on arrival, because there were too many.",
            server.connections_rejected,
        )
        yield from producer_metrics(storage.partitions.producer_registry)
        yield from compaction_metrics(self._broker.compaction)


def producer_metrics(registry: ProducerRegistry) -> Iterator[Metric]:
    yield gauge(
        "penstock_producers",
        "Idempotent producers that are remembered, each counted for every partition it wrote to.",
        len(registry),
    )
    yield counter(
        "penstock_producers_evicted_total",
        "Idempotent producers that were forgotten early, because there were too many.",
        registry.evicted,
    )


def compaction_metrics(compaction: Compaction) -> Iterator[Metric]:
    yield counter("penstock_compaction_cleanings_total", "Cleanings that completed.", compaction.cleanings)
    yield counter("penstock_compaction_failures_total", "Cleanings that failed.", compaction.failures)
    yield gauge(
        "penstock_compaction_postponed_logs",
        "Logs whose last cleaning failed and that will be cleaned again.",
        len(compaction.postponed_cleanings),
    )
    yield gauge(
        "penstock_compaction_uncleanable_logs",
        "Logs not cleaned again before the next start, because the disk failed to read or write them.",
        len(compaction.uncleanable),
    )


def _reply(text: str) -> web.Response:
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


async def _rendered(metrics: Iterable[Metric]) -> str:
    parts: list[str] = []
    for line in lines(metrics):
        parts.append(line)
        if len(parts) % METRICS_LINES_PER_CHUNK == 0:
            # Rule 3: a large page must not delay requests of clients.
            await asyncio.sleep(0)
    return "".join(parts)


class _TopicSizes:
    """Sums over all partitions, of which there may be a hundred thousand."""

    def __init__(self) -> None:
        self.partitions = 0
        self.offline = 0
        self.appended_bytes: dict[str, int] = {}
        self.kept_bytes: dict[str, int] = {}

    def add(self, partition: Partition) -> None:
        topic, log = partition.name.topic, partition.log
        self.partitions += 1
        self.offline += partition.offline_error is not None
        self.appended_bytes[topic] = self.appended_bytes.get(topic, 0) + log.appended_bytes
        self.kept_bytes[topic] = self.kept_bytes.get(topic, 0) + log.size_bytes

    def metrics(self) -> Iterator[Metric]:
        # Sorted, so that the same topics keep their series from scrape to scrape.
        shown = sorted(self.appended_bytes)[:METRICS_TOPICS_MAX]
        left_out = len(self.appended_bytes) - len(shown)
        yield gauge("penstock_partitions", "Partitions that live on this broker.", self.partitions)
        yield gauge("penstock_partitions_offline", "Partitions that cannot be used.", self.offline)
        yield gauge("penstock_topics_left_out", "Topics without series, because of their number.", left_out)
        yield Metric(
            "penstock_topic_appended_bytes_total",
            COUNTER,
            "Bytes of record batches written since the broker started.",
            ("topic",),
            [Sample((topic,), self.appended_bytes[topic]) for topic in shown],
        )
        yield Metric(
            "penstock_topic_size_bytes",
            GAUGE,
            "Bytes of record batches kept.",
            ("topic",),
            [Sample((topic,), self.kept_bytes[topic]) for topic in shown],
        )


async def _partition_sums(partitions: Iterable[Partition]) -> tuple[_TopicSizes, ReplicationSums]:
    sizes, replication = _TopicSizes(), ReplicationSums()
    for number, partition in enumerate(tuple(partitions), 1):
        sizes.add(partition)
        replication.add(partition)
        if number % METRICS_PARTITIONS_PER_CHUNK == 0:
            await asyncio.sleep(0)
    return sizes, replication


def group_metrics(survey: GroupLagSurvey) -> Iterator[Metric]:
    groups = survey.groups
    yield gauge(
        "penstock_groups", "Consumer groups that this broker coordinates.", len(groups) + survey.left_out
    )
    yield _left_out(survey.left_out)
    yield gauge(
        "penstock_coordinators_loading",
        "Partitions of the offsets topic whose groups are not known yet.",
        survey.shards_loading,
    )
    yield from _series_of(groups)


def cluster_group_metrics(survey: ClusterGroupSurvey) -> Iterator[Metric]:
    yield _left_out(survey.left_out)
    yield gauge(
        "penstock_group_coordinators_unavailable",
        "Coordinators that did not answer, or not for all their groups: these have no series.",
        len({each.broker_id for each in survey.unavailable}),
    )
    yield from _series_of(survey.groups)


def _left_out(count: int) -> Metric:
    return gauge(
        "penstock_groups_left_out",
        "Groups without series here, because of their number: those least behind.",
        count,
    )


def _series_of(groups: Sequence[GroupReport]) -> Iterator[Metric]:
    yield Metric(
        "penstock_group_state",
        GAUGE,
        "1 for the state that the group is in.",
        ("group", "type", "state"),
        (Sample((each.status.group_id, each.status.type, each.status.state), 1) for each in groups),
    )
    yield from _members_and_rebalances(groups)
    yield from _lag_metrics(groups)


def coordinator_error_metrics(coordinator_errors: CoordinatorErrors) -> Iterator[Metric]:
    yield gauge(
        "penstock_coordinators_full",
        "Partitions of the offsets topic that cannot be written for want of space.",
        coordinator_errors.full,
    )
    yield gauge(
        "penstock_coordinator_records_unreadable",
        "Records of the offsets topic that hold what groups need and cannot be read.",
        coordinator_errors.unreadable,
    )
    yield counter(
        "penstock_coordinator_answers_failed_total",
        "Replies of coordinators that could not be delivered to their client.",
        coordinator_errors.unanswered,
    )
    yield counter(
        "penstock_coordinator_decisions_too_large_total",
        "Requests that were rejected because the records of their decision exceed a batch.",
        coordinator_errors.too_large,
    )


def _members_and_rebalances(groups: Iterable[GroupReport]) -> Iterator[Metric]:
    label = ("group",)
    yield Metric(
        "penstock_group_members",
        GAUGE,
        "Members of the group.",
        label,
        (Sample((each.status.group_id,), len(each.status.members)) for each in groups),
    )
    yield Metric(
        "penstock_group_rebalances_total",
        COUNTER,
        "Rebalances since this broker leads the group.",
        label,
        (Sample((each.status.group_id,), each.status.rebalances.total) for each in groups),
    )
    yield Metric(
        "penstock_group_rebalance_duration_seconds",
        GAUGE,
        "How long the last rebalance took, or the one under way has taken.",
        label,
        (
            Sample((each.status.group_id,), duration_ms / 1000)
            for each in groups
            if (duration_ms := _rebalance_ms(each)) is not None
        ),
    )


def _rebalance_ms(report: GroupReport) -> int | None:
    rebalances = report.status.rebalances
    return rebalances.duration_ms if rebalances.under_way_ms is None else rebalances.under_way_ms


def _lag_metrics(groups: Iterable[GroupReport]) -> Iterator[Metric]:
    labels = ("group", "topic", "partition")

    def each() -> Iterator[tuple[tuple[str, ...], PartitionReport]]:
        for group in groups:
            for entry in group.partitions:
                topic, number = entry.partition
                yield (group.status.group_id, topic, str(number)), entry

    yield Metric(
        "penstock_group_lag_records",
        GAUGE,
        "Records from the committed offset to the end of the log.",
        labels,
        (Sample(values, entry.lag.behind) for values, entry in each() if entry.lag.behind is not None),
    )
    yield Metric(
        "penstock_group_lag_age_seconds",
        GAUGE,
        "How long the oldest record that waits has waited.",
        labels,
        (Sample(values, entry.lag.age_ms / 1000) for values, entry in each() if entry.lag.age_ms is not None),
    )
    yield Metric(
        "penstock_group_lost_records",
        GAUGE,
        "Records deleted before the group had read them.",
        labels,
        (Sample(values, entry.lag.lost) for values, entry in each() if entry.lag.lost),
    )
    yield Metric(
        "penstock_group_partitions_unknown",
        GAUGE,
        "Partitions of the group without series: they are offline, or their leader did not answer.",
        ("group",),
        (Sample((group.status.group_id,), group.totals.unknown) for group in groups if group.totals.unknown),
    )
    yield Metric(
        "penstock_group_consumption_rate",
        GAUGE,
        "Records a second, by the commits of the last minute.",
        labels,
        (Sample(values, entry.lag.rate) for values, entry in each() if entry.lag.behind is not None),
    )
