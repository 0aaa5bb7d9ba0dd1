"""Metrics of replication on this broker, and of the cluster as this broker sees it.

The metrics are sums over partitions. In a cluster with thousands of partitions an alert needs to show that
some have problems; `penstock cluster status` lists them.
"""

from collections.abc import Iterator

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.controller.reachability import unreachable_for
from penstock.http.prometheus import GAUGE, Metric, Sample, gauge
from penstock.replication.partition import Partition


class ReplicationSums:
    def __init__(self) -> None:
        self.leading = 0
        self.following = 0
        self.under_replicated = 0
        self.below_minimum = 0
        self.records_behind_max = 0

    def add(self, partition: Partition) -> None:
        if partition.offline_error is not None:
            return
        self.following += not partition.is_leader
        self.leading += partition.is_leader
        if (leading := partition.leading) is not None:
            self.under_replicated += leading.is_under_replicated
            self.below_minimum += not leading.meets_min_isr
            behind = leading.records_behind(partition.log.log_end_offset)
            self.records_behind_max = max(self.records_behind_max, behind)

    def metrics(self) -> Iterator[Metric]:
        yield gauge("penstock_partitions_led", "Partitions that this broker leads.", self.leading)
        yield gauge(
            "penstock_partitions_followed",
            "Partitions that this broker follows: it has a copy and does not lead.",
            self.following,
        )
        yield gauge(
            "penstock_partitions_under_replicated",
            "Partitions led by this broker of which some replica is not in sync.",
            self.under_replicated,
        )
        yield gauge(
            "penstock_partitions_below_minimum",
            "Partitions led by this broker that reject acks=all, because too few replicas are in sync.",
            self.below_minimum,
        )
        yield gauge(
            "penstock_replica_lag_records_max",
            "Records that the slowest replica of the partitions led by this broker lacks.",
            self.records_behind_max,
        )


def cluster_metrics(cluster: MetadataService, now: float) -> Iterator[Metric]:
    """Metrics of the cluster's image. `now` is the time of the event loop's clock."""
    image = cluster.image
    brokers = image.brokers.values()
    states = {
        "admitted": sum(broker.is_admitted and not broker.is_draining for broker in brokers),
        "draining": sum(broker.is_admitted and broker.is_draining for broker in brokers),
        "fenced": sum(not broker.is_admitted for broker in brokers),
    }
    yield Metric(
        "penstock_brokers",
        GAUGE,
        "Brokers of the cluster, by state.",
        ("state",),
        [Sample((state,), count) for state, count in states.items()],
    )
    node_id = cluster.config.node.node_id
    yield gauge(
        "penstock_brokers_unreachable",
        "Brokers that this broker cannot reach.",
        len(unreachable_for(image, node_id)),
    )
    is_ours = image.controller_id == node_id
    yield gauge("penstock_controller", "1 on the broker that is the controller.", int(is_ours))
    yield gauge(
        "penstock_partitions_without_leader",
        "Partitions of the whole cluster without a leader.",
        sum(state.leader < 0 for topic in image.topics.values() for state in topic.partitions),
    )
    unavailable_since = cluster.store_unavailable_since
    yield gauge(
        "penstock_metadata_store_unavailable_seconds",
        "How long the metadata store has not answered. Meanwhile brokers serve, and nothing can be changed.",
        0 if unavailable_since is None else max(now - unavailable_since, 0),
    )
