"""Invariants of the cluster metadata, checked for every transaction at the moment it is committed.

epochs              never fall. A new leader has a new leader epoch, and so has a leader whose replica
                    set becomes smaller
ISR                 consists of replicas and contains the leader. Only admitted brokers join it, and a
                    joining broker has every committed record
elections           are clean: the new leader was in the ISR, or eligible (ELR), and is admitted
admission           happens after the broker has left every ISR that has other members
eligible leaders    were written by a broker that knew the min.insync.replicas in force
"""

from collections.abc import Callable

from penstock.host.metadata_store import Event, Put
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, PartitionState, Topic
from penstock.metadata.durability import eligible_leaders, min_isr_changes
from penstock.metadata.image_builder import apply
from penstock.metadata.image_changes import changed_partitions
from penstock.metadata.keys import CLUSTER_ID_KEY, ClusterKeys
from penstock.sim.violation import InvariantViolation

OnJoined = Callable[[Topic, int, int], None]
"""Called with the topic, the partition and the broker."""
Images = tuple[ClusterImage, ClusterImage]
"""The image before a transaction, and after it."""


class StoreChecks:
    def __init__(
        self,
        on_admitted: Callable[[int], None],
        on_joined: OnJoined,
        lost_at: Callable[[int], int | None],
    ) -> None:
        """`lost_at`: the revision at which a broker lost its data, until the cluster has noticed the loss."""
        self.image = ClusterImage(cluster_id="none")
        self._on_admitted = on_admitted
        self._on_joined = on_joined
        self._lost_at = lost_at

    def committed(self, event: Event) -> None:
        for change in event.changes:
            if change.key == CLUSTER_ID_KEY and isinstance(change, Put):
                self.image = ClusterImage(cluster_id=change.value.decode())
        prefix = ClusterKeys(self.image.cluster_id).prefix
        changes = [change for change in event.changes if change.key.startswith(prefix)]
        before = self.image
        self.image = after = apply(before, changes, event.revision)
        for topic, was, now in changed_partitions(before, after):
            if now is not None:
                self._check_state(topic, now)
                if was is not None:
                    _PartitionChange((before, after), topic, was, now).check()
                    for node in sorted(set(now.isr) - set(was.isr)):
                        self._on_joined(topic, now.index, node)
        for node in sorted(after.admitted - before.admitted):
            live, lost_at = after.sessions.get(node), self._lost_at(node)
            # A process that has died since it registered may still be admitted, as long as its session
            # lives.
            is_after_loss = live is not None and lost_at is not None and live.epoch > lost_at
            self._check_admission(before, node, is_after_loss=is_after_loss)
            if is_after_loss:
                self._on_admitted(node)

    def _check_state(self, topic: Topic, state: PartitionState) -> None:
        where = f"{topic.name}-{state.index}"
        isr = set(state.isr)
        require(len(isr) == len(state.isr) and isr <= set(state.replicas), where, f"in sync are {state.isr}")
        require(state.leader in (*isr, NO_NODE), where, f"{state.leader} leads; in sync are {state.isr}")
        require(isr.isdisjoint(state.elr), where, f"eligible are {state.elr}; in sync are {state.isr}")

    def _check_admission(self, before: ClusterImage, node: int, *, is_after_loss: bool) -> None:
        for topic in before.topics.values():
            for state in topic.partitions:
                others = before.admitted.intersection(state.isr) - {node}
                message = f"node-{node} is admitted and still in sync beside {sorted(others)}"
                where = f"{topic.name}-{state.index}"
                require(node not in state.isr or not others, where, message)
                is_out = node not in (*state.isr, *state.elr)
                require(is_out or not is_after_loss, where, f"node-{node} is believed: {state}")


class _PartitionChange:
    def __init__(self, images: Images, topic: Topic, was: PartitionState, now: PartitionState) -> None:
        self._before, self._after = images
        self._topic = topic
        self._was = was
        self._now = now

    def check(self) -> None:
        was, now = self._was, self._now
        self._require(now.leader_epoch >= was.leader_epoch, "the leader epoch falls")
        self._require(now.partition_epoch > was.partition_epoch, "the partition epoch does not grow")
        if not set(was.replicas) <= set(now.replicas):
            self._require(now.leader_epoch > was.leader_epoch, "a replica goes under the same epoch")
        if now.leader != was.leader:
            self._require(now.leader_epoch > was.leader_epoch, "another leads under the same epoch")
            self._check_election()
        joined = set(now.isr) - set(was.isr)
        if now.leader == was.leader:
            self._require(joined <= self._after.admitted, f"{sorted(joined)} joined and are not admitted")
        had_all = {*was.isr, *was.elr}
        self._require(had_all.issuperset(now.elr), "who was not in sync became eligible")
        # A change that only removes eligible leaders keeps the recorded minimum of the others. They are
        # void if another minimum is in force by then.
        only_leaves = set(now.elr) <= set(was.elr) and now.min_isr_changes == was.min_isr_changes
        if now.elr and (now.elr, now.isr) != (was.elr, was.isr) and not only_leaves:
            knew, holds = now.min_isr_changes, min_isr_changes(self._after, self._topic)
            self._require(knew == holds, f"eligible under minimum {knew}, and it is {holds}")

    def _check_election(self) -> None:
        was, now = self._was, self._now
        if now.leader == NO_NODE:
            return
        self._require(now.leader in self._after.admitted, "the leader is not admitted")
        clean = {*was.isr, *eligible_leaders(self._before, self._before.topics[self._topic.name], was)}
        self._require(now.leader in clean, f"who leads was not in {sorted(clean)}")

    def _require(self, condition: bool, message: str) -> None:
        require(condition, f"{self._topic.name}-{self._now.index}", f"{message}: {self._was} -> {self._now}")


def require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise InvariantViolation(f"{where}: {message}")
