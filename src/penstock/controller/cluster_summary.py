"""Summary of the cluster's health for operators: loads, offline partitions, topics at risk.

Strategy: one walk over all partitions, from the image alone. Any broker can compute the summary.

Rule 1: a partition is offline if no admitted broker leads it; under-replicated if one of its replicas, apart
        from those being added, is not in sync; unbalanced if a broker other than the preferred leader leads.
Rule 2: a topic is at risk if the loss of one disk may lose acknowledged records: the topic has one replica,
        or one in-sync replica is enough to acknowledge. Whether brokers flush before they acknowledge makes
        no difference: the surviving replicas still write what they hold in memory.
"""

from typing import NamedTuple

from penstock.controller.partitions import TopicPartitionState, every_partition
from penstock.metadata.cluster_image import (
    NO_NODE,
    BrokerRegistration,
    ClusterImage,
    PartitionState,
    Topic,
    without,
)
from penstock.metadata.durability import MIN_ISR, min_isr


class BrokerLoad(NamedTuple):
    leads: int
    holds: int


class TopicAtRisk(NamedTuple):
    topic: str
    reason: str


class ClusterSummary(NamedTuple):
    loads: dict[int, BrokerLoad]
    """Load of every broker that is registered or holds a replica."""
    offline: list[TopicPartitionState]
    under_replicated: list[TopicPartitionState]
    unbalanced: list[TopicPartitionState]
    reassigning: list[TopicPartitionState]
    at_risk: list[TopicAtRisk]


def survey(image: ClusterImage) -> ClusterSummary:
    led = dict.fromkeys(image.brokers, 0)
    held = dict.fromkeys(image.brokers, 0)
    found = ClusterSummary({}, [], [], [], [], topics_at_risk(image))
    for partition in every_partition(image):
        state = partition[1]
        for node in state.replicas:
            held[node] = held.get(node, 0) + 1
        # A leader that is not admitted cannot serve its partitions, although the image still names it.
        if state.leader in image.admitted:
            led[state.leader] = led.get(state.leader, 0) + 1
        else:
            found.offline.append(partition)
        if is_under_replicated(state):
            found.under_replicated.append(partition)
        if state.leader not in (state.replicas[0], NO_NODE):
            found.unbalanced.append(partition)
        if state.is_reassigning:
            found.reassigning.append(partition)
    found.loads.update({node: BrokerLoad(led.get(node, 0), held[node]) for node in sorted(held)})
    return found


def is_under_replicated(state: PartitionState) -> bool:
    # Replicas being added are expected to lag, and do not count.
    return not set(without(state.replicas, state.adding)) <= set(state.isr)


def topics_at_risk(image: ClusterImage) -> list[TopicAtRisk]:
    found = ((name, _risk(image, image.topics[name])) for name in sorted(image.topics))
    return [TopicAtRisk(name, reason) for name, reason in found if reason is not None]


def _risk(image: ClusterImage, topic: Topic) -> str | None:
    if any(len(without(state.replicas, state.adding)) == 1 for state in topic.partitions):
        return "one replica"
    if any(min_isr(image, topic, state) == 1 for state in topic.partitions):
        return f"{MIN_ISR} is 1"
    return None


def broker_state(broker: BrokerRegistration) -> str:
    """The broker's state in one word: admitted, draining, fenced (it has a session, and is not admitted) or
    gone.
    """
    if not broker.is_alive:
        return "gone"
    if not broker.is_admitted:
        return "fenced"
    return "draining" if broker.is_draining else "admitted"
