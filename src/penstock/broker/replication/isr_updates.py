"""Commits of ISR proposals: this broker sends what it proposes as a leader to the metadata store.

After a broker has restarted, thousands of partitions add it to their ISRs at about the same time. A sender
task commits each proposal at once while there are few. Proposals that arrive while every sender is busy are
queued, and a sender then commits many of them in one transaction.

Rule 1: each proposal is validated once (controller/isr.py), and the sender retries the resulting decision,
        unchanged, until the outcome is known.
        The revisions that the decision compares never become current again once they have changed. So a
        conflict also proves that no earlier attempt with unknown outcome can still commit, including an
        attempt that shared a transaction with other proposals.
Rule 2: a proposal counts as rejected once this broker has applied the state that the proposal conflicted
        with.
Rule 3: a proposal ends when its outcome is known, when its leader epoch is over, or when the partition goes
        offline, and never before: a leader with a pending proposal makes no other. Until then the sender
        retries with growing pauses, also while this broker is deposed (broker/cluster/peer_lease_check.py),
        because this broker may resume as leader in the same leader epoch.
Rule 4: if a transaction of several proposals fails, the sender commits them one by one: a single proposal may
        have caused the conflict.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.controller.decision import NOTHING_TO_DO, Decision, batched, merged
from penstock.controller.isr import AlterPartition, IsrMember, change_isr
from penstock.errors import ApiError
from penstock.host.backoff import Backoff
from penstock.host.metadata_store import CommittedTransaction, Conflict, StoreRejected, StoreUnavailable
from penstock.host.tasks import Tasks
from penstock.limits import (
    ISR_SENDERS_MAX,
    METADATA_UNAVAILABLE_PAUSE_MS,
    METADATA_UNAVAILABLE_PAUSE_MS_MAX,
)
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log
from penstock.replication.leading import NO_BROKER_EPOCH, IsrProposal, LeaderRole
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager

OwnBrokerEpoch = Callable[[], int]
"""Returns the current broker epoch of this broker."""


class _QueuedProposal(NamedTuple):
    """A proposal, and the decision that commits it."""

    partition: Partition
    """The Partition object that led when the proposal was made. By the time of the commit, another object
    may lead the same partition in the same leader epoch."""
    leading: LeaderRole
    proposal: IsrProposal
    decision: Decision
    decided_on: ClusterImage
    """The image that the proposal was validated against."""


class IsrUpdates:
    def __init__(
        self,
        cluster: MetadataService,
        partitions: ReplicaManager,
        own_epoch: OwnBrokerEpoch,
        tasks: Tasks,
        log: Log,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._own_epoch = own_epoch
        self._tasks = tasks
        self._log = log
        self._waiting: deque[_QueuedProposal] = deque()
        """Proposals for the senders, at most one per partition."""
        self._senders = 0

    def propose(self, partition: Partition, proposal: IsrProposal) -> None:
        image, leading = self._cluster.image, partition.leading
        assert leading is not None, "only a leader proposes"
        try:
            decision = self._decision(image, partition, proposal)
        except ApiError as rejection:
            self._log.info("isr.not_proposed", partition=partition.name, reason=str(rejection))
            decision = NOTHING_TO_DO
        if not decision.changes:
            partition.proposal_rejected(proposal)  # never sent, so it cannot commit later: safe to reject now
            return
        self._waiting.append(_QueuedProposal(partition, leading, proposal, decision, image))
        if self._senders < ISR_SENDERS_MAX:
            self._senders += 1
            self._tasks.start(self._send(), "ISR proposals")

    def _decision(self, image: ClusterImage, partition: Partition, proposal: IsrProposal) -> Decision:
        node_id = self._cluster.config.node.node_id
        # The broker epoch that the follower fetched with: the decision compares it with the store, so that a
        # restarted process of that broker, which may have lost records, cannot enter the ISR instead.
        members = [IsrMember(member, proposal.added.get(member, NO_BROKER_EPOCH)) for member in proposal.isr]
        request = AlterPartition(
            topic_id=partition.topic_id,
            partition=partition.name.partition,
            leader=IsrMember(node_id, self._own_epoch()),
            leader_epoch=partition.leader_epoch,
            partition_epoch=proposal.version,
            isr=tuple(members),
        )
        return change_isr(image, request)

    # Sending

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._commit_all(self._next())
        finally:
            self._senders -= 1

    def _next(self) -> list[_QueuedProposal]:
        """Take as many queued proposals as fit into one transaction, and drop ended proposals."""
        decisions = (queued.decision for queued in self._waiting)
        count = len(next(batched(decisions, self._cluster.changes_max)))
        taken = [self._waiting.popleft() for _ in range(count)]
        return [queued for queued in taken if self._is_open(queued)]

    def _is_open(self, queued: _QueuedProposal) -> bool:
        """Check that the outcome is unknown and the leader epoch of the proposal is still current."""
        if queued.leading.proposal is not queued.proposal:
            return False
        current = self._current(queued)
        if current is None or current.offline_error is not None:
            return False
        return current.leader_epoch == queued.partition.leader_epoch

    def _current(self, queued: _QueuedProposal) -> Partition | None:
        name, topic_id = queued.partition.name, queued.partition.topic_id
        return self._partitions.find_by_id(topic_id, name.partition)

    async def _commit_all(self, group: list[_QueuedProposal]) -> None:
        """Commit proposals. Returns when each has an outcome, or its leader epoch is over."""
        if len(group) > 1 and await self._committed_together(group):
            return
        for queued in group:
            await self._commit_alone(queued)

    async def _committed_together(self, group: list[_QueuedProposal]) -> bool:
        decision = merged(queued.decision for queued in group)
        try:
            # False from here on means conflict or unknown outcome. Both are safe: committing each decision
            # alone conflicts if the joint transaction did commit, and the new state then confirms it.
            outcome = await self._cluster.commit_once(decision)
        except (StoreUnavailable, StoreRejected, ApiError) as problem:
            self._log.warning("isr.unknown", partitions=len(group), reason=str(problem))
            return False
        if isinstance(outcome, Conflict):
            return False
        for queued in group:
            self._committed(queued)
        return True

    async def _commit_alone(self, queued: _QueuedProposal) -> None:
        pauses = Backoff(METADATA_UNAVAILABLE_PAUSE_MS, METADATA_UNAVAILABLE_PAUSE_MS_MAX)
        while self._is_open(queued):
            try:
                outcome = await self._cluster.commit_once(queued.decision)
                if isinstance(outcome, Conflict):
                    # If an earlier attempt did commit, this image shows it and resolves the proposal, so that
                    # `_rejected` below has no effect.
                    await self._cluster.wait_for_conflict(outcome, queued.decided_on)
            except (StoreUnavailable, StoreRejected, ApiError) as problem:
                self._log.warning("isr.unknown", partition=queued.partition.name, reason=str(problem))
                await asyncio.sleep(pauses.next_delay_s())
                continue
            if isinstance(outcome, CommittedTransaction):
                self._committed(queued)
            else:
                self._rejected(queued)

    def _committed(self, queued: _QueuedProposal) -> None:
        proposal, current = queued.proposal, self._current(queued)
        if current is not None and current.leading is queued.leading:
            current.proposal_committed(proposal, proposal.version + 1)
        else:  # this broker is deposed, or the leader epoch is over: no Partition to update, only the role
            queued.leading.committed(proposal, proposal.version + 1)
        isr = ",".join(map(str, proposal.isr))
        self._log.info("isr.changed", partition=queued.partition.name, isr=isr)

    def _rejected(self, queued: _QueuedProposal) -> None:
        current = self._current(queued)
        if current is not None and current.leading is queued.leading:
            current.proposal_rejected(queued.proposal)
        else:
            queued.leading.rejected(queued.proposal)
