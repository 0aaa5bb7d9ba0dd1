"""What a broker of a cluster does about copies of partitions that it found damaged.

    damaged ──→ out of sync ──→ set aside ──→ copied anew from the leader

A damaged copy counts for nothing: no leader may wait for it, and it may not be elected. So the broker takes
itself out of the in-sync replicas, and lets another lead where it leads, in one decision that it makes itself
(`controller.elections.withdraw`). When the cluster shows that, the folder is moved to `strays`, and the
partition is copied from its leader like one that this broker has just been given.

Rule 1: what is next is decided from the image and the partitions as they are, after every change of the
        image. So leadership that comes to a damaged copy is handed over, whenever and however it came.
Rule 2: nothing is set aside that anybody counts on. Where nobody else has what was committed, the copy stays
        where it is, offline, until somebody who has it is there again or a person decides.
Rule 3: a leader epoch begins between the last fetch for the damaged copy and the first for the empty one. A
        fetch that the leader sees late would otherwise put the empty copy in sync.
Rule 4: the broker withdraws without waiting for the disk, which may be slow because it fails, or hang: one
        task withdraws all damaged copies, many in one transaction, and another one gives them up, one after
        the other. It sets a copy aside behind the note of the damage, in the same thread. A process that is
        killed after it withdrew and before the note is on disk has forgotten the damage: the copy may be in
        sync again, as if nobody had read the damage yet, until somebody reads it. To wait for the note would
        keep clients waiting, and a process that is killed while it waits forgets as much.
Rule 5: what fails, at the metadata store or on the disk, is tried again, with pauses that grow, until it is
        done.
Rule 6: a disk that damages the same copy again and again does not make the broker copy it again and again:
        each further renewal of a replica by one process waits longer. The replica is out of sync meanwhile.
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
    RENEWAL_PAUSE_MS,
    RENEWAL_PAUSE_MS_MAX,
)
from penstock.log.damaged_copies import NoRoomForCopy
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.observability.logs import Log
from penstock.replication.fetch_session_handler import Replica
from penstock.replication.partition import Partition
from penstock.types import TopicPartition

NEVER_FETCHED: Final = -1
LAST_COPY_HELP: Final = (
    "no other replica that is there has all of it, so the partition is offline and its files are kept: see "
    "'A damaged partition' in docs/operations.md"
)
NO_ROOM_HELP: Final = (
    "free so many bytes on that disk, or move {folder} to another one: the broker then copies the partition "
    "by itself. Until then this replica is out of sync. The broker removes damaged files itself only where "
    "two others are in sync, and what was read is damaged for certain"
)
RENEWAL_HELP: Final = "the disk of this broker damaged the copy again: look at it, or replace it"


class _ReplicaRenewals:
    """Those of one replica."""

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
        renewal_pause_ms: int = RENEWAL_PAUSE_MS,
        renewal_pause_ms_max: int = RENEWAL_PAUSE_MS_MAX,
    ) -> None:
        """`own_epoch`: this process's broker epoch. `update_fetching`: told of a replica that is to be
        fetched no more, or again. The pauses are those before a replica is renewed once more."""
        self._cluster = cluster
        self._storage = storage
        self._own_epoch = own_epoch
        self._update_fetching = update_fetching
        self._log = log
        self._node_id = cluster.config.node.node_id
        self._fetched_epochs: dict[Replica, int] = {}
        """The damaged copies, and the last leader epoch under which something was fetched for each."""
        self._last_copies: set[Replica] = set()
        """Those of which it was said that nobody else has them."""
        self._without_room: set[Replica] = set()
        """Those of which it was said that no copy fits beside them."""
        self._renewals: dict[Replica, _ReplicaRenewals] = {}
        self._new_pauses: Callable[[], Backoff] = lambda: Backoff(renewal_pause_ms, renewal_pause_ms_max)
        self._withdrawals_due, self._renewals_due = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        """Take up what was found damaged before this broker was a member. Nothing is fetched yet."""
        for partition in self._storage.partitions:
            if partition.is_damaged:
                self._fetched_epochs[_replica(partition)] = NEVER_FETCHED
                self._look_again()
        self._storage.on_damage = self._on_damage
        self._cluster.subscribe(self._follow)

    def _on_damage(self, partition: Partition) -> None:
        replica = _replica(partition)
        self._fetched_epochs[replica] = partition.leader_epoch
        self._update_fetching(replica)
        self._look_again()

    def _look_again(self) -> None:
        self._withdrawals_due.set()
        self._renewals_due.set()

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        if self._fetched_epochs:
            self._look_again()
        for replica in [each for each in self._renewals if _partition_state(after, each) is None]:
            del self._renewals[replica]

    async def run(self) -> None:
        """The task that takes damaged copies out of sync. It never waits for the disk."""
        await self._keep_doing(self._withdraw_all, self._withdrawals_due)

    async def renew(self) -> None:
        """The task that gives copies up, and begins anew."""
        await self._keep_doing(self._renew_all, self._renewals_due)

    async def _keep_doing(self, attempt: Callable[[], Awaitable[list[str]]], due: asyncio.Event) -> None:
        """`attempt` returns why something has to be tried again soon."""
        pauses, said = Backoff(METADATA_UNAVAILABLE_PAUSE_MS, METADATA_UNAVAILABLE_PAUSE_MS_MAX), ""
        while True:
            await due.wait()
            due.clear()
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
        for replica in self._fetched_epochs:
            decision = self._decision(image, replica)
            if decision.all_changes:
                decisions[replica] = decision
        replicas = iter(decisions)
        for group in batched(decisions.values(), self._cluster.changes_max):
            problems += await self._withdraw(list(islice(replicas, len(group))))
        self._forget_mended()
        for replica in self._fetched_epochs:
            self._log_if_last_copy(replica)
        return problems

    async def _withdraw(self, group: Sequence[Replica]) -> list[str]:
        before = self._cluster.image
        try:
            after = await self._cluster.change(lambda image: self._decision_about(image, group))
        except ApiError as problem:
            if len(group) == 1 or self._cluster.store_unavailable_since is not None:
                return [str(problem)] * len(group)
            # Together they may be refused for one of them, or conflict with others again and again.
            return [problem for replica in group for problem in await self._withdraw([replica])]
        for replica in group:
            self._say_withdrawn(replica, before, after)
        return []

    def _decision_about(self, image: ClusterImage, group: Sequence[Replica]) -> Decision:
        """Decided anew on this image, it may rest on more than one transaction compares. The others of the
        group follow with the next image, which this one makes."""
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

    # Beginning anew

    async def _renew_all(self) -> list[str]:
        """One after the other: there is one thread that moves folders."""
        replicas = tuple(self._fetched_epochs)
        return [problem for replica in replicas if (problem := await self._renew(replica))]

    async def _renew(self, replica: Replica) -> str | None:
        """Returns why it has to be tried again soon; None: it has not."""
        partition = self._damaged(replica)
        if partition is None or not self._is_withdrawn(replica, partition):
            return None
        if not self._is_due(replica, partition):
            return None
        try:
            if await self._storage.begin_anew(partition):
                self._note_renewal(replica)
        except (StorageFailed, StorageFull) as problem:
            if isinstance(problem, NoRoomForCopy):
                self._say_no_room(replica, partition, problem)
            return str(problem)
        self._update_fetching(replica)
        self._forget_mended()
        return None

    def _say_no_room(self, replica: Replica, partition: Partition, problem: NoRoomForCopy) -> None:
        """Once, until it is mended."""
        if replica not in self._without_room:
            self._without_room.add(replica)
            self._log.error(
                "partition.no_room_for_copy",
                partition=partition.name,
                lacking_bytes=problem.lacking_bytes,
                help=NO_ROOM_HELP.format(folder=problem.folder),
            )

    def _forget_mended(self) -> None:
        """And those that are gone."""
        for replica in [each for each in self._fetched_epochs if self._damaged(each) is None]:
            del self._fetched_epochs[replica]
            self._last_copies.discard(replica)
            self._without_room.discard(replica)

    def _is_due(self, replica: Replica, partition: Partition) -> bool:
        """Whether it may be renewed now. The first time it may; later a pause begins."""
        renewals = self._renewals.get(replica)
        if renewals is None:
            return True
        if not renewals.is_waiting and not renewals.is_due:
            seconds = renewals.pauses.next_delay_s()
            renewals.is_waiting = True
            asyncio.get_running_loop().call_later(seconds, self._end_pause, renewals)
            self._log.warning(
                "partition.renewal_waits",
                partition=partition.name,
                seconds=seconds,
                renewals=renewals.count,
                help=RENEWAL_HELP,
            )
        return renewals.is_due

    def _end_pause(self, renewals: _ReplicaRenewals) -> None:
        renewals.is_waiting, renewals.is_due = False, True
        self._renewals_due.set()

    def _note_renewal(self, replica: Replica) -> None:
        renewals = self._renewals.setdefault(replica, _ReplicaRenewals(self._new_pauses()))
        renewals.count += 1
        renewals.is_due = False

    def _damaged(self, replica: Replica) -> Partition | None:
        partition = self._storage.partitions.find_by_id(*replica)
        return partition if partition is not None and partition.is_damaged else None

    def _decision(self, image: ClusterImage, replica: Replica) -> Decision:
        found, own = _partition_state(image, replica), image.brokers.get(self._node_id)
        # Where another process was admitted under this id, the image speaks of its copy.
        is_ours = own is not None and own.broker_epoch == self._own_epoch()
        if found is None or not is_ours or self._damaged(replica) is None:
            return NOTHING_TO_DO
        fetched_epoch = self._fetched_epochs[replica]
        return withdraw(image, found, self._node_id, fetched_epoch=fetched_epoch) or NOTHING_TO_DO

    def _is_withdrawn(self, replica: Replica, partition: Partition) -> bool:
        image = self._cluster.image
        found = _partition_state(image, replica)
        if found is None or found[1].leader_epoch != partition.leader_epoch:
            return False  # the storage has yet to follow this image
        fetched_epoch = self._fetched_epochs[replica]
        return is_withdrawn(image, found[1], self._node_id, fetched_epoch=fetched_epoch)

    def _log_if_last_copy(self, replica: Replica) -> None:
        """Once, until it is mended."""
        image = self._cluster.image
        found = _partition_state(image, replica)
        leads = found is not None and found[1].leader == self._node_id and self._node_id in image.admitted
        if found is not None and leads and replica not in self._last_copies:
            self._last_copies.add(replica)
            name = TopicPartition(found[0].name, replica.partition)
            self._log.error("partition.last_copy_damaged", partition=name, help=LAST_COPY_HELP)


def _replica(partition: Partition) -> Replica:
    return Replica(partition.topic_id, partition.name.partition)


def _partition_state(image: ClusterImage, replica: Replica) -> tuple[Topic, PartitionState] | None:
    topic = image.topics_by_id.get(replica.topic_id)
    if topic is None or replica.partition >= len(topic.partitions):
        return None
    return topic, topic.partitions[replica.partition]
