"""A cluster in which anything may happen at any time loses no committed record, and settles.

Brokers stop, crash, lose their disks, find copies damaged, are fenced and come back; leaders propose in-sync
replicas; people reassign, elect, drain and change settings; controllers come and go. Decisions reach the
store at once or much later. What must hold is checked after every transaction (`cluster_model.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.config.broker import BrokerConfig
from penstock.controller.broker_lifecycle import drain, fence
from penstock.controller.configs import alter_broker_config, alter_topic_config
from penstock.controller.decision import Decision, batched, merged
from penstock.controller.elections import ElectionType, elect, repair_leadership
from penstock.controller.reachability import FollowerContact, PeerReport, hand_over, report_unreachable
from penstock.controller.reassignment import Reassignment, cancel, reassign
from penstock.controller.topics import grow_topic
from penstock.controller.upkeep import UpkeepStep, deferrable_work, urgent_work
from penstock.errors import ApiError
from penstock.host.metadata_store import SessionId
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from tests.unit.controller.cluster_model import (
    CHANGES_MAX,
    UNFLUSHED_TOPIC,
    ModelCluster,
    PendingDecision,
    Process,
)

FLYING_MAX = 6
STEPS_TO_SETTLE = 200
PARTITIONS = [("flushed", 0), ("flushed", 1), ("pair", 0), (UNFLUSHED_TOPIC, 0), ("__consumer_offsets", 0)]

names = st.sampled_from(PARTITIONS)
nodes = st.integers(1, 5)
minimums = st.sampled_from([None, "1", "2", "3"])


class AnythingHappens(RuleBasedStateMachine):
    @initialize(brokers=st.integers(3, 5))
    def begin(self, brokers: int) -> None:
        self.pending: list[PendingDecision] = []
        self.cluster = ModelCluster(brokers)
        for process in self.cluster.processes.values():
            self.cluster.start(process)
        self.cluster.claim(1)
        for process in self.cluster.processes.values():
            self.cluster.admit_if_ready(process.id)
        self.cluster.create("flushed", 2, 3)
        self.cluster.create("pair", 1, 2)
        self.cluster.create(UNFLUSHED_TOPIC, 1, 3, {"flush.policy": "os"})
        self.cluster.create("__consumer_offsets", 1, 1, internal=True)

    # Records

    @rule(name=names, followers=st.sets(nodes), times=st.integers(1, 2))
    def write(self, name: tuple[str, int], followers: set[int], times: int) -> None:
        for _ in range(times):
            self.cluster.append(name)
        for follower in followers & self.cluster.processes.keys():
            self.cluster.fetch(name, follower)
        self.cluster.advance(name)

    @rule(name=names, members=st.sets(nodes), late=st.booleans())
    def propose(self, name: tuple[str, int], members: set[int], late: bool) -> None:
        pending = self.cluster.propose(name, members)
        if pending is not None:
            self.send(pending, late)

    @rule(name=names, late=st.booleans())
    def catch_up(self, name: tuple[str, int], late: bool) -> None:
        everybody = set(self.cluster.processes)
        self.write(name, everybody, 1)
        draining = {broker.id for broker in self.cluster.image.brokers.values() if broker.is_draining}
        self.propose(name, everybody - draining | set(self.cluster.state(*name).isr), late)

    # Brokers

    @rule(node=nodes, clean=st.booleans(), lost=st.integers(0, 2), lingers=st.booleans())
    def stop(self, node: int, clean: bool, lost: int, lingers: bool) -> None:
        process = self.process(node)
        if process.is_running:
            self.cluster.stop(process, clean=clean, lost=lost)
            if clean or not lingers:
                self.cluster.expire(self.cluster.ended_sessions.pop())

    @precondition(lambda self: self.cluster.ended_sessions)
    @rule()
    def expire(self) -> None:
        self.cluster.expire(self.cluster.ended_sessions.pop(0))

    @rule(node=nodes, wiped=st.sampled_from([False, False, True]), restore_disk=st.booleans())
    def start(self, node: int, wiped: bool, restore_disk: bool = False) -> None:
        process = self.process(node)
        if not process.is_running:
            if wiped:
                self.cluster.wipe(process)
            elif restore_disk:
                self.cluster.restore_disk(process)
            self.cluster.start(process)

    @rule(node=nodes)
    def copy(self, node: int) -> None:
        process = self.process(node)
        if not process.is_running:
            self.cluster.back_up_disk(process)

    @rule(node=nodes, name=names)
    def lose_folder(self, node: int, name: tuple[str, int]) -> None:
        process = self.process(node)
        if not process.is_running:
            self.cluster.lose_folder(process, name)

    @rule(node=nodes, name=names, late=st.booleans())
    def find_damage(self, node: int, name: tuple[str, int], late: bool) -> None:
        self.cluster.damage(self.process(node), name)
        self.mend(node, name, late)

    @rule(node=nodes, name=names, late=st.booleans())
    def mend(self, node: int, name: tuple[str, int], late: bool) -> None:
        """Replace a damaged copy, as far as that is possible now."""
        process = self.process(node)
        pending = self.cluster.withdraw(process, name)
        if pending is not None:
            self.send(pending, late)
        self.cluster.replace_damaged(process, name)

    @rule(node=nodes, late=st.booleans())
    def fence(self, node: int, late: bool) -> None:
        node = self.process(node).id
        epoch = self.cluster.image.brokers[node].broker_epoch
        self.ask(lambda image: fence(image, node, epoch), late=late)

    @rule(node=nodes)
    def join_again(self, node: int) -> None:
        """A process that was fenced has lost nothing."""
        process = self.process(node)
        broker = self.cluster.image.brokers[process.id]
        if process.is_running and broker.live is None and broker.incarnation == process.incarnation:
            process.clean_epoch = broker.admitted_epoch
            process.missing = frozenset()
            self.cluster.start(process, is_same_start=True)

    @rule(node=nodes, is_draining=st.booleans(), late=st.booleans())
    def drain(self, node: int, is_draining: bool, late: bool) -> None:
        node = self.process(node).id
        self.ask(lambda image: drain(image, node, is_draining=is_draining), late=late)

    @rule(node=nodes, others=st.sets(nodes), late=st.booleans())
    def report(self, node: int, others: set[int], late: bool) -> None:
        """A broker cannot reach these. It may be wrong."""
        process, image = self.process(node), self.cluster.image
        if self.cluster.is_admitted_process(process.id):
            unreachable = sorted(
                (other, image.brokers[other].broker_epoch) for other in others & image.admitted
            )
            report = PeerReport(unreachable[:2], unreachable[2:])
            session = SessionId(process.session)
            self.ask(lambda image: report_unreachable(image, process.id, session, report), late=late)

    @rule(name=names, silent=st.sets(nodes), hears_of_all=st.booleans(), late=st.booleans())
    def hand_over(self, name: tuple[str, int], silent: set[int], hears_of_all: bool, late: bool) -> None:
        """The leader does not hear from these, and most of them say that they cannot reach it."""
        image, state = self.cluster.image, self.cluster.state(*name)
        if not self.cluster.is_led(name):
            return
        cut_off = frozenset(silent if hears_of_all else sorted(silent)[1:])
        contact = FollowerContact(cut_off, frozenset(silent))
        decision = hand_over(image, (image.topics[name[0]], state), state.leader, contact)
        if decision is not None:
            self.send(PendingDecision(decision, image.revision), late)

    # The controller

    @rule(late=st.booleans())
    def upkeep(self, late: bool) -> None:
        work = urgent_work(self.cluster.image)
        if work is None:
            self.check_calm()
        self.do(work, late)

    @rule()
    def deferrable_work(self) -> None:
        image = self.cluster.image
        if urgent_work(image) is None:
            self.do(
                deferrable_work(
                    image,
                    BrokerConfig.of().replication._replace(imbalance_percentage_max=0),
                    reassignments_at_once=2,
                ),
                False,
            )

    @rule(node=nodes)
    def claim(self, node: int) -> None:
        node = self.process(node).id
        if self.cluster.image.brokers[node].is_alive:
            self.cluster.claim(node)

    @precondition(lambda self: self.pending)
    @rule(number=st.integers(0, FLYING_MAX))
    def arrive(self, number: int) -> None:
        self.cluster.carry_out(self.pending.pop(number % len(self.pending)))

    # People

    @rule(name=names, replicas=st.lists(nodes, min_size=1, max_size=4, unique=True), late=st.booleans())
    def reassign(self, name: tuple[str, int], replicas: list[int], late: bool) -> None:
        self.ask(lambda image: reassign(image, Reassignment(*name, tuple(replicas))), late=late, cancels=True)

    @rule(name=names, late=st.booleans())
    def cancel(self, name: tuple[str, int], late: bool) -> None:
        self.ask(lambda image: cancel(image, *name), late=late, cancels=True)

    @rule(name=names, election=st.sampled_from(ElectionType), late=st.booleans())
    def elect(self, name: tuple[str, int], election: ElectionType, late: bool) -> None:
        is_unclean = election is ElectionType.UNCLEAN
        self.ask(lambda image: elect(image, *name, election), late=late, may_be_unclean=is_unclean)

    @rule(
        name=names, minimum=minimums, unclean=st.sampled_from(["false", "false", "true"]), late=st.booleans()
    )
    def configure(self, name: tuple[str, int], minimum: str | None, unclean: str, late: bool) -> None:
        before = dict(self.cluster.image.topics[name[0]].overrides)
        before.pop("min.insync.replicas", None)
        overrides = before | {"unclean.leader.election.enable": unclean}
        if minimum is not None:
            overrides["min.insync.replicas"] = minimum
        self.ask(lambda image: alter_topic_config(image, name[0], overrides), late=late)

    @rule(minimum=minimums, late=st.booleans(), unclean=st.sampled_from([None, None, "true"]))
    def configure_all(self, minimum: str | None, late: bool, unclean: str | None = None) -> None:
        overrides = {} if minimum is None else {"min.insync.replicas": minimum}
        if unclean is not None:
            overrides["unclean.leader.election.enable"] = unclean
        self.ask(lambda image: alter_broker_config(image, None, overrides), late=late)

    @rule()
    def grow(self) -> None:
        if len(self.cluster.image.topics["flushed"].partitions) < 4:
            count = len(self.cluster.image.topics["flushed"].partitions) + 1
            self.ask(lambda image: grow_topic(image, "flushed", count), late=False)

    # What would seldom come about by itself

    @rule(name=names, of_all=st.booleans())
    def write_under_a_lower_minimum(self, name: tuple[str, int], of_all: bool) -> None:
        """The leader commits alone, and then there is the old minimum again."""
        self.propose(name, set(), False)
        for minimum in ("1", None):
            if of_all:
                self.configure_all(minimum, False)
            else:
                self.configure(name, minimum, "false", False)
            self.write(name, set(), 1)

    @rule(name=names, clean=st.booleans())
    def lose_the_leader(self, name: tuple[str, int], clean: bool) -> None:
        leader = self.cluster.state(*name).leader
        if leader != NO_NODE:
            self.stop(leader, clean, 1, False)
            self.upkeep(False)

    @rule(name=names, node=nodes, is_on_its_way=st.booleans())
    def lose_a_disk_before_joining(self, name: tuple[str, int], node: int, is_on_its_way: bool) -> None:
        """A follower catches up, and has another disk when the leader counts it in."""
        process, everybody = self.process(node), set(self.cluster.processes)
        if process.id == self.cluster.state(*name).leader:
            return
        self.propose(name, everybody - {process.id}, False)
        self.write(name, everybody, 1)
        pending = self.cluster.propose(name, everybody) if is_on_its_way else None
        self.stop(process.id, False, 1, False)
        self.start(process.id, True)
        for _ in range(4):
            self.upkeep(False)
        if pending is None:
            self.propose(name, everybody, False)
        else:
            self.cluster.carry_out(pending)
        self.lose_the_leader(name, False)

    @rule(name=names, node=nodes, is_in_sync=st.booleans())
    def find_damage_before_joining(self, name: tuple[str, int], node: int, is_in_sync: bool) -> None:
        """A follower catches up, and finds its copy damaged before the leader counts it in."""
        process, everybody = self.process(node), set(self.cluster.processes)
        if process.id == self.cluster.state(*name).leader:
            return
        if not is_in_sync:
            self.propose(name, everybody - {process.id}, False)
        self.write(name, everybody, 1)
        self.find_damage(process.id, name, False)
        self.propose(name, everybody, False)
        self.lose_the_leader(name, False)

    @rule(name=names, node=nodes, is_alone=st.booleans(), wiped=st.booleans())
    def lose_records_while_counted(
        self, name: tuple[str, int], node: int, is_alone: bool, wiped: bool
    ) -> None:
        """A follower in sync, or eligible, comes back with less than it had, and the leader goes."""
        process = self.process(node)
        if process.id == self.cluster.state(*name).leader:
            return
        self.catch_up(name, False)
        if is_alone:
            self.propose(name, set(), False)
        self.write(name, set(self.cluster.processes), 1)
        self.stop(process.id, False, 2, False)
        self.start(process.id, wiped)
        for _ in range(3):
            self.upkeep(False)
        self.lose_the_leader(name, False)

    @rule(name=names)
    def put_back_a_copy(self, name: tuple[str, int]) -> None:
        """The last one standing comes back first, with a copy of its disk from before the last records."""
        leader = self.cluster.state(*name).leader
        if leader == NO_NODE:
            return
        self.stop(leader, True, 0, False)
        self.start(leader, False)
        for _ in range(3):
            self.upkeep(False)
        self.catch_up(name, False)
        self.catch_up(name, False)
        others = [process.id for process in self.cluster.processes.values() if process.id != leader]
        for node in others:
            self.stop(node, True, 0, False)
            self.claim(leader)
            for _ in range(3):
                self.upkeep(False)
        self.stop(leader, False, 0, False)
        self.start(leader, False, restore_disk=True)
        self.claim(leader)
        for _ in range(3):
            self.upkeep(False)

    @rule(name=names, clean=st.booleans())
    def last_one_standing(self, name: tuple[str, int], clean: bool) -> None:
        """The others went one by one, and the last one comes back first, with less than it had."""
        leader = self.cluster.state(*name).leader
        if leader == NO_NODE:
            return
        self.catch_up(name, False)
        self.propose(name, set(), False)
        for process in self.cluster.processes.values():
            if process.id != leader:
                self.stop(process.id, clean, 1, False)
        self.stop(leader, False, 2, False)
        self.start(leader, False)
        self.claim(leader)
        for _ in range(3):
            self.upkeep(False)

    @rule(node=nodes)
    def sleep_as_controller(self, node: int) -> None:
        """What it decided arrives when another has taken over."""
        image, work = self.cluster.image, urgent_work(self.cluster.image)
        self.claim(node)
        for decision in work.decisions if work else ():
            self.cluster.carry_out(PendingDecision(decision, image.revision, controller=image.controller))

    @rule(name=names, is_forbidden=st.booleans())
    def elect_uncleanly_too_late(self, name: tuple[str, int], is_forbidden: bool) -> None:
        """The election is decided. Before it arrives, it is forbidden, or who has the records is back."""
        leader = self.cluster.state(*name).leader
        if leader == NO_NODE:
            return
        self.configure(name, "1", "true", False)
        self.propose(name, set(), False)
        self.stop(leader, False, 0, False)
        late = repair_leadership(
            self.cluster.image, (self.cluster.image.topics[name[0]], self.cluster.state(*name))
        )
        pending = None if late is None else PendingDecision(late, self.cluster.image.revision)
        if is_forbidden:
            self.configure(name, "1", "false", False)
        else:
            self.start(leader, False)
        if pending is not None:
            self.cluster.carry_out(pending)

    @rule(name=names)
    def fence_a_leader_that_proposes(self, name: tuple[str, int]) -> None:
        pending = self.cluster.propose(name, set())
        if pending is not None:
            self.fence(self.cluster.state(*name).leader, False)
            self.cluster.carry_out(pending)

    # At the end all brokers are there, and the cluster settles.

    def teardown(self) -> None:
        # After a failure there would be others that only follow from it, and hypothesis would report those.
        if not hasattr(self, "cluster") or not self.cluster.is_sound:
            return
        while self.pending:
            self.arrive(0)
        while self.cluster.ended_sessions:
            self.expire()
        for process in self.cluster.processes.values():
            self.join_again(process.id)
            self.start(process.id, False)
            process.damaged.clear()  # a person has mended what nobody else has
        self.cluster.claim(1)
        for _ in range(STEPS_TO_SETTLE):
            work = urgent_work(self.cluster.image)
            if work is None and not self.spread():
                break
            self.do(work, False)
        else:
            raise AssertionError(f"there is always more to do: {work}")
        self.check_settled()

    def spread(self) -> bool:
        """Everybody fetches, and is in sync. Whether that changed anything."""
        before = self.cluster.image
        for topic in before.topics.values():
            for state in topic.partitions:
                self.catch_up((topic.name, state.index), False)
        return self.cluster.image is not before

    def check_calm(self) -> None:
        """There is nothing urgent to do: nobody waits for a broker that is gone."""
        image = self.cluster.image
        for topic in image.topics.values():
            for state in topic.partitions:
                there = set(state.isr) & image.admitted
                assert not there or there == set(state.isr), "the leader waits for who is gone"
                assert (state.leader in there) == bool(there), "somebody could lead"
                can_lead = {node for node in there if not image.brokers[node].is_draining}
                assert not can_lead or state.leader in can_lead, "a drained broker leads"

    def check_settled(self) -> None:
        self.check_calm()
        image = self.cluster.image
        assert image.admitted == image.brokers.keys()
        for topic in image.topics.values():
            for state in topic.partitions:
                # Without a leader is only who lost all that there was.
                assert state.leader in image.admitted or not (state.isr or state.elr)
                may_join = not any(image.brokers[node].is_draining for node in state.target)
                assert not state.is_reassigning or not may_join or state.leader == NO_NODE

    # How

    def process(self, node: int) -> Process:
        return self.cluster.processes[(node - 1) % len(self.cluster.processes) + 1]

    def ask(
        self,
        decide: Callable[[ClusterImage], Decision],
        *,
        late: bool,
        may_be_unclean: bool = False,
        cancels: bool = False,
    ) -> None:
        image = self.cluster.image
        try:
            decision = decide(image)
        except ApiError:
            return
        if decision.changes:
            self.send(PendingDecision(decision, image.revision, may_be_unclean, cancels), late)

    def send(self, pending: PendingDecision, late: bool) -> None:
        if late and len(self.pending) < FLYING_MAX and not pending.decision.prepared:
            self.pending.append(pending)
        else:
            self.cluster.carry_out(pending)

    def do(self, work: UpkeepStep | None, late: bool) -> None:
        """As the controller does: many in one transaction, and one by one if that meets a conflict."""
        image = self.cluster.image
        for group in batched(work.decisions if work else (), CHANGES_MAX):
            alone = [PendingDecision(one, image.revision, controller=image.controller) for one in group]
            if late:
                self.send_all(alone, True)
            elif not self.cluster.carry_out(replace(alone[0], decision=merged(group))):
                self.send_all(alone, False)

    def send_all(self, pending: Iterable[PendingDecision], late: bool) -> None:
        for one in pending:
            self.send(one, late)


# Hypothesis spends up to 300 s on making a failing case shorter, and prints it only then.
TestAnythingHappens = pytest.mark.timeout(420)(AnythingHappens.TestCase)
TestAnythingHappens.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
