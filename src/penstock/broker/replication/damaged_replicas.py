"""Repair of replicas that a cluster's broker found damaged on its disk.

    damaged ──→ withdrawn (out of sync) ──→ replaced (by a new copy from the leader)

A damaged replica must not be in the ISR, where the leader would wait for it, and must not be elected. So the
broker removes its replica from the ISR and, if this broker leads the partition, hands leadership over. The
broker makes this decision itself, without the controller (`controller.elections.withdraw`). When the image
shows the decision, the broker moves the partition's folder to `strays` and copies the partition from its
leader like a newly assigned replica.

Rule 1: the next step follows from the image and the partitions alone, and is decided again after every change
        of the image. So whenever and however a damaged replica becomes leader, the broker hands leadership
        over.
Rule 2: a copy is replaced only when the cluster does not depend on it. If no other replica has all
        committed records, the damaged copy stays in its folder, offline, until such a replica is available
        again or an operator decides.
Rule 3: a new leader epoch begins between the last fetch for the damaged copy and the first fetch for the
        empty copy. Otherwise the leader could take a delayed fetch of the damaged copy for the empty copy,
        and add the empty copy to the ISR.
Rule 4: the withdrawal does not wait for the disk, which may be slow or hang because it fails: neither for the
        replacement of another replica, which is another task, nor for the record of the damage. (One thread
        records the damage and moves the copy to `strays`, in that order.) A process that is killed before the
        damage is recorded loses the record; the replica may then join the ISR again, until the damage is read
        again.
        Waiting for the record would keep clients waiting, and a process that is killed during that wait loses
        the record too.
Rule 5: the broker retries every failure of the metadata store or the disk, with growing pauses, until the
        repair is done.
Rule 6: a disk that damages the same replica repeatedly does not cause repeated copying. Each further
        replacement of a replica by one process waits longer (REPLACEMENT_PAUSE_MS to
        REPLACEMENT_PAUSE_MS_MAX). The replica stays out of sync meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.storage.partition_storage import Storage
from penstock.controller.decision import NOTHING_TO_DO, Decision, batched, merged
from penstock.controller.elections import is_withdrawn, withdraw
from penstock.errors import ApiError, StorageFailed, StorageFull
from penstock.host.backoff import Backoff
from penstock.limits import (
    METADATA_UNAVAILABLE_PAUSE_MS,
    METADATA_UNAVAILABLE_PAUSE_MS_MAX,
    REPLACEMENT_PAUSE_MS,
    REPLACEMENT_PAUSE_MS_MAX,
)
from penstock.log.damaged_copies import NoRoomForCopy
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.observability.logs import Log
from penstock.replication.fetch_session_handler import Replica
from penstock.replication.partition import Partition
from penstock.types import TopicPartition

NEVER_FETCHED: Final = -1
LAST_COPY_HELP: Final = (
    "no other replica on a running broker has all of it, so the partition is offline and its files are "
    "kept: see 'A damaged partition' in docs/operations.md"
)
NO_ROOM_HELP: Final = (
    "free so many bytes on that disk, or move {folder} to another one: the broker then copies the partition "
    "by itself. Until then this replica is out of sync. The broker removes damaged files itself only where "
    "two others are in sync, and what was read is damaged for certain"
)
REPLACEMENT_HELP: Final = "the disk of this broker damaged the copy again: look at it, or replace it"


class _Damage:
    """A damaged replica, until it is repaired or no longer on this broker."""

    def __init__(self, fetched_epoch: int) -> None:
        self.fetched_epoch = fetched_epoch
        """Last leader epoch under which this broker fetched for the damaged copy."""
        self.is_last_copy_logged = False
        self.is_no_room_logged = False


class _ReplicaReplacements:
    """Replacements of one replica by this process, and the pause before the next one."""

    def __init__(self, pauses: Backoff) -> None:
        self.count = 0
        self.pauses = pauses
        self.is_waiting = False
        self.is_due = False


class DamagedReplicas:
    def __init__(
        self,
        cluster: MetadataService,
        storage: Storage,
        own_epoch: Callable[[], int],
        update_fetching: Callable[[Replica], None],
        log: Log,
        *,
        replacement_pause_ms: int = REPLACEMENT_PAUSE_MS,
        replacement_pause_ms_max: int = REPLACEMENT_PAUSE_MS_MAX,
    ) -> None:
        """Watch damaged replicas.

        `own_epoch` returns this process's broker epoch. `update_fetching` is called with a replica whose
        fetching has to stop or start. The pauses apply before each further replacement of a replica.
        """
        self._cluster = cluster
        self._storage = storage
        self._own_epoch = own_epoch
        self._update_fetching = update_fetching
        self._log = log
        self._node_id = cluster.config.node.node_id
        self._known: dict[Replica, _Damage] = {}
        self._replacements: dict[Replica, _ReplicaReplacements] = {}
        self._new_pauses: Callable[[], Backoff] = lambda: Backoff(
            replacement_pause_ms, replacement_pause_ms_max
        )
        self._withdrawals_due, self._replacements_due = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        """Register replicas that were found damaged before this broker joined the cluster.

        The fetchers are not open yet, so this process has fetched nothing for these replicas.
        """
        for partition in self._storage.partitions:
            if partition.is_damaged:
                self._known[_replica(partition)] = _Damage(NEVER_FETCHED)
                self._look_again()
        self._storage.on_damage = self.on_damage
        self._cluster.subscribe(self._follow)

    def on_damage(self, partition: Partition) -> None:
        replica = _replica(partition)
        self._known[replica] = _Damage(partition.leader_epoch)
        self._update_fetching(replica)
        self._look_again()

    def _look_again(self) -> None:
        self._withdrawals_due.set()
        self._replacements_due.set()

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if self._known:
            self._look_again()
        for replica in [each for each in self._replacements if _partition_state(after, each) is None]:
            del self._replacements[replica]

    async def run(self) -> None:
        """The task that withdraws damaged replicas. It never waits for the disk (Rule 4)."""
        await self._keep_doing(self._withdraw_all, self._withdrawals_due)

    async def replace(self) -> None:
        """The task that replaces damaged copies."""
        await self._keep_doing(self._replace_all, self._replacements_due)

    async def _keep_doing(self, attempt: Callable[[], Awaitable[list[str]]], due: asyncio.Event) -> None:
        """Run `attempt` whenever it is due, and again after a pause while it returns problems."""
        pauses, said = Backoff(METADATA_UNAVAILABLE_PAUSE_MS, METADATA_UNAVAILABLE_PAUSE_MS_MAX), ""
        while True:
            await due.wait()
            due.clear()  # before the attempt: a change during the attempt makes another one due
            problems = await attempt()
            if not problems:
                pauses.reset()
                said = ""
                continue
            if problems[0] != said:
                said = problems[0]
                self._log.warning("partition.not_mended", partitions=len(problems), reason=said)
            await asyncio.sleep(pauses.next_delay_s())
            due.set()

    # Withdrawing

    async def _withdraw_all(self) -> list[str]:
        image, problems = self._cluster.image, list[str]()
        decisions: dict[Replica, Decision] = {}
        for replica in self._known:
            decision = self._decision(image, replica)
            if decision.all_changes:
                decisions[replica] = decision
        replicas = iter(decisions)
        for group in batched(decisions.values(), self._cluster.changes_max):
            problems += await self._withdraw(list(islice(replicas, len(group))))
        self._forget_mended()
        for replica, damage in self._known.items():
            self._log_if_last_copy(replica, damage)
        return problems

    async def _withdraw(self, group: Sequence[Replica]) -> list[str]:
        before = self._cluster.image
        try:
            after = await self._cluster.change(lambda image: self._decision_about(image, group))
        except ApiError as problem:
            if len(group) == 1 or self._cluster.store_unavailable_since is not None:
                return [str(problem)] * len(group)
            # One replica's rejection, or repeated conflicts, fail the whole group: retry each alone.
            return [problem for replica in group for problem in await self._withdraw([replica])]
        for replica in group:
            self._say_withdrawn(replica, before, after)
        return []

    def _decision_about(self, image: ClusterImage, group: Sequence[Replica]) -> Decision:
        """Decide for as many replicas of the group as fit into one transaction on this image.

        On a newer image the decisions may compare more keys than before. The rest of the group follows after
        the next image, which this transaction causes.
        """
        decisions = (self._decision(image, replica) for replica in group)
        return merged(next(batched(decisions, self._cluster.changes_max)))

    def _say_withdrawn(self, replica: Replica, before: ClusterImage, after: ClusterImage) -> None:
        was, now = _partition_state(before, replica), _partition_state(after, replica)
        if was is None or now is None or was[1].leader_epoch == now[1].leader_epoch:
            return
        has_led = was[1].leader == self._node_id
        self._log.info(
            "partition.handed_over" if has_led else "partition.out_of_sync",
            partition=TopicPartition(now[0].name, replica.partition),
            leader=now[1].leader,
        )

    # Replacing

    async def _replace_all(self) -> list[str]:
        """Replace damaged copies one after the other: a single thread moves folders."""
        replicas = tuple(self._known)
        return [problem for replica in replicas if (problem := await self._replace(replica))]

    async def _replace(self, replica: Replica) -> str | None:
        """Replace a damaged copy if that is due. Returns why a retry is needed, or None."""
        partition = self._damaged(replica)
        if partition is None or not self._is_withdrawn(replica, partition):
            return None
        if not self._is_due(replica, partition):
            return None
        damage = self._known[replica]
        try:
            # The image shows the withdrawal, so no ISR or ELR contains the copy that is replaced here.
            if await self._storage.replace_damaged(partition):
                self._note_replacement(replica)
        except (StorageFailed, StorageFull) as problem:
            if isinstance(problem, NoRoomForCopy) and not damage.is_no_room_logged:
                damage.is_no_room_logged = True
                self._log.error(
                    "partition.no_room_for_copy",
                    partition=partition.name,
                    lacking_bytes=problem.lacking_bytes,
                    help=NO_ROOM_HELP.format(folder=problem.folder),
                )
            return str(problem)
        self._update_fetching(replica)
        self._forget_mended()
        return None

    def _forget_mended(self) -> None:
        """Remove replicas that are repaired or no longer on this broker."""
        for replica in [each for each in self._known if self._damaged(each) is None]:
            del self._known[replica]

    def _is_due(self, replica: Replica, partition: Partition) -> bool:
        """Whether a copy may be replaced now: at once the first time, later after a pause."""
        replacements = self._replacements.get(replica)
        if replacements is None:
            return True
        if not replacements.is_waiting and not replacements.is_due:
            seconds = replacements.pauses.next_delay_s()
            replacements.is_waiting = True
            asyncio.get_running_loop().call_later(seconds, self._end_pause, replacements)
            self._log.warning(
                "partition.replacement_waits",
                partition=partition.name,
                seconds=seconds,
                replacements=replacements.count,
                help=REPLACEMENT_HELP,
            )
        return replacements.is_due

    def _end_pause(self, replacements: _ReplicaReplacements) -> None:
        replacements.is_waiting, replacements.is_due = False, True
        self._replacements_due.set()

    def _note_replacement(self, replica: Replica) -> None:
        replacements = self._replacements.setdefault(replica, _ReplicaReplacements(self._new_pauses()))
        replacements.count += 1
        replacements.is_due = False

    def _damaged(self, replica: Replica) -> Partition | None:
        partition = self._storage.partitions.find_by_id(*replica)
        return partition if partition is not None and partition.is_damaged else None

    def _decision(self, image: ClusterImage, replica: Replica) -> Decision:
        found, own = _partition_state(image, replica), image.brokers.get(self._node_id)
        # If another process registered with this node id, the image describes the copy of that process.
        is_ours = own is not None and own.broker_epoch == self._own_epoch()
        if found is None or not is_ours or self._damaged(replica) is None:
            return NOTHING_TO_DO
        fetched_epoch = self._known[replica].fetched_epoch
        return withdraw(image, found, self._node_id, fetched_epoch=fetched_epoch) or NOTHING_TO_DO

    def _is_withdrawn(self, replica: Replica, partition: Partition) -> bool:
        image = self._cluster.image
        found = _partition_state(image, replica)
        if found is None or found[1].leader_epoch != partition.leader_epoch:
            return False  # the storage has not applied this image yet; the next image makes this due again
        fetched_epoch = self._known[replica].fetched_epoch
        return is_withdrawn(image, found[1], self._node_id, fetched_epoch=fetched_epoch)

    def _log_if_last_copy(self, replica: Replica, damage: _Damage) -> None:
        """Log that no other replica can take over, once until the replica is repaired."""
        image = self._cluster.image
        found = _partition_state(image, replica)
        leads = found is not None and found[1].leader == self._node_id and self._node_id in image.admitted
        if found is not None and leads and not damage.is_last_copy_logged:
            damage.is_last_copy_logged = True
            name = TopicPartition(found[0].name, replica.partition)
            self._log.error("partition.last_copy_damaged", partition=name, help=LAST_COPY_HELP)


def _replica(partition: Partition) -> Replica:
    return Replica(partition.topic_id, partition.name.partition)


def _partition_state(image: ClusterImage, replica: Replica) -> tuple[Topic, PartitionState] | None:
    topic = image.topics_by_id.get(replica.topic_id)
    if topic is None or replica.partition >= len(topic.partitions):
        return None
    return topic, topic.partitions[replica.partition]
