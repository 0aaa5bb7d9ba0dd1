"""Balancing: which replicas move so that all brokers hold, and lead, about the same number.

Strategy: count the replicas that each broker holds, per topic and in total, as they will be when the
reassignments under way are complete. Go through the partitions once, in an order that mixes topics, and move
a replica from a broker with more than its share of the topic to the broker with the fewest replicas of that
topic. Topics are balanced one by one because partitions of one topic are about equally busy, and those of two
topics are not. When every topic is even, do the same with the totals, by moves that keep the topics even.
Neither pass puts more replicas of a partition into one rack. When the replicas are even, change the order of
replicas where that evens out the preferred leaders: no data is copied for it. Nothing is decided here: each
plan is a list of reassignments.

Rule 1: a plan names few partitions (`moves_max`), and none that is being reassigned. When its moves are
        complete, the next plan continues from there. An even cluster has an empty plan.
Rule 2: a share is rounded in the broker's favour, so nothing moves to and fro between brokers that differ by
        one.
Rule 3: the same image gives the same plan.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

from penstock.controller.partitions import TopicPartitionState, every_partition
from penstock.controller.placement import Replicas, attainable_replication_factor, placement_candidates
from penstock.controller.reassignment import Reassignment
from penstock.metadata.cluster_image import BrokerRegistration, ClusterImage, Topic, without

ReplicaCounts = dict[int, int]
"""Number of replicas, by the id of the broker that holds them."""


class _FairShare(NamedTuple):
    least: int
    most: int

    @classmethod
    def of(cls, counts: ReplicaCounts) -> "_FairShare":
        total, brokers = sum(counts.values()), len(counts)
        return cls(total // brokers, -(-total // brokers))

    def is_met(self, counts: ReplicaCounts) -> bool:
        return min(counts.values()) >= self.least and max(counts.values()) <= self.most

    def is_improved_by(self, counts: ReplicaCounts, from_: int, to: int) -> bool:
        """Whether moving one replica from `from_` to `to` brings the counts nearer to this share."""
        return counts[from_] - counts[to] > 1 and (counts[from_] > self.most or counts[to] < self.least)


class _BrokerLoads:
    """The replicas held, and the preferred leaders, of each broker that may be given replicas."""

    def __init__(self, image: ClusterImage) -> None:
        self._zero_counts = {broker.id: 0 for broker in placement_candidates(image)}
        self.held = self._zero_counts.copy()
        self.led = self._zero_counts.copy()
        self._of_topics: dict[str, ReplicaCounts] = {}
        self._racks = _racks(image.brokers.values())
        for topic, state in every_partition(image):
            self.count(topic, state.target, 1)

    def of_topic(self, topic: Topic) -> ReplicaCounts:
        return self._of_topics.setdefault(topic.name, self._zero_counts.copy())

    def exclude(self, node: int) -> None:
        for counts in (self._zero_counts, self.held, self.led, *self._of_topics.values()):
            counts.pop(node, None)

    def count(self, topic: Topic, replicas: Replicas, by: int) -> None:
        held_of_topic = self.of_topic(topic)
        for node in replicas:
            if node in self.held:
                self.held[node] += by
                held_of_topic[node] += by
        if replicas[0] in self.led:
            self.led[replicas[0]] += by

    def replace(self, topic: Topic, replicas: Replicas, target: Replicas) -> None:
        self.count(topic, replicas, -1)
        self.count(topic, target, 1)

    def least_loaded(self, topic: Topic, apart_from: Replicas) -> int | None:
        """The broker that should get one more replica of a partition; None if no broker can.

        Racks with the fewest replicas of the partition come first, then brokers with the fewest replicas of
        the topic.
        """
        used, of_topic = [self.rack(node) for node in apart_from], self.of_topic(topic)
        crowd = {node: used.count(self.rack(node)) for node in self.held if node not in apart_from}
        return min(crowd, key=lambda node: (crowd[node], of_topic[node], self.held[node], node), default=None)

    def replacement(self, topic: Topic, replicas: Replicas, to: int, counts: ReplicaCounts) -> int | None:
        """The broker that should replace the replica on `to`, by these counts; None if no broker qualifies.

        A candidate's rack must then hold no more replicas of the partition than the rack of `to` did, and a
        candidate must hold fewer replicas of the topic than `to`.
        """
        used, of_topic = [self.rack(node) for node in replicas if node != to], self.of_topic(topic)
        allowed = used.count(self.rack(to))
        free = (
            node
            for node in counts
            if node not in replicas
            and of_topic[node] < of_topic[to]
            and used.count(self.rack(node)) <= allowed
        )
        return min(free, key=lambda node: (counts[node], self.held[node], node), default=None)

    def rack(self, node: int) -> str:
        return self._racks.get(node, f"broker {node}")


def balancing_moves(image: ClusterImage, moves_max: int) -> list[Reassignment]:
    """Moves that even out the replicas per topic, then in total, then the preferred leaders."""
    load = _BrokerLoads(image)
    if not load.held:
        return []
    # The order matters: each pass assumes that the earlier ones found nothing to do.
    return (
        _moves(image, load, load.of_topic, moves_max)
        or _moves(image, load, lambda _topic: load.held, moves_max)
        or _reorderings(image, load, moves_max)
    )


def evacuation_moves(image: ClusterImage, broker_id: int, moves_max: int) -> list[Reassignment]:
    """Moves that take replicas away from one broker, wherever another broker can hold them instead."""
    load = _BrokerLoads(image)
    load.exclude(broker_id)
    plan: list[Reassignment] = []
    for topic, state in every_partition(image):
        if len(plan) == moves_max:
            break
        if state.is_reassigning or broker_id not in state.replicas:
            continue
        new = load.least_loaded(topic, without(state.replicas, (broker_id,)))
        if new is not None:
            plan.append(_replaced(load, topic, state.index, state.replicas, broker_id, new))
    return plan


def replication_factor_moves(image: ClusterImage, moves_max: int) -> list[Reassignment]:
    """Moves that add replicas to internal topics created while the cluster had fewer brokers."""
    factor = attainable_replication_factor(image)
    load: _BrokerLoads | None = None
    plan: list[Reassignment] = []
    for topic, state in every_partition(image):
        if len(plan) == moves_max:
            break
        if not topic.internal or state.is_reassigning or len(state.replicas) >= factor:
            continue
        load = load or _BrokerLoads(image)
        target = state.replicas
        while len(target) < factor:
            new = load.least_loaded(topic, target)
            if new is None:
                break
            target = (*target, new)
        if target != state.replicas:
            load.replace(topic, state.replicas, target)
            plan.append(Reassignment(topic.name, state.index, target))
    return plan


def _moves(
    image: ClusterImage, load: _BrokerLoads, counts_for: Callable[[Topic], ReplicaCounts], moves_max: int
) -> list[Reassignment]:
    plan: list[Reassignment] = []
    shares: dict[int, _FairShare] = {}
    """Shares, by the identity of the counts. A move changes neither the sum nor the number of counts."""
    even: set[int] = set()
    """Identities of counts that are already even: nothing moves by them, so they stay even."""
    for topic, state in _interleaved_partitions(image):
        if len(plan) == moves_max:
            break
        counts = counts_for(topic)
        if id(counts) in even:
            continue
        share = shares.get(id(counts)) or shares.setdefault(id(counts), _FairShare.of(counts))
        if share.is_met(counts):
            even.add(id(counts))
            continue
        # Followers first: the preferred leader is moved only if no other replica can move.
        for node in reversed(state.replicas):
            if node not in counts:
                continue
            new = load.replacement(topic, state.replicas, node, counts)
            if new is not None and share.is_improved_by(counts, node, new):
                plan.append(_replaced(load, topic, state.index, state.replicas, node, new))
                break
    return plan


def _reorderings(image: ClusterImage, load: _BrokerLoads, moves_max: int) -> list[Reassignment]:
    share = _FairShare.of(load.led)
    plan: list[Reassignment] = []
    if share.is_met(load.led):
        return plan
    for topic, state in _interleaved_partitions(image):
        if len(plan) == moves_max:
            break
        first = state.replicas[0]
        others = [node for node in state.replicas[1:] if node in load.led]
        if not others or first not in load.led:
            continue
        new = min(others, key=lambda node: (load.led[node], node))
        if share.is_improved_by(load.led, first, new):
            target = (new, *without(state.replicas, (new,)))
            load.led[first] -= 1
            load.led[new] += 1
            plan.append(Reassignment(topic.name, state.index, target))
    return plan


def _replaced(
    load: _BrokerLoads, topic: Topic, index: int, replicas: Replicas, old: int, new: int
) -> Reassignment:
    target = tuple(new if node == old else node for node in replicas)
    load.replace(topic, replicas, target)
    return Reassignment(topic.name, index, target)


def _interleaved_partitions(image: ClusterImage) -> Iterable[TopicPartitionState]:
    """Every partition that is not being reassigned, in an order where neighbours are seldom of one topic."""
    found = ((topic, state) for topic, state in every_partition(image) if not state.is_reassigning)
    # A checksum instead of a random order: the same image must give the same plan.
    return sorted(found, key=lambda partition: crc32(partition[0].id, partition[1].index))


def _racks(brokers: Iterable[BrokerRegistration]) -> dict[int, str]:
    """The rack of each broker; empty if any broker has none, because racks count only if every broker has
    one.
    """
    racks = {broker.id: broker.rack for broker in brokers}
    if any(rack is None for rack in racks.values()):
        return {}
    return {node: str(rack) for node, rack in racks.items()}
