"""A cluster of brokers with disks that hold records, and what must never happen to it.

The metadata is real: real decisions, carried out on a store with real comparisons, at once or late. What
brokers hold is a model: a log is a tuple of numbers, a follower's fetch makes its log the leader's, and
the leader commits what everybody in sync (and everybody it is about to count in) has acknowledged to it,
unless fewer are in sync than the minimum. The leader remembers acknowledgements, also of a broker that
has lost its disk since. So a decision that lets the wrong broker lead or be in sync loses a committed
record, and that is seen.
"""

from dataclasses import dataclass, field, replace

from penstock.controller.broker_lifecycle import (
    RegistrationRequest,
    admit,
    awaits_admission,
    become_controller,
    register,
)
from penstock.controller.decision import Decision
from penstock.controller.elections import is_withdrawn, withdraw
from penstock.controller.isr import AlterPartition, IsrMember, change_isr
from penstock.errors import ApiError
from penstock.host.metadata_store import DeleteAll, SessionId
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, Controller, PartitionState
from penstock.metadata.durability import (
    allows_unclean_election,
    eligible_leaders,
    has_acknowledged_records,
    has_lost_copy,
    min_isr,
)
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import topic_id_text
from tests.unit.controller.controller_support import CLUSTER, LISTENERS, StoredCluster

Log = tuple[int, ...]
Name = tuple[str, int]

CHANGES_MAX = 12
UNFLUSHED_TOPIC = "unflushed"
"""Its records are lost by a crash."""


@dataclass
class Process:
    """One broker: what is on its disk, and whether it runs."""

    id: int
    directory_id: str
    is_running: bool = False
    incarnation: str = ""
    session: int = 0
    clean_epoch: int = 0
    logs: dict[Name, Log] = field(default_factory=dict)
    start_ids: tuple[str, ...] = ()
    missing: frozenset[Name] = frozenset()
    """Folders that were there, and are gone: known until it is admitted."""
    damaged: dict[Name, int] = field(default_factory=dict)
    """Logs that it found damaged, and the last leader epoch under which each was fetched."""
    copy: "Process | None" = None
    """Copy of its disk, as the disk was after some stop."""

    def log(self, name: Name) -> Log:
        return self.logs.get(name, ())


@dataclass
class PartitionTruth:
    """What is true of a partition, whoever knows it."""

    committed: Log = ()
    epoch: int = -1
    acknowledged: dict[int, IsrMember] = field(default_factory=dict)
    """To the leader of this epoch: how far (in place of the broker's id), and in which broker epoch."""
    about_to_join: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class PendingDecision:
    """A decision on its way to the store."""

    decision: Decision
    made_at: int
    may_be_unclean: bool = False
    cancels: bool = False
    bumps_leader_epoch: bool = False
    proposal: Name | None = None
    controller: Controller | None = None
    """Whose decision it is, if it is the controller's own."""


def common(one: Log, other: Log) -> Log:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


class ModelCluster(StoredCluster):
    def __init__(self, brokers: int) -> None:
        super().__init__(changes_max=CHANGES_MAX)
        self.processes = {number: Process(number, f"disk {number}") for number in range(1, brokers + 1)}
        self.truths: dict[Name, PartitionTruth] = {}
        self.ended_sessions: list[int] = []
        """Sessions of processes that have ended."""
        self.records = 0
        self.sessions = 0
        self.is_sound = True
        """Whether no check failed. After one that did, the model's accounts are wrong."""
        self._decided_by: dict[str, int] = {}

    # What happens to processes

    def start(self, process: Process, *, is_same_start: bool = False) -> None:
        """Join, if the last session of this id is over."""
        self.sessions += 1
        if not is_same_start:
            process.start_ids = (*process.start_ids, f"start {self.sessions}")
            self._set_damaged_logs_aside(process)
        wanted = RegistrationRequest(
            broker_id=process.id,
            incarnation=f"session {self.sessions}",
            directory_id=process.directory_id,
            clean_epoch=process.clean_epoch,
            start_ids=process.start_ids,
            lost=self._lost(process),
            endpoints=LISTENERS,
        )
        try:
            decision = register(self.image, wanted, SessionId(self.sessions))
        except ApiError:
            return
        process.is_running, process.incarnation, process.session = True, wanted.incarnation, self.sessions
        process.clean_epoch = 0
        self.carry_out(PendingDecision(decision, self.image.revision))

    def stop(self, process: Process, *, clean: bool, lost: int) -> None:
        broker = self.image.brokers[process.id]
        if self.is_admitted_process(process.id):
            process.missing = frozenset()
            if clean:
                process.clean_epoch = broker.admitted_epoch
        if not clean:
            for name, log in process.logs.items():
                if name[0] == UNFLUSHED_TOPIC:
                    process.logs[name] = log[: max(0, len(log) - lost)]
        process.is_running = False
        self.ended_sessions.append(process.session)

    def _lost(self, process: Process) -> dict[str, tuple[int, ...]]:
        lost: dict[str, tuple[int, ...]] = {}
        for topic, index in sorted(process.missing):
            topic_id = topic_id_text(self.image.topics[topic].id)
            lost[topic_id] = (*lost.get(topic_id, ()), index)
        return lost

    def lose_folder(self, process: Process, name: Name) -> None:
        if process.logs.pop(name, ()):
            process.missing |= {name}

    def damage(self, process: Process, name: Name) -> None:
        state = self.state(*name)
        if process.log(name) and self.is_admitted_process(process.id) and process.id in state.replicas:
            process.damaged.setdefault(name, state.leader_epoch)

    def withdraw(self, process: Process, name: Name) -> PendingDecision | None:
        if name not in process.damaged or not self.is_admitted_process(process.id):
            return None
        partition = self.image.topics[name[0]], self.state(*name)
        decision = withdraw(self.image, partition, process.id, fetched_epoch=process.damaged[name])
        return (
            None
            if decision is None
            else PendingDecision(decision, self.image.revision, bumps_leader_epoch=True)
        )

    def replace_damaged(self, process: Process, name: Name) -> None:
        if name not in process.damaged or not process.is_running:
            return
        state, fetched_epoch = self.state(*name), process.damaged[name]
        if is_withdrawn(self.image, state, process.id, fetched_epoch=fetched_epoch):
            del process.damaged[name]
            process.logs.pop(name, None)

    def _set_damaged_logs_aside(self, process: Process) -> None:
        """A start leaves damaged logs where they are. This process has fetched for none of them."""
        process.damaged = {name: -1 for name in process.damaged if process.log(name)}

    def back_up_disk(self, process: Process) -> None:
        process.copy = replace(process, logs=dict(process.logs), damaged={}, copy=None)

    def wipe(self, process: Process) -> None:
        process.logs.clear()
        process.damaged.clear()
        process.start_ids, process.missing = (), frozenset()
        self.sessions += 1
        process.directory_id = f"disk {process.id}, made {self.sessions}"
        process.clean_epoch = 0

    def restore_disk(self, process: Process) -> None:
        """The copy, in place of what is on the disk now."""
        if process.copy is not None:
            found = process.copy
            process.directory_id, process.clean_epoch = found.directory_id, found.clean_epoch
            process.start_ids, process.missing = found.start_ids, found.missing
            process.logs = dict(found.logs)
            process.damaged.clear()

    def expire(self, session: int) -> None:
        before = self.image
        self.end_session(session)
        self.check(before, PendingDecision(Decision((), ()), before.revision))

    def claim(self, broker_id: int) -> None:
        """Another controller: the old one's session is over."""
        self.sessions += 1
        self.end_session(1_000_000)
        decision = become_controller(self.image, broker_id, SessionId(1_000_000))
        self.carry_out(PendingDecision(decision, self.image.revision))

    def is_admitted_process(self, broker_id: int) -> bool:
        """It runs, and its session is the admitted one."""
        broker, process = self.image.brokers.get(broker_id), self.processes[broker_id]
        if broker is None or broker.live is None:
            return False
        return process.is_running and broker.is_admitted and broker.live.incarnation == process.incarnation

    # What happens to records

    def truth(self, name: Name) -> PartitionTruth:
        state = self.state(*name)
        truth = self.truths.setdefault(name, PartitionTruth())
        if truth.epoch != state.leader_epoch:
            truth.epoch = state.leader_epoch
            truth.acknowledged, truth.about_to_join = {}, set()
        return truth

    def is_led(self, name: Name) -> bool:
        """By a process that can use its log."""
        leader = self.state(*name).leader
        return (
            leader != NO_NODE
            and self.is_admitted_process(leader)
            and name not in self.processes[leader].damaged
        )

    def append(self, name: Name) -> None:
        leader = self.state(*name).leader
        if self.is_led(name):
            self.records += 1
            logs = self.processes[leader].logs
            logs[name] = (*logs.get(name, ()), self.records)

    def fetch(self, name: Name, follower: int) -> None:
        state, process = self.state(*name), self.processes[follower]
        broker = self.image.brokers.get(follower)
        is_there = broker is not None and broker.live is not None and process.is_running
        if not is_there or follower == state.leader or follower not in state.replicas:
            return
        if name in process.damaged or not self.is_led(name):
            return
        assert broker is not None
        process.logs[name] = self.processes[state.leader].log(name)
        length = len(process.logs[name])
        self.truth(name).acknowledged[follower] = IsrMember(length, broker.broker_epoch)

    def advance(self, name: Name) -> None:
        """Commit what everybody who counts has acknowledged."""
        state, topic = self.state(*name), self.image.topics[name[0]]
        if not self.is_led(name):
            return
        if len(state.isr) < min_isr(self.image, topic, state):
            return
        truth, log = self.truth(name), self.processes[state.leader].log(name)
        counted = (set(state.isr) | truth.about_to_join) - {state.leader}
        ends = [truth.acknowledged[node].broker_id if node in truth.acknowledged else 0 for node in counted]
        end = min([len(log), *ends])
        if end > len(truth.committed):
            truth.committed = log[:end]

    def propose(self, name: Name, members: set[int]) -> PendingDecision | None:
        """The leader proposes who is in sync: who was, and who has caught up, of these."""
        state = self.state(*name)
        if not self.is_led(name):
            return None
        truth, log = self.truth(name), self.processes[state.leader].log(name)
        isr = []
        for node in state.replicas:
            told = truth.acknowledged.get(node, IsrMember(-1, 0))
            has_all = told.broker_id == len(log)
            if node == state.leader or (node in members and (node in state.isr or has_all)):
                isr.append(IsrMember(node, told.broker_epoch))
        epoch = self.image.brokers[state.leader].broker_epoch
        proposal = AlterPartition(
            self.image.topics[name[0]].id,
            name[1],
            IsrMember(state.leader, epoch),
            state.leader_epoch,
            state.partition_epoch,
            tuple(isr),
        )
        try:
            decision = change_isr(self.image, proposal)
        except ApiError:
            return None
        if not decision.changes:
            return None
        truth.about_to_join |= {member.broker_id for member in isr}
        return PendingDecision(decision, self.image.revision, proposal=name)

    # Carrying out

    def carry_out(self, pending: PendingDecision) -> bool:
        before = self.image
        if not self.attempt(pending.decision):
            return False
        if self.image.revision == before.revision:
            return True
        for change in pending.decision.changes:
            key = change.prefix if isinstance(change, DeleteAll) else change.key
            assert self._decided_by.get(key) != pending.made_at or not pending.decision.compares, (
                "two decisions from one image, and both were committed"
            )
            self._decided_by[key] = pending.made_at
        assert pending.controller in (None, before.controller), "its term is over"
        if pending.proposal is not None:
            was = before.partition(*pending.proposal)
            assert was is not None
            assert was.leader in before.admitted, "a leader whose session is over changes nothing"
        self.check(before, pending)
        return True

    def admit_if_ready(self, broker_id: int) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is not None and awaits_admission(broker):
            self.carry_out(PendingDecision(admit(self.image, broker), self.image.revision))

    # What must hold

    def check(self, before: ClusterImage, pending: PendingDecision) -> None:
        self.is_sound = False
        assert self.image == image_of(self.store.read(), CLUSTER)
        for topic in self.image.topics.values():
            for state in topic.partitions:
                name = topic.name, state.index
                was = before.partition(*name)
                self._check_shape(name, state)
                if was is not None and was != state:
                    self._check_step(name, before, was, pending)
        for topic in self.image.topics.values():
            for state in topic.partitions:
                self._check_records((topic.name, state.index), before)
        self.is_sound = True

    def _check_shape(self, name: Name, state: PartitionState) -> None:
        self.truths.setdefault(name, PartitionTruth())
        assert state.leader == NO_NODE or state.leader in state.isr
        assert set(state.isr) <= set(state.replicas)
        assert len(set(state.isr)) == len(state.isr)
        assert set(state.elr) <= set(state.replicas)
        assert not set(state.elr) & set(state.isr)
        assert set(state.adding) | set(state.removing) <= set(state.replicas)

    def _check_step(
        self, name: Name, before: ClusterImage, was: PartitionState, pending: PendingDecision
    ) -> None:
        state, truth, topic = self.state(*name), self.truths[name], before.topics[name[0]]
        assert state.partition_epoch == was.partition_epoch + 1
        has_new_leader = state.leader != was.leader
        has_new_epoch = (
            pending.bumps_leader_epoch or has_new_leader or not set(was.replicas) <= set(state.replicas)
        )
        assert state.leader_epoch == was.leader_epoch + has_new_epoch
        had_records = {*was.isr, *eligible_leaders(before, topic, was)}
        if has_new_leader and state.leader != NO_NODE:
            assert state.leader in before.admitted, "who is not admitted leads nothing"
            if state.leader not in had_records:
                is_allowed = pending.may_be_unclean or allows_unclean_election(before, topic)
                assert is_allowed, "it may lack what was committed"
                assert not had_records & before.admitted, "who has what was committed could have led"
                assert pending.may_be_unclean or not self._is_returning(name, before, had_records), (
                    "who has what was committed is about to be admitted"
                )
                truth.committed = common(truth.committed, self.processes[state.leader].log(name))
        assert set(state.isr) - set(was.isr) <= before.admitted, "who is not admitted is in no ISR"
        if had_records and not state.isr and not state.elr:
            assert all(has_lost_copy(before.brokers[node], topic, name[1]) for node in had_records), (
                "one was the last"
            )
        if was.is_reassigning and not state.is_reassigning and not pending.cancels:
            assert state.replicas == was.target

    def _is_returning(self, name: Name, image: ClusterImage, nodes: set[int]) -> bool:
        """Whether one of these waits for its admission, and has all that it acknowledged."""
        topic, brokers = image.topics[name[0]], [image.brokers[node] for node in nodes]
        return any(
            has_acknowledged_records(image, topic, name[1], broker)
            for broker in brokers
            if broker.live is not None
        )

    def _check_records(self, name: Name, before: ClusterImage) -> None:
        """Everybody admitted who is in sync, or eligible, has all that was committed."""
        state, truth, topic = self.state(*name), self.truths[name], self.image.topics[name[0]]
        members = {*state.isr, *eligible_leaders(self.image, topic, state)}
        for node in members & self.image.admitted:
            log = self.processes[node].log(name)
            if log[: len(truth.committed)] == truth.committed or not self.is_admitted_process(node):
                continue
            is_last = members == {node}
            lost_it = name[0] == UNFLUSHED_TOPIC and node not in before.admitted
            assert is_last, f"broker {node} lacks what was committed"
            assert lost_it, f"broker {node} lacks what was committed, and was admitted"
            # The last who is known to have had all, and stopped uncleanly: what it has is what there is.
            truth.committed = common(truth.committed, log)
