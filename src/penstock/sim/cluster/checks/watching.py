"""Invariants of the partitions of simulated brokers, checked from outside after every event.

    one leader for an epoch    no two processes lead a partition under the same leader epoch, and no broker
                               replies under another epoch than the one in the request
    the high watermark         of a leader never moves back, is never past its log end offset, and moves only
                               while enough replicas are in sync
    newly committed records    are recorded in the ledger, which compares the disks of all replicas that may
                               be in the ISR
    members of the ISR         that count for the high watermark have received the leader's epoch: so no
                               earlier leader can make them truncate what they have confirmed
    a truncation, and the      leave replicas in the ISR, or eligible, with every committed record
    opening of a log
    flushed records            are on the platter, and equal on all replicas that have them (log_matching.py)
    the log start offset       moves on a leader that received DeleteRecords or whose topic has a retention,
                               no further than that allows. Followers only follow it, unless they led when
                               DeleteRecords arrived. The next leader has what was confirmed

Strategy: an event runs code of one or two processes, and only their state can have changed. A partition
whose state has not changed since the previous check costs one comparison.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.broker import RunningBroker
from penstock.metadata.cluster_image import ClusterImage, Topic
from penstock.metadata.durability import eligible_leaders
from penstock.metadata.keys import topic_id_text
from penstock.replication.partition import Partition
from penstock.sim.cluster.checks.compacted_ledger import CompactedLedger
from penstock.sim.cluster.checks.ledger import Ledger, LogRange, TopicIdPartition
from penstock.sim.cluster.checks.log_matching import LogMatcher
from penstock.sim.cluster.extras import NO_LIMIT
from penstock.sim.cluster.node import SimNode
from penstock.sim.cluster.plan import ClusterPlan
from penstock.sim.processes import SimProcess
from penstock.sim.violation import InvariantViolation
from penstock.types import TopicPartition

TRUNCATIONS: Final = 0
HIGH_WATERMARK: Final = 2
LOG_START: Final = 3
HAS_FAILED: Final = 4
PARTITION_OBJECTS_MAX: Final = 200
"""The number of entries above which those of removed partitions are dropped."""


PartitionSummary = tuple[int, int, int, int, bool]
"""A partition's truncation count, flushed end offset, high watermark and log start offset, and whether its
disk has failed.
"""


class KnownEpoch(NamedTuple):
    epoch: int
    at: float


class PartitionChecks:
    def __init__(
        self,
        nodes: dict[int, SimNode],
        image: Callable[[], ClusterImage],
        now: Callable[[], float],
        plan: ClusterPlan,
        was_damaged: Callable[[int, str], bool],
    ) -> None:
        """`image`: returns what the metadata store holds at this moment. `was_damaged`: whether a bit of this
        node's copy of a partition ever flipped.
        """
        self._was_damaged = was_damaged
        self._plan = plan
        self._is_single = len(nodes) == 1
        self._image = image
        self._now = now
        self._nodes = nodes
        self._order = tuple(nodes.values())
        self.ledgers: dict[TopicIdPartition, Ledger] = {}
        self._leaders: dict[tuple[TopicIdPartition, int], SimProcess] = {}
        self._seen: dict[int, dict[Partition, PartitionSummary]] = {number: {} for number in nodes}
        """The state of each partition object at its last check."""
        self._chains: dict[TopicIdPartition, LogMatcher] = {}
        self._epochs: dict[int, dict[TopicIdPartition, KnownEpoch]] = {number: {} for number in nodes}
        """By node: the latest leader epoch that its process has received for each partition."""
        self._processes: dict[int, SimProcess] = {}

    def ledger(self, partition: Partition) -> Ledger:
        return self.ledger_of((partition.topic_id, partition.name.partition), str(partition.name))

    def ledger_of(self, partition_id: TopicIdPartition, name: str) -> Ledger:
        found = self.ledgers.get(partition_id)
        if found is None:
            plan = self._plan
            on_platter = plan.extras.flushes_before_ack
            if name.rpartition("-")[0] in plan.compacted_topics:
                found = CompactedLedger(
                    name, self._nodes, on_platter=on_platter, delete_retention_ms=plan.delete_retention_ms
                )
            else:
                found = Ledger(name, self._nodes, on_platter=on_platter)
            self.ledgers[partition_id] = found
        return found

    def power_lost(self) -> None:
        """The power of a single broker failed."""
        for ledger in self.ledgers.values():
            ledger.power_lost()

    def cleaned(self, serving: RunningBroker) -> None:
        """Compare the compacted logs of a single broker after cleaned segments replaced others."""
        for partition in serving.storage.partitions:
            ledger, log = self.ledger(partition), partition.log
            if (
                isinstance(ledger, CompactedLedger)
                and partition.offline_error is None
                and log.has_stable_segments
            ):
                ledger.compare(self._order[0].id, log, log.log_start_offset)

    def check_changed(self) -> None:
        """Check the processes that have run since the last call. Called after every event."""
        for node in self._order:
            process = node.process
            if process.has_run:
                process.has_run = False
                if node.serving is not None:
                    self._check_node(node, process, node.serving)

    def _check_node(self, node: SimNode, process: SimProcess, running: RunningBroker) -> None:
        seen = self._seen[node.id]
        if self._processes.get(node.id) is not process:
            self._processes[node.id] = process
            seen.clear()
            self._epochs[node.id].clear()
            for chains in self._chains.values():
                # Truncations by the new process before its first check are unknown.
                chains.truncated(node.id, 0)
        for partition in running.storage.partitions:
            log = partition.log
            now = (
                log.truncation_count,
                log.flushed_end_offset,
                partition.high_watermark,
                log.log_start_offset,
                partition.disk_error is not None,
            )
            before = seen.get(partition)
            if before != now:
                seen[partition] = now
                if self._is_single and partition.offline_error is None:
                    self._check_single(node, partition, before)
                self._check_partition(node, partition, before)
                if self._is_single and before is None and partition.is_leader:
                    self.ledger(partition).producers_on(node.id, log, log.log_start_offset)
        if len(seen) > PARTITION_OBJECTS_MAX:
            there = set(running.storage.partitions)
            self._seen[node.id] = {each: state for each, state in seen.items() if each in there}

    def _check_single(self, node: SimNode, partition: Partition, before: PartitionSummary | None) -> None:
        """Check the only replica of a partition."""
        ledger, log, where = self.ledger(partition), partition.log, f"{partition.name} on {node}"
        flushed, high = log.flushed_end_offset, partition.high_watermark
        if not log.recovery_point <= flushed <= log.log_end_offset:
            raise InvariantViolation(f"{where}: {log} has flushed {flushed}")
        if before is None:
            ledger.reopened(node.id, log)
            if partition.is_leader and high != log.log_end_offset:
                raise InvariantViolation(f"{where}: {high} is shown after a restart; it ends at {log}")
        elif before[HAS_FAILED] and high > before[HIGH_WATERMARK]:
            raise InvariantViolation(f"{where}: {high} is shown although its disk has failed")
        if self._plan.extras.flushes_before_ack and high > flushed:
            raise InvariantViolation(f"{where}: {high} is shown, and {flushed} is flushed")
        ledger.safe_end = max(ledger.safe_end if before is not None else 0, flushed)

    def _check_partition(self, node: SimNode, partition: Partition, before: PartitionSummary | None) -> None:
        leading, high = partition.leading, partition.high_watermark
        if partition.offline_error is not None:
            return
        ledger = self.ledger(partition)
        partition_id = (partition.topic_id, partition.name.partition)
        chains = self._chains.setdefault(partition_id, LogMatcher(ledger.name))
        if before is None:
            self._epochs[node.id][partition_id] = KnownEpoch(partition.leader_epoch, self._now())
        if before is None or before[TRUNCATIONS] != partition.log.truncation_count:
            chains.truncated(node.id, partition.log.log_end_offset)
            self._check_in_sync(node, partition, ledger)
            self._check_producers(node, partition)
        is_compacted = isinstance(ledger, CompactedLedger)
        if partition.disk_error is None and not partition.log.is_truncating and not is_compacted:
            chains.flushed(node, partition.log)
        if before is None or before[LOG_START] != partition.log.log_start_offset:
            self._check_start(node, partition, ledger, before)
        if not partition.is_leader:
            return
        where = f"{partition.name} on {node}"
        if before is None:
            self._check_new_leadership(node, partition, ledger)
        elif high < before[HIGH_WATERMARK]:
            raise InvariantViolation(
                f"{where}: the high watermark goes back from {before[HIGH_WATERMARK]} to {high}"
            )
        if high > partition.log.log_end_offset:
            raise InvariantViolation(
                f"{where}: {high} is shown and it ends at {partition.log.log_end_offset}"
            )
        # Without a role, the broker has the only replica.
        maximal_isr = frozenset({node.id}) if leading is None else leading.maximal_isr
        if before is not None and high > before[HIGH_WATERMARK]:
            self._check_epochs(node, partition, maximal_isr)
        if high <= ledger.end:
            return
        if leading is not None and not leading.meets_min_isr:
            raise InvariantViolation(f"{where}: {high} is shown with too few in sync: {leading}")
        # The ISR is checked both as the store has it and as the leader has it: the leader may have proposed
        # more members (its maximal ISR). The leader may also still count a broker that is no replica any
        # more and has removed its copy, so the leader's members are limited to the replicas. In the same way
        # it may count a broker that has withdrawn its damaged copy and replaces it: that broker had stored
        # what it confirmed, and cannot be elected any more. The same holds for a broker that lost its data:
        # the store has removed it from the ISR, and a leader with an outdated image still counts it.
        electable = self._may_be_elected(partition)
        members = maximal_isr.intersection(self._replicas(partition))
        withdrawn = {
            member
            for member in members.difference(electable)
            if self._was_damaged(member, str(partition.name)) or self._left_after_loss(member, partition)
        }
        isr = members.difference(withdrawn).union(electable)
        ledger.high_watermark_moved(node.id, partition.leader_epoch, high, isr=isr)

    def require_epoch(
        self, node_id: int, partition_id: TopicIdPartition, epoch: int, requested_at: float
    ) -> None:
        """Check that a broker's reply under this epoch was allowed: the request named this epoch."""
        heard = self._known_epoch(node_id, partition_id)
        if heard is not None and heard.epoch != epoch and heard.at < requested_at:
            raise InvariantViolation(
                f"node-{node_id} answers about {partition_id[1]} under epoch {epoch}, and is in {heard}"
            )

    def leads(self, node_id: int, partition_id: TopicIdPartition, epoch: int) -> bool:
        """Whether the node's current process has led in that epoch.

        Other brokers reply too, and may have an older epoch.
        """
        return self._leaders.get((partition_id, epoch)) is self._nodes[node_id].process

    def _known_epoch(self, node_id: int, partition_id: TopicIdPartition) -> KnownEpoch | None:
        """The latest epoch that the node received. None: its process has not been checked yet."""
        is_same = self._processes.get(node_id) is self._nodes[node_id].process
        return self._epochs[node_id].get(partition_id) if is_same else None

    def _check_epochs(self, node: SimNode, partition: Partition, members: frozenset[int]) -> None:
        partition_id = (partition.topic_id, partition.name.partition)
        for member in members - {node.id}:
            heard = self._known_epoch(member, partition_id)
            if heard is not None and heard.epoch < partition.leader_epoch:
                where = f"{partition.name} on {node}, in epoch {partition.leader_epoch}"
                raise InvariantViolation(f"{where}: node-{member} counts, and has heard only of {heard}")

    def _replicas(self, partition: Partition) -> tuple[int, ...]:
        """The replicas in the metadata store."""
        topic = self._image().topics_by_id.get(partition.topic_id)
        return () if topic is None else topic.partitions[partition.name.partition].replicas

    def _left_after_loss(self, member: int, partition: Partition) -> bool:
        """Whether the member is in the ISR only as this leader knows it: the member lost its data, and the
        metadata store has changed the partition since.
        """
        leading, lost_at = partition.leading, self._nodes[member].last_loss_at_revision
        topic = self._image().topics_by_id.get(partition.topic_id)
        if leading is None or lost_at is None or topic is None:
            return False
        # A member that the leader proposes has to have everything: its fetches are from after the loss.
        return member in leading.isr and topic.partitions[partition.name.partition].revision > lost_at

    def _may_be_elected(self, partition: Partition) -> tuple[int, ...]:
        """The replicas that the metadata store allows to be elected: the ISR and the eligible leaders."""
        image = self._image()
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is None:
            return ()
        state = topic.partitions[partition.name.partition]
        return (*state.isr, *eligible_leaders(image, topic, state))

    def replica_joined(self, topic: Topic, index: int, node_id: int) -> None:
        """Check a replica that joined the ISR in the metadata store: it must have every committed record."""
        ledger = self.ledger_of((topic.id, index), str(TopicPartition(topic.name, index)))
        serving = self._nodes[node_id].serving
        partition = None if serving is None else serving.storage.partitions.find_by_id(topic.id, index)
        ledger.require_caught_up(node_id, None if partition is None else _log_range(partition))

    def _check_start(
        self, node: SimNode, partition: Partition, ledger: Ledger, before: PartitionSummary | None
    ) -> None:
        start, where = partition.log.log_start_offset, f"{partition.name} on {node}"
        if start <= ledger.start_max:
            if partition.is_leader and before is not None and start < before[LOG_START]:
                raise InvariantViolation(f"{where}: the start goes back from {before[LOG_START]} to {start}")
        elif not partition.is_leader and self._has_begun_deletion(node, partition, ledger):
            # The leadership ended while the new start was being stored: the client of DeleteRecords gets an
            # error.
            ledger.start_max = start
        elif not partition.is_leader:
            raise InvariantViolation(
                f"{where}: it starts at {start}; no leader started after {ledger.start_max}"
            )
        elif start > partition.high_watermark:
            raise InvariantViolation(
                f"{where}: it starts at {start}, behind {partition.high_watermark}, which is shown"
            )
        elif start > ledger.requested_start and not self._may_expire(node, partition, ledger):
            raise InvariantViolation(f"{where}: records below {start} are gone, and no client requested that")
        else:
            ledger.start_max = start

    def _has_begun_deletion(self, node: SimNode, partition: Partition, ledger: Ledger) -> bool:
        """Whether this node led, perhaps in an earlier process, when it received the DeleteRecords
        request.
        """
        partition_id = (partition.topic_id, partition.name.partition)
        leaders = (self._leaders.get((partition_id, epoch)) for epoch in range(partition.leader_epoch + 1))
        has_led = any(leader is not None and leader.host == node.host for leader in leaders)
        return has_led and partition.log.log_start_offset <= ledger.requested_start

    def _may_expire(self, node: SimNode, partition: Partition, ledger: Ledger) -> bool:
        """Whether the topic's retention permits deleting everything before the start."""
        extras, log = self._plan.extras, partition.log
        if isinstance(ledger, CompactedLedger):
            # Compaction removes records, so the sizes and times of when retention decided are gone.
            return extras.has_retention
        size = sum(segment.size_bytes for segment in log.segments)
        is_too_much = extras.retention_bytes != NO_LIMIT and size >= extras.retention_bytes
        expires_ms = node.wall_ms() - extras.retention_ms
        newest_ms = ledger.newest_timestamp_below(log.log_start_offset)
        is_old = extras.retention_ms != NO_LIMIT and newest_ms < expires_ms
        return is_too_much or is_old

    def _check_in_sync(self, node: SimNode, partition: Partition, ledger: Ledger) -> None:
        """Check an opened or truncated log: a replica that may be elected has every committed record."""
        end = partition.log.log_end_offset
        is_known = node.has_lost_data or _was_reported_missing(node, partition)
        if end < ledger.end and not is_known and node.id in self._may_be_elected(partition):
            raise InvariantViolation(
                f"{partition.name}: {node} may lead and ends at {end}; {ledger.end} was shown"
            )

    def _check_producers(self, node: SimNode, partition: Partition) -> None:
        """Check that the producer state does not mention truncated batches."""
        end = partition.log.log_end_offset
        for producer_id, producer in partition.log.producers.items():
            if producer.last.last_offset >= end:
                raise InvariantViolation(
                    f"{partition.name}: {node} ends at {end} and remembers {producer.last} of {producer_id}"
                )

    def _check_new_leadership(self, node: SimNode, partition: Partition, ledger: Ledger) -> None:
        key = (partition.topic_id, partition.name.partition), partition.leader_epoch
        other = self._leaders.setdefault(key, node.process)
        if other is not node.process:
            raise InvariantViolation(f"{partition.name}: {other} and {node.process} lead in epoch {key[1]}")
        ledger.leadership_began(node.id, partition.leader_epoch, _log_range(partition))
        topic = self._image().topics_by_id.get(partition.topic_id)
        state = None if topic is None else topic.partitions[partition.name.partition]
        if state is not None and (state.leader, state.leader_epoch) == (node.id, partition.leader_epoch):
            ledger.require_start(node.id, partition.log.log_start_offset)


def _log_range(partition: Partition) -> LogRange:
    return LogRange(partition.log.log_start_offset, partition.log.log_end_offset)


def _was_reported_missing(node: SimNode, partition: Partition) -> bool:
    """Whether the process found at its start that its copy is gone.

    It reports that to the cluster before it is admitted.
    """
    if node.serving is None:
        return False
    missing = node.serving.storage.partitions.lost.get(topic_id_text(partition.topic_id), ())
    return partition.name.partition in missing
