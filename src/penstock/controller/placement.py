"""Placement: which brokers hold the replicas of new partitions.

Strategy: partition by partition, the leader is the broker that leads the fewest partitions of this topic.
Each follower is on a broker whose rack holds the fewest replicas of this partition and, among those, on the
broker with the fewest replicas of this topic. Ties are broken by position in a circle of brokers that
alternates between racks: for leaders forwards, to the broker whose turn is next; for followers backwards, to
the broker that has just led, because the next leader gets a replica anyway. After each full round the circle
is rearranged, so that when a broker fails, its partitions do not all fall to one other broker.

Brokers that are admitted and not being drained come first. Where they are fewer than the replication factor,
the other registered brokers hold the remaining replicas, as in Kafka: first brokers that are down or not
admitted yet, which copy the partition when they are back, and last brokers that are being drained.

Rule 1: among brokers that are admitted and not being drained, the numbers of leaders of a topic differ by at
        most one, and so do the numbers of its replicas where the racks are equally large. Where the racks
        differ in size, spreading over racks comes first.
Rule 2: the replicas of a partition are in as many racks as possible.
Rule 3: racks count only if every broker has one. A broker without a rack may hold any replica.
Rule 4: the same arguments give the same result. `start` rotates the circle, so that topics with one partition
        do not all begin at the same broker.
Rule 5: the first replica of every partition is on a broker that can lead it now, and a replica is on a broker
        that cannot be in sync only if every broker that can be in sync already has one.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import gcd

from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import BrokerRegistration, ClusterImage
from penstock.metadata.durability import REPLICATION_FACTOR_DEFAULT

_SHOWN_MAX = 20

Replicas = tuple[int, ...]
"""Broker ids, the preferred leader first."""


def placement_candidates(image: ClusterImage) -> list[BrokerRegistration]:
    """Brokers whose replicas can be in sync at once: admitted, and not being drained."""
    return [image.brokers[id_] for id_ in sorted(image.admitted) if not image.brokers[id_].is_draining]


def fallback_brokers(image: ClusterImage) -> tuple[list[BrokerRegistration], list[BrokerRegistration]]:
    """The other registered brokers, in the order in which new partitions fall back on them.

    A broker that is down or not admitted yet comes back undrained and then copies its replicas. A draining
    broker is to hold no more replicas, so it is used last.
    """
    others = [image.brokers[id_] for id_ in sorted(image.brokers)]
    fenced = [broker for broker in others if broker.id not in image.admitted]
    draining = [broker for broker in others if broker.id in image.admitted and broker.is_draining]
    return fenced, draining


def attainable_replication_factor(image: ClusterImage) -> int:
    """The replication factor of a topic if neither its request nor a setting names one: three, or the number
    of registered brokers if there are fewer.

    Brokers that are down count: the topic has all its replicas when they are back.
    """
    return min(REPLICATION_FACTOR_DEFAULT, max(1, len(image.brokers)))


def validate_replicas(image: ClusterImage, assigned: Iterable[Replicas], *, size: int) -> None:
    """ApiError INVALID_REPLICA_ASSIGNMENT unless registered brokers could hold these replicas."""
    for replicas in assigned:
        if not replicas:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned to no broker.")
        if len(replicas) != size:
            assigned_to = "1 broker" if len(replicas) == 1 else f"{len(replicas)} brokers"
            detail = f"A partition is assigned to {assigned_to}, others of its topic to {size}."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        if len(set(replicas)) != len(replicas):
            # Only some are listed: a client may name millions.
            shown = ", ".join(map(str, replicas[:_SHOWN_MAX]))
            more = " and more" if len(replicas) > _SHOWN_MAX else ""
            detail = f"A partition is assigned twice to one broker: {shown}{more}."
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        for broker_id in replicas:
            if broker_id not in image.brokers:
                detail = f"A partition is assigned to broker {broker_id}, which is not registered."
                raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)


def place_replicas(
    brokers: Iterable[BrokerRegistration],
    *,
    count: int,
    replication_factor: int,
    existing: Sequence[Replicas] = (),
    start: int = 0,
    fallback: Iterable[Sequence[BrokerRegistration]] = (),
) -> tuple[Replicas, ...]:
    """Replicas for `count` partitions that are added to the topic's existing ones.

    `fallback` holds groups of brokers that are used, one group after the other, where `brokers` are too few.
    """
    known = sorted(brokers, key=lambda broker: broker.id)
    assert known, "the caller checked that a broker can lead"
    rank = dict.fromkeys((broker.id for broker in known), 0)
    for number, group in enumerate(fallback, start=1):
        if len(known) >= replication_factor:
            break
        known += group
        rank |= dict.fromkeys((broker.id for broker in group), number)
    placer = _Placer(known, rank, start)
    assert count >= 1
    assert 1 <= replication_factor <= placer.size, "the caller checked that it can be done"
    if placer.size == 1:
        # The embedded broker: there is nothing to choose, and ten thousand partitions cost nothing.
        return (tuple(broker.id for broker in known),) * count
    for replicas in existing:
        placer.count(replicas)
    first = len(existing)
    return tuple(placer.choose(index, replication_factor) for index in range(first, first + count))


class _Placer:
    """The brokers, with the replicas and leaders of the topic that each holds so far."""

    def __init__(self, brokers: Sequence[BrokerRegistration], rank: Mapping[int, int], start: int) -> None:
        racks_known = all(broker.rack is not None for broker in brokers)
        self._start = start
        self._rank = rank
        """0 for brokers that can be in sync at once; greater for brokers that new partitions fall back on."""
        self._rack = {broker.id: str(broker.rack if racks_known else broker.id) for broker in brokers}
        self._held = dict.fromkeys(self._rack, 0)
        self._led = dict.fromkeys(self._rack, 0)
        self._round = -1
        self._circle: list[int] = []

    @property
    def size(self) -> int:
        return len(self._rack)

    def count(self, replicas: Replicas) -> None:
        # A broker that was removed from the cluster is still among the replicas of old partitions.
        if replicas[0] in self._led:
            self._led[replicas[0]] += 1
        for broker_id in replicas:
            if broker_id in self._held:
                self._held[broker_id] += 1

    def choose(self, index: int, replication_factor: int) -> Replicas:
        ahead = self._turns_until_leading(index)
        # The first replica leads, so only brokers that can lead now qualify (rule 5).
        may_lead = [broker_id for broker_id in ahead if not self._rank[broker_id]]
        chosen = [min(may_lead, key=lambda broker_id: (self._led[broker_id], ahead[broker_id]))]
        in_rack = dict.fromkeys(self._rack.values(), 0)
        while len(chosen) < replication_factor:
            in_rack[self._rack[chosen[-1]]] += 1
            del ahead[chosen[-1]]
            chosen.append(min(ahead, key=lambda broker_id: self._placement_cost(broker_id, in_rack, ahead)))
        replicas = tuple(chosen)
        self.count(replicas)
        return replicas

    def _turns_until_leading(self, index: int) -> dict[int, int]:
        """The number of turns until each broker is the next leader."""
        if index // self.size != self._round:
            self._round = index // self.size
            self._circle = _alternating_racks(self._rack, self._round)
        turn = self._start + index
        return {broker_id: (at - turn) % self.size for at, broker_id in enumerate(self._circle)}

    def _placement_cost(
        self, broker_id: int, in_rack: dict[str, int], ahead: dict[int, int]
    ) -> tuple[int, ...]:
        in_same_rack = in_rack[self._rack[broker_id]]
        return self._rank[broker_id], in_same_rack, self._held[broker_id], -ahead[broker_id]


def _alternating_racks(rack_of: dict[int, str], round_number: int) -> list[int]:
    """A circle that takes one broker of each rack, then the next of each, and so on; in another order every
    round.
    """
    in_rack: dict[str, list[int]] = {}
    for broker_id, rack in rack_of.items():
        in_rack.setdefault(rack, []).append(broker_id)
    racks = _strided(list(in_rack.values()), round_number)
    turned = [_rotated(ids, round_number * number) for number, ids in enumerate(racks)]
    return [
        ids[position] for position in range(max(map(len, turned))) for ids in turned if position < len(ids)
    ]


def _strided(racks: list[list[int]], round_number: int) -> list[list[int]]:
    """All racks, taking every n-th, for an n coprime to their number, so that every rack is reached once."""
    count = len(racks)
    # Only strides coprime to the count visit every rack before they return to the first.
    strides = [stride for stride in range(1, count) if gcd(stride, count) == 1] or [1]
    stride = strides[round_number % len(strides)]
    return [racks[number * stride % count] for number in range(count)]


def _rotated(ids: list[int], by: int) -> list[int]:
    by %= len(ids)
    return ids[by:] + ids[:by]
