"""Changes of in-sync sets on their way to the metadata store, many in one transaction.

After a broker came back, thousands of partitions have a member to take in at about the same time. A change is
sent at once while there are few; those that come while others are under way wait together, and go together.

Rule 1: one decision is made of a proposal, and the same one is sent until its outcome is known. What it
        compares never becomes true again once it is not, so a conflict settles every earlier attempt: also
        one that was made together with others.
Rule 2: a proposal counts as refused when this broker has seen the state that refused it.
Rule 3: a proposal ends when its outcome is known, or nobody wants to know it any more, and never before: a
        leader with one that is pending makes no other. Until then it is sent, with pauses that grow; also
        while this broker is deposed (broker/cluster/peer_lease_check.py), for it may lead on in the same
        leader epoch.
Rule 4: those that did not get through together are tried one by one: they may not all be to blame.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import Cluster
from penstock.controller.decision import NOTHING_TO_DO, Decision, packed, together
from penstock.controller.isr import InSync, IsrProposal, change_isr
from penstock.errors import ApiError
from penstock.host.backoff import Pauses
from penstock.host.metadata_store import Committed, Conflict, StoreAway, StoreRefuses
from penstock.host.tasks import Tasks
from penstock.limits import IN_SYNC_SENDERS_MAX, METADATA_AWAY_PAUSE_MS, METADATA_AWAY_PAUSE_MS_MAX
from penstock.metadata.facts import ClusterImage
from penstock.observability.logs import Log
from penstock.replication.leading import NO_BROKER_EPOCH, Leading, Proposal
from penstock.replication.manager import Partitions
from penstock.replication.partition import Partition

Epoch = Callable[[], int]
"""This broker's own."""


class _Change(NamedTuple):
    partition: Partition
    """The object that led when the change was proposed; another may lead now in the same leader epoch."""
    leading: Leading
    proposal: Proposal
    decision: Decision
    decided_on: ClusterImage


class InSyncChanges:
    def __init__(
        self, cluster: Cluster, partitions: Partitions, own_epoch: Epoch, tasks: Tasks, log: Log
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._own_epoch = own_epoch
        self._tasks = tasks
        self._log = log
        self._waiting: deque[_Change] = deque()
        """At most one of each partition."""
        self._senders = 0

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        image, leading = self._cluster.image, partition.leading
        assert leading is not None, "only a leader proposes"
        try:
            decision = self._decision(image, partition, proposal)
        except ApiError as refusal:
            self._log.info("isr.not_proposed", partition=partition.name, reason=str(refusal))
            decision = NOTHING_TO_DO
        if not decision.changes:
            partition.proposal_refused(proposal)  # it was never sent: nothing can come of it
            return
        self._waiting.append(_Change(partition, leading, proposal, decision, image))
        if self._senders < IN_SYNC_SENDERS_MAX:
            self._senders += 1
            self._tasks.start(self._send(), "in-sync sets")

    def _decision(self, image: ClusterImage, partition: Partition, proposal: Proposal) -> Decision:
        node_id = self._cluster.config.node.node_id
        members = [InSync(member, proposal.added.get(member, NO_BROKER_EPOCH)) for member in proposal.isr]
        wanted = IsrProposal(
            topic_id=partition.topic_id,
            partition=partition.name.partition,
            leader=InSync(node_id, self._own_epoch()),
            leader_epoch=partition.leader_epoch,
            partition_epoch=proposal.version,
            isr=tuple(members),
        )
        return change_isr(image, wanted)

    # Sending

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._settle(self._next())
        finally:
            self._senders -= 1

    def _next(self) -> list[_Change]:
        """As many of those that wait as one transaction holds."""
        decisions = (change.decision for change in self._waiting)
        count = len(next(packed(decisions, self._cluster.changes_max)))
        taken = [self._waiting.popleft() for _ in range(count)]
        return [change for change in taken if self._is_open(change)]

    def _is_open(self, change: _Change) -> bool:
        """Its outcome is not known yet, and the leader epoch it was proposed in goes on."""
        if change.leading.proposal is not change.proposal:
            return False
        current = self._current(change)
        if current is None or current.offline is not None:
            return False
        return current.leader_epoch == change.partition.leader_epoch

    def _current(self, change: _Change) -> Partition | None:
        name, topic_id = change.partition.name, change.partition.topic_id
        return self._partitions.find_by_id(topic_id, name.partition)

    async def _settle(self, changes: list[_Change]) -> None:
        """Returns when the outcome of each is known, or nobody wants to know it any more."""
        if len(changes) > 1 and await self._are_settled_together(changes):
            return
        for change in changes:
            await self._settle_alone(change)

    async def _are_settled_together(self, changes: list[_Change]) -> bool:
        decision = together(change.decision for change in changes)
        try:
            outcome = await self._cluster.propose(decision)
        except (StoreAway, StoreRefuses, ApiError) as problem:
            self._log.warning("isr.unknown", partitions=len(changes), reason=str(problem))
            return False
        if isinstance(outcome, Conflict):
            return False
        for change in changes:
            self._committed(change)
        return True

    async def _settle_alone(self, change: _Change) -> None:
        pauses = Pauses(METADATA_AWAY_PAUSE_MS, METADATA_AWAY_PAUSE_MS_MAX)
        while self._is_open(change):
            try:
                outcome = await self._cluster.propose(change.decision)
                if isinstance(outcome, Conflict):
                    await self._cluster.learn(outcome, change.decided_on)
            except (StoreAway, StoreRefuses, ApiError) as problem:
                self._log.warning("isr.unknown", partition=change.partition.name, reason=str(problem))
                await asyncio.sleep(pauses.next_seconds())
                continue
            if isinstance(outcome, Committed):
                self._committed(change)
            else:
                self._refused(change)

    def _committed(self, change: _Change) -> None:
        proposal, current = change.proposal, self._current(change)
        if current is not None and current.leading is change.leading:
            current.proposal_committed(proposal, proposal.version + 1)
        else:  # this broker is deposed, or the leader epoch is over
            change.leading.committed(proposal, proposal.version + 1)
        isr = ",".join(map(str, proposal.isr))
        self._log.info("isr.changed", partition=change.partition.name, isr=isr)

    def _refused(self, change: _Change) -> None:
        current = self._current(change)
        if current is not None and current.leading is change.leading:
            current.proposal_refused(change.proposal)
        else:
            change.leading.refused(change.proposal)
