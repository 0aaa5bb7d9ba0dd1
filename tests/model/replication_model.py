"""Three replicas of one partition on disks in memory, a network that loses, doubles and delays, and an
oracle in the place of metadata store and controller. Plain calls, one random number generator.

What was shown by a leader is written down. From then on it must be in the log of everybody who may lead
next, at its offset, and nobody may ever show something else there. A deletion that was confirmed is written
down, too: from then on the log of everybody who may lead next begins there, or later.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.errors import ApiError, ErrorCode
from penstock.log.partition_log import Flush, PartitionLog
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.recovery import open_log
from penstock.log.truncation import FullTruncation, Truncation
from penstock.protocol.batches import parse_header, split_batches
from penstock.protocol.messages.fetch import FetchPartition, PartitionData
from penstock.replication.following import FetchPosition, FollowerRole
from penstock.replication.leading import (
    NO_BROKER_EPOCH,
    CommittedPartitionState,
    FollowerFetchState,
    IsrProposal,
    LeaderRole,
)
from penstock.replication.partition import Partition, log_settings
from penstock.replication.produce_waits import ProduceWait
from penstock.sim.disk import Mount, PowerLost, SimDisk
from penstock.types import LeaderEpoch, Offset, TopicId, TopicPartition
from tests.unit.log.log_support import FOLDER, LOGS, NOW_MS, batch_of, checkpoint

CONFIG = BrokerConfig.of().topic_defaults._replace(segment_bytes=1_500, index_interval_bytes=200)
LAG_MS_MAX = 4_000
NOBODY = -1


class State(NamedTuple):
    """State of the partition in the metadata store."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    version: int
    replicas: tuple[int, ...]
    live: tuple[tuple[int, int], ...]
    """Admitted brokers and their epochs."""


class ControllerModel:
    """Keeps the rules of the controller, one change at a time."""

    def __init__(self, replicas: tuple[int, ...], min_isr: int) -> None:
        self.min_isr = min_isr
        self.epochs = dict.fromkeys(replicas, 0)
        first = State(replicas[0], 0, replicas, (), 0, replicas, tuple(self.epochs.items()))
        self.history = [first]
        self._next_epoch = 1

    @property
    def state(self) -> State:
        return self.history[-1]

    def _write(self, **changes: object) -> None:
        before = self.state
        after = before._replace(**changes)  # type: ignore[arg-type]
        is_same = after._replace(live=()) == before._replace(live=())
        self.history.append(after if is_same else after._replace(version=before.version + 1))

    def propose(self, broker: int, epoch: int, proposal: IsrProposal) -> bool:
        live, state = dict(self.state.live), self.state
        is_current = proposal.version == state.version and live.get(broker) == epoch
        if not is_current or any(live.get(added) != e for added, e in proposal.added.items()):
            return False
        self._change_isr(proposal.isr)
        return True

    def _change_isr(self, isr: tuple[int, ...]) -> None:
        state = self.state
        elr: tuple[int, ...] = ()
        if len(isr) < self.min_isr:
            elr = tuple(b for b in state.replicas if b not in isr and b in (*state.elr, *state.isr))
        self._write(isr=isr, elr=elr)

    def fence(self, broker: int) -> None:
        """Its session is over."""
        state = self.state
        live = tuple(entry for entry in state.live if entry[0] != broker)
        self._write(live=live)
        if broker in state.isr and len(state.isr) > 1:
            self._change_isr(tuple(member for member in state.isr if member != broker))
        if state.leader == broker:
            self._elect()

    def forget(self, broker: int) -> None:
        """What it had is lost: it must not lead before it has it again."""
        self.fence(broker)
        self._write(elr=tuple(member for member in self.state.elr if member != broker))

    def admit(self, broker: int) -> int:
        """A new incarnation. Its log may be behind; nothing that was safe there is lost."""
        if broker in dict(self.state.live):
            self.fence(broker)
        epoch = self._next_epoch
        self._next_epoch += 1
        self._write(live=(*self.state.live, (broker, epoch)))
        if self.state.leader == NOBODY:
            self._elect()
        return epoch

    def _elect(self) -> None:
        state = self.state
        live = dict(state.live)
        for candidates in (state.isr, state.elr):
            able = [broker for broker in state.replicas if broker in candidates and broker in live]
            if able:
                leader = able[0]
                isr = state.isr if leader in state.isr else (leader,)
                known = (*state.elr, *state.isr) if isr != state.isr else state.elr
                elr = tuple(b for b in state.replicas if b in known and b not in isr)
                self._write(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr, elr=elr)
                return
        if state.leader != NOBODY:
            self._write(leader=NOBODY, leader_epoch=state.leader_epoch + 1)


class Message(NamedTuple):
    to: int
    """NOBODY: the oracle."""
    incarnation: int
    """Incarnation of the receiver of a reply, since another one has other connections. -1: any."""
    deliver: Callable[[], None]


class Node:
    def __init__(self, broker: int, cluster: "Cluster") -> None:
        self.id = broker
        self.cluster = cluster
        self.disk = self._new_disk()
        self.incarnation = 0
        self.epoch = 0
        self.seen = 0
        """How much of the oracle's history."""
        self.is_up = True
        self.durable_end = Offset(0)
        """Durable end of a replica that is down."""
        self.deleting = Offset(0)
        """Where a client asked this leader to begin."""
        self.log = self._open_log()
        self.partition: Partition = self._new_partition(cluster.oracle.state, Offset(0))
        self.flushes: list[Flush] = []
        self.conflict: tuple[IsrProposal, int] | None = None
        self.pending_truncation: Truncation | FullTruncation | None = None

    # Life

    def _new_disk(self) -> SimDisk:
        disk = SimDisk(Random(self.cluster.random.random()))
        disk.mount().make_folder(LOGS)
        disk.root.sync()
        return disk

    def _open_log(self) -> PartitionLog:
        return open_log(self.disk.mount(), FOLDER, log_settings(CONFIG)).log

    def _new_partition(self, state: State, shown: Offset) -> Partition:
        epoch = LeaderEpoch(state.leader_epoch)
        role: LeaderRole | FollowerRole
        if state.leader == self.id:
            start = self.log.log_end_offset
            role = LeaderRole(self.id, self.cluster.in_sync(state), start, shown, self.cluster.now)
        else:
            role = FollowerRole(state.leader, epoch, self.log, shown)
        name = TopicPartition("orders", 0)
        return Partition(name, TopicId(bytes(16)), epoch, self.log, CONFIG, lambda partition: None, role)

    def crash(self, *, loses_power: bool) -> None:
        self.is_up = False
        self.incarnation += 1
        self.durable_end = self.log.flushed_end_offset
        self.disk.power_fails_at = None
        if loses_power:
            self.disk.lose_power()

    def wipe(self) -> None:
        """Another disk is put in, with nothing on it, while others can lead."""
        self.cluster.oracle.forget(self.id)
        self.disk = self._new_disk()
        self.durable_end = Offset(0)

    def start(self) -> None:
        self.log = self._open_log()
        flush = self.log.begin_flush()
        self.log.disk.sync(flush.files, flush.folders)
        self.log.end_flush(flush)
        self.is_up, self.flushes, self.conflict, self.pending_truncation = True, [], None, None
        self.epoch = self.cluster.oracle.admit(self.id)
        self.seen = len(self.cluster.oracle.history) - 1
        self.partition = self._new_partition(self.cluster.oracle.state, self.log.log_start_offset)

    def advance_image(self, upto: int) -> None:
        """The image advances. A role is not given up before a cut is done."""
        self.finish_truncation()
        history = self.cluster.oracle.history
        before, self.seen = history[self.seen], upto
        after = history[upto]
        if after.leader_epoch != before.leader_epoch:
            shown = self.partition.high_watermark
            self.partition.resign()
            self.partition = self._new_partition(after, shown)
        elif self.partition.leading is not None:
            self.partition.committed_state_changed(self.cluster.in_sync(after), self.cluster.now)
        self._settle_conflict()

    @property
    def state(self) -> State:
        return self.cluster.oracle.history[self.seen]

    @property
    def leading(self) -> LeaderRole | None:
        return self.partition.leading if self.is_up else None

    @property
    def has_lost_power(self) -> bool:
        assert isinstance(self.log.disk, Mount)
        return self.log.disk.is_dead

    # Leading

    def produce(self, acknowledged: Callable[[Offset, bytes], None]) -> None:
        leading = self.leading
        if leading is None or self.partition.min_isr_error is not None:
            return
        producer = self.cluster.random.randrange(2)
        known = dict(self.log.producers.items()).get(producer)  # type: ignore[call-overload]
        sequence = known.last.last_sequence + 1 if known else 0
        self.cluster.values += 1
        values = [b"%d" % self.cluster.values] * self.cluster.random.randint(1, 3)
        batch = bytearray(batch_of(values, producer_id=producer, producer_epoch=0, base_sequence=sequence))
        appended = self.partition.append_now(memoryview(batch), NOW_MS)
        stored = bytes(batch)

        def done(wait: ProduceWait) -> None:
            if not wait.errors:
                acknowledged(appended.base_offset, stored)

        self.partition.high_watermark_waits.add(appended.end_offset, ProduceWait(1e9, done), 0)

    def serve(self, follower_id: int, epoch: int, position: FetchPosition) -> PartitionData:
        params = FetchPartition(
            0, position.leader_epoch, position.offset, position.last_fetched_epoch, position.log_start_offset
        )
        admitted = dict(self.state.live).get(follower_id, NO_BROKER_EPOCH)
        fetched = FollowerFetchState(follower_id, epoch, position.offset, admitted, position.log_start_offset)
        start = self.log.log_start_offset
        if epoch != admitted:  # as `broker.followers.require_session` has it
            return PartitionData(0, ErrorCode.STALE_BROKER_EPOCH, -1, -1, start)
        try:
            fetch = self.partition.follower_fetched(params, fetched, self.cluster.now)
        except ApiError as refusal:
            return PartitionData(0, refusal.code, -1, -1, start)
        if fetch.proposal is not None:
            self.propose(fetch.proposal)
        high = self.partition.high_watermark
        if fetch.diverging is not None:
            return PartitionData(0, 0, high, high, start, diverging_epoch=fetch.diverging)
        room = self.cluster.random.choice((1, 200, 2_000))
        found = self.partition.read_for_follower(position.offset, room, at_least_one=True)
        data = found.run().found if isinstance(found, ColdRead) else found
        return PartitionData(0, 0, high, high, start, records=bytes(data.data))

    def propose(self, proposal: IsrProposal) -> None:
        epoch, incarnation, oracle = self.epoch, self.incarnation, self.cluster.oracle

        def deliver() -> None:
            is_done = oracle.propose(self.id, epoch, proposal)
            at = len(oracle.history) - 1
            self.cluster.send(Message(self.id, incarnation, lambda: self._proposed(proposal, is_done, at)))

        self.cluster.send(Message(NOBODY, -1, deliver))

    def _proposed(self, proposal: IsrProposal, is_done: bool, at: int) -> None:
        if self.leading is None or self.leading.proposal is not proposal:
            return
        if is_done:
            self.partition.proposal_committed(proposal, proposal.version + 1)
        else:
            self.conflict = (proposal, at)
            self._settle_conflict()

    def _settle_conflict(self) -> None:
        if self.conflict is not None and self.seen >= self.conflict[1]:
            if self.partition.leading is not None:
                self.partition.proposal_rejected(self.conflict[0])
            self.conflict = None

    def shrink_isr(self) -> None:
        leading = self.leading
        if leading is None:
            return
        late = leading.propose_shrink(self.log.log_end_offset, self.cluster.now, LAG_MS_MAX)
        proposal = late or leading.proposal  # one that is not answered is sent again
        if proposal is not None and self.conflict is None:
            self.propose(proposal)

    # Following

    def fetch(self) -> None:
        position = self.partition.fetch_position() if self.is_up else None
        following = self.partition.following
        if position is None or following is None or following.leader_id == NOBODY:
            return
        leader, epoch, incarnation = self.cluster.nodes[following.leader_id], self.epoch, self.incarnation

        def deliver() -> None:
            answer = leader.serve(self.id, epoch, position)
            self.cluster.send(Message(self.id, incarnation, lambda: self.take(position, answer)))

        self.cluster.send(Message(leader.id, -1, deliver))

    def take(self, position: FetchPosition, answer: PartitionData) -> None:
        step = self.partition.handle_fetch_response(position, answer)
        if isinstance(step, Truncation | FullTruncation):
            self.cluster.counts[type(step).__name__] += 1
            self.pending_truncation = step

    def finish_truncation(self) -> None:
        """A worker has done it."""
        if self.pending_truncation is not None:
            self.pending_truncation.run()
            self.pending_truncation.end()
            self.pending_truncation = None
            self.partition.truncated()

    # Disk

    def begin_flush(self) -> None:
        flush = self.log.begin_flush()
        self.log.disk.sync(flush.files, flush.folders)
        self.flushes.append(flush)

    def end_flush(self) -> None:
        if self.flushes:
            self.partition.flushed(self.flushes.pop(0))

    def checkpoint(self) -> None:
        while self.flushes:
            self.end_flush()
        checkpoint(self.log, committed=self.partition.high_watermark)
        self.partition.advance()

    def store_start(self) -> None:
        log = self.log
        if log.is_start_unstored and not log.is_truncating:
            log.disk.store([log.start_file(log.log_start_offset)])
            log.start_stored(log.log_start_offset)

    def delete_records(self) -> None:
        """A client deletes records, and what lies before is removed."""
        log, high = self.log, self.partition.high_watermark
        if self.leading is not None and log.log_start_offset < high and not log.is_empty:
            self.cluster.counts["delete_records"] += 1
            offset = Offset(self.cluster.random.randint(log.log_start_offset, high))
            log.disk.store([log.start_file(offset)])  # as DeleteRecords does, before it counts
            self.partition.delete_before(offset)
            self.deleting = offset
        safe = min(log.log_start_offset, log.recovery_point, high)
        count = sum(following.base_offset <= safe for following in log.segments[1:])
        if count and log.has_stable_segments:
            for path in log.drop_segments(count):
                log.disk.remove(path)


class Cluster:
    def __init__(self, seed: int, min_isr: int = 2) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.values = 0
        self.oracle = ControllerModel((0, 1, 2), min_isr)
        self.nodes: list[Node] = []
        self.nodes += [Node(broker, self) for broker in range(3)]
        self.network: list[Message] = []
        self.is_healed = False
        self.shown: dict[int, bytes] = {}
        """Every batch that some leader showed, by its offset; and how far that goes."""
        self.shown_end = Offset(0)
        self.acknowledged: dict[int, bytes] = {}
        self.deleted = Offset(0)
        """Up to where a leader confirmed that records are deleted."""
        self.high_watermarks: dict[int, tuple[Partition, int]] = {}
        self.counts: Counter[str] = Counter()

    def in_sync(self, state: State) -> CommittedPartitionState:
        return CommittedPartitionState(
            state.replicas, state.isr, state.version, self.oracle.min_isr, state.elr
        )

    def send(self, message: Message) -> None:
        if self.is_healed:
            self.network.append(message)
            return
        chance = self.random.random()
        self.network += [message] * (0 if chance < 0.1 else 2 if chance > 0.9 else 1)

    def deliver(self) -> None:
        if not self.network:
            return
        index = 0 if self.is_healed else self.random.randrange(min(len(self.network), 4))
        message = self.network.pop(index)
        if message.to != NOBODY:
            node = self.nodes[message.to]
            if not node.is_up or message.incarnation not in (-1, node.incarnation):
                return
        message.deliver()

    # Chance

    def step(self) -> None:
        node = self.random.choice(self.nodes)
        try:
            self._step(node, self.random.random())
        except PowerLost:
            lost = next(node for node in self.nodes if node.is_up and node.has_lost_power)
            lost.crash(loses_power=True)
        self.check()

    def _step(self, node: Node, chance: float) -> None:
        self.now += self.random.random() * 0.2
        if chance < 0.35:
            self.deliver()
        elif not node.is_up:
            if chance > 0.85:
                others = [member for member in self.oracle.state.isr if member != node.id]
                if others and self.random.random() < 0.15:
                    self.counts["wipe"] += 1
                    node.wipe()
                node.start()
            elif chance > 0.75 and node.id in dict(self.oracle.state.live):
                self.oracle.fence(node.id)
        elif chance < 0.50:
            node.fetch()
        elif chance < 0.60:
            node.produce(self.acknowledge)
        elif chance < 0.74:
            node.begin_flush()
            if self.random.random() < 0.6:
                node.end_flush()
        elif chance < 0.77:
            node.end_flush()
        elif chance < 0.79:
            node.finish_truncation()
        elif chance < 0.80:
            node.delete_records()
        elif chance < 0.88:
            node.advance_image(self.random.randint(node.seen, len(self.oracle.history) - 1))
        elif chance < 0.92:
            node.shrink_isr()
        elif chance < 0.93:
            node.store_start()
        elif chance < 0.95:
            node.checkpoint()
        elif chance < 0.96:
            self._inject_fault(node)
        elif chance < 0.975 and node.id in dict(self.oracle.state.live):
            self.oracle.fence(node.id)  # it is paused, or cut off, and lives on
        elif chance < 0.98:
            self.now += self.random.random() * 5
        elif node.epoch != dict(self.oracle.state.live).get(node.id):
            node.crash(loses_power=False)  # it finds its session over, and starts anew
            node.start()

    def _inject_fault(self, node: Node) -> None:
        kind = self.random.randrange(3)
        if kind == 0:
            node.disk.power_fails_at = node.disk.calls + self.random.randint(1, 30)
        else:
            node.crash(loses_power=kind == 1)

    def acknowledge(self, offset: Offset, batch: bytes) -> None:
        assert self.shown.get(offset, batch) == batch
        self.acknowledged[offset] = batch

    def heal(self) -> None:
        """Nothing goes wrong any more: everybody must get to the same place."""
        self.is_healed = True
        for node in self.nodes:
            node.disk.power_fails_at = None
            if not node.is_up or node.epoch != dict(self.oracle.state.live).get(node.id):
                if node.is_up:
                    node.crash(loses_power=False)
                node.start()
        for _ in range(300):
            self.now += 0.5
            for node in self.nodes:
                node.advance_image(len(self.oracle.history) - 1)
                node.finish_truncation()
                node.begin_flush()
                while node.flushes:
                    node.end_flush()
                node.store_start()
                node.shrink_isr()
                node.fetch()
            while self.network:
                self.deliver()
            self.check()
            if self._has_settled():
                return
        raise AssertionError(f"it does not settle: {[node.partition for node in self.nodes]}")

    def _has_settled(self) -> bool:
        ends = {(node.log.flushed_end_offset, node.partition.high_watermark) for node in self.nodes}
        return len(self.oracle.state.isr) == 3 and len(ends) == 1 and len(set(ends.pop())) == 1

    # Checks

    def check(self) -> None:
        for node in self.nodes:
            if node.is_up:
                fails_at, node.disk.power_fails_at = node.disk.power_fails_at, None
                calls = node.disk.calls
                self._check_high(node)
                self._confirm_deletion(node)
                node.disk.calls, node.disk.power_fails_at = calls, fails_at
        self._check_in_sync()

    def _check_high(self, node: Node) -> None:
        partition, high = node.partition, node.partition.high_watermark
        before = self.high_watermarks.get(node.id)
        if before is not None and before[0] is partition and before[1] == high:
            return
        if before is not None and before[0] is partition:
            assert high > before[1], f"node {node.id}: the high watermark went back"
        self.high_watermarks[node.id] = (partition, high)
        for offset, batch in batches_of(node.log, node.log.log_start_offset, high):
            known = self.shown.setdefault(offset, batch)
            assert known == batch, f"node {node.id} shows another batch at {offset}: {partition}"
        self.shown_end = max(self.shown_end, high)

    def _check_in_sync(self) -> None:
        """Whoever may be elected has all that was ever shown, on disk."""
        state = self.oracle.state
        for broker in (*state.isr, *state.elr):
            node = self.nodes[broker]
            end = node.log.flushed_end_offset if node.is_up else node.durable_end
            assert end >= self.shown_end, f"node {broker} may lead and has {end} of {self.shown_end}: {state}"

            start = node.log.stored_start
            assert start >= self.deleted, (
                f"node {broker} may lead and begins at {start}: {self.deleted} {state}"
            )

    def _confirm_deletion(self, node: Node) -> None:
        is_leader = node.leading is not None and node.partition.offline_error is None
        if is_leader and node.deleting > self.deleted and node.partition.is_deleted(node.deleting):
            self.deleted = node.deleting
            self.counts["deleted"] += 1

    def check_all(self) -> None:
        start = max(node.log.log_start_offset for node in self.nodes)
        whole = [dict(batches_of(node.log, start, node.log.log_end_offset)) for node in self.nodes]
        assert whole[0] == whole[1] == whole[2]
        for offset, batch in (*self.shown.items(), *self.acknowledged.items()):
            assert offset < start or whole[0][offset] == batch, f"what was shown at {offset} is lost"
        for node in self.nodes:
            for batch in whole[0].values():
                header = parse_header(batch)
                assert node.log.epochs.epoch_at(max(header.base_offset, start)) == header.leader_epoch
        assert len({frozenset(_sequences(node.log, start)) for node in self.nodes}) == 1


def _sequences(log: PartitionLog, start: Offset) -> list[tuple[int, int, int]]:
    """What is known of producers from batches that all have."""
    last = [(key, producer.last) for key, producer in log.producers.items()]
    return [
        (key, batch.last_sequence, batch.last_offset) for key, batch in last if batch.last_offset >= start
    ]


def batches_of(log: PartitionLog, start: Offset, end: Offset) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while start < end:
        read = log.read(start, end, 2**30, at_least_one=True)
        part = read.run().found if isinstance(read, ColdRead) else read
        data = bytes(part.data)
        found += [(h.base_offset, data[at : at + h.size]) for at, h in split_batches(data)]
        start = part.next_offset
    return found


def run(seed: int, steps: int) -> Cluster:
    cluster = Cluster(seed, min_isr=1 + seed % 2)
    for _ in range(steps):
        cluster.step()
    cluster.heal()
    cluster.check_all()
    return cluster
