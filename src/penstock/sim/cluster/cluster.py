"""The run of one cluster seed, from the start of the first broker to the last comparison.

    start      all brokers, then the topics
    chaos      clients work while the faults of the plan begin and end
    heal       all faults end; within a bound every broker is admitted, every replica in sync, and every batch
               acknowledged
    the end    every committed record is on every replica, and a new reader reads it

Rule: Every violation is raised as an InvariantViolation, at the event that caused it where possible.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any, Final

from penstock.broker.broker import RunningBroker
from penstock.host.metadata_store import Event
from penstock.host.tasks import Tasks
from penstock.log.partition_log import PartitionLog
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, PartitionState, Topic
from penstock.sim.cluster.checks.compacted_ledger import CompactedLedger
from penstock.sim.cluster.checks.ledger import Ledger
from penstock.sim.cluster.checks.store_checks import StoreChecks
from penstock.sim.cluster.checks.watching import PartitionChecks
from penstock.sim.cluster.clients.administrator import Administrator
from penstock.sim.cluster.clients.classic_member import SimClassicMember
from penstock.sim.cluster.clients.client import KafkaClient
from penstock.sim.cluster.clients.group_member import GroupProgress, SimGroupMember
from penstock.sim.cluster.clients.partition_reader import PartitionReader
from penstock.sim.cluster.clients.producers import CarelessProducer, SimProducer
from penstock.sim.cluster.faults.bit_rot import BitRot
from penstock.sim.cluster.faults.faults import Faults
from penstock.sim.cluster.node import SimNode
from penstock.sim.cluster.plan import ClusterPlan, Fault
from penstock.sim.interruptible_jobs import JobThreads
from penstock.sim.network import NetworkConditions, NetworkLoop, SimNetwork
from penstock.sim.processes import NO_PROCESS, NO_PROCESS_CONTEXT
from penstock.sim.store import SimStore, StoreFaults
from penstock.sim.violation import InvariantViolation
from penstock.types import TopicId, TopicPartition

START_SECONDS_MAX: Final = 40.0
LIVENESS_SECONDS_MAX: Final = 60.0
"""The bound after healing: it covers a session timeout, a start, an admission, and the fetching of what was
missed.
"""
GROUP_SECONDS_MAX: Final = 40.0
ROT_SECONDS_MAX: Final = 30.0
CROWD_TOPIC: Final = "crowd"
PRODUCERS_OF_CROWD: Final = 3
AGREE_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.1


class SimCluster:
    def __init__(self, plan: ClusterPlan, on_trace: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.traces = on_trace is not None
        self._on_trace = on_trace
        self.world = NO_PROCESS_CONTEXT
        self.loop = NetworkLoop(self.random("loop"))
        self.network = self.loop.network = SimNetwork(self.loop, self.random("network"), NetworkConditions())
        self.store = SimStore(self.loop, self.random("store"), StoreFaults(plan.store_delay))
        self.hands = JobThreads(self.random("hands"), plan.extras.job_steps)
        self.nodes = {number: SimNode(self, number) for number in plan.nodes}
        self.bit_rot = BitRot(self)
        self.watching = PartitionChecks(
            self.nodes, lambda: self.truth.image, lambda: self.loop.now, plan, self.bit_rot.is_damaged
        )
        self.truth = StoreChecks(self._admitted, self.watching.replica_joined, self._lost_at)
        self.topics = dict.fromkeys(plan.topic_names, plan.partitions)
        self.places = GroupProgress()
        self.is_producing = True
        self.hash = 0
        """A hash of all replies to clients and their times."""
        self.acknowledged = 0
        self.fault_counts: Counter[str] = Counter()
        """By fault, and by other things that a run causes: how often it had an effect."""
        self._violation: InvariantViolation | None = None
        self._ended: asyncio.Future[None]
        self.producers: list[SimProducer] = []
        self.clients: list[KafkaClient] = []
        self.administrator = Administrator(self)

    def random(self, what: str) -> Random:
        return Random(f"{what} {self.plan.seed}")

    # Trace and violations

    def trace(self, line: str) -> None:
        if self._on_trace is not None:
            self._on_trace(f"{self.loop.now:10.4f} {line}")

    def trace_and_hash(self, line: str) -> None:
        self.hash = zlib.crc32(f"{self.loop.now:.6f} {line}".encode(), self.hash)
        self.trace(line)

    def violate(self, message: str, cause: BaseException | None = None) -> None:
        """Record a violation and end the run."""
        if self._violation is None:
            self._violation = InvariantViolation(f"at {self.loop.now:.3f} s: {message}")
            self._violation.__cause__ = cause
        raise self._violation

    @property
    def has_violation(self) -> bool:
        """Whether a violation was found, so that the run is ending."""
        return self._violation is not None

    def ledger(self, topic_id: TopicId, topic: str, index: int) -> Ledger:
        return self.watching.ledger_of((topic_id, index), str(TopicPartition(topic, index)))

    def topic_name(self, topic_id: TopicId) -> str | None:
        topic = self.truth.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task whose failure ends the run."""
        Tasks(self._failed).start(coroutine, "part of the world")

    def _failed(self, _: str, failure: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(failure)

    def _admitted(self, node: int) -> None:
        self.nodes[node].data_lost_at_revision = None

    def _lost_at(self, node: int) -> int | None:
        return self.nodes[node].data_lost_at_revision

    # Running

    def run(self) -> "SimCluster":
        """Run the plan. Raises the violation that it finds."""
        loop = self.loop
        loop.after_each = self._after_each
        self.store.on_commit = self._committed
        self._ended = loop.create_future()
        loop.set_exception_handler(self._callback_failed)
        try:
            loop.run_until_complete(self._run())
        finally:
            self.fault_counts += self.store.counts
            loop.after_each = None
            loop.run_until_complete(self._end())
            self.hands.close()
            loop.close()
        return self

    def _committed(self, event: Event) -> None:
        try:
            self.truth.committed(event)
        except InvariantViolation as problem:
            self.violate(str(problem), problem)

    def cleaned(self, serving: RunningBroker) -> None:
        """Compare the compacted logs of a single broker."""
        if self.plan.log is None:
            return  # other replicas decide what a replica must have
        try:
            self.watching.cleaned(serving)
        except InvariantViolation as problem:
            self.violate(str(problem), problem)

    def _callback_failed(self, _: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        """Handle an exception in a callback of the simulation itself.

        Callbacks of a broker report to the broker.
        """
        if self._violation is None and self.loop.after_each is not None:
            self._violation = InvariantViolation(f"at {self.loop.now:.3f} s: {details}")
            self._violation.__cause__ = details.get("exception")

    def _after_each(self) -> None:
        # Raised here and not in `violate` alone: a broker may have caught the exception there.
        if self._violation is not None:
            broken, self.loop.after_each = self._violation, None
            raise broken
        self.watching.check_changed()

    async def _run(self) -> None:
        self.start(self.run_phases())
        await self._ended

    async def _end(self) -> None:
        """Cancel everything that still runs, after the last check."""
        for node in self.nodes.values():
            if not node.process.has_ended:
                await node.kill()
        for client in self.clients:
            client.process.is_dead = True
            await self.loop.cancel_tasks(client.process)
        here = asyncio.current_task()
        while left := [task for task in NO_PROCESS.tasks if task is not here]:
            for task in left:
                task.cancel()
            await asyncio.sleep(0)

    async def run_phases(self) -> None:
        for node in self.nodes.values():
            node.start()
        everybody = set(self.plan.nodes)
        await self._wait_until(lambda: self.truth.image.admitted == everybody, START_SECONDS_MAX, "start")
        administrator = self.administrator
        crowd = {CROWD_TOPIC: self.plan.extras.crowd} if self.plan.extras.crowd else {}
        for name, partitions in {**self.topics, **crowd}.items():
            await administrator.retry(partial(administrator.create_topic, name, partitions))
        self._start_clients()
        administrator.start()
        faults = Faults(self)
        for fault in self.plan.faults:
            self.start(self._inject_at(faults, fault))
        await asyncio.sleep(max(0.0, self.plan.seconds - self.loop.now))
        self.trace("heals")
        await faults.heal()
        await self._check_liveness(faults)
        await self._validate()
        if not self._ended.done():
            self._ended.set_result(None)

    async def _inject_at(self, faults: Faults, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at - self.loop.now))
        await faults.inject(fault)

    def _start_clients(self) -> None:
        plan = self.plan
        places = [(name, index) for name, count in self.topics.items() for index in range(count)]
        made: list[SimProducer | CarelessProducer | PartitionReader | SimGroupMember] = []
        for number in range(plan.idempotent):
            producer = SimProducer(self, f"producer-{number}", *places[number % len(places)])
            self.producers.append(producer)
            made.append(producer)
        if plan.extras.crowd:
            wanderer = CarelessProducer(self, "wanderer", CROWD_TOPIC, range(plan.extras.crowd))
            made += [wanderer, *self._producers_of_crowd()]
        for number in range(plan.careless):
            topic, index = places[number % len(places)]
            # A single broker creates logs during the run, too.
            indexes = (index,) if plan.log is None else range(plan.partitions)
            made.append(CarelessProducer(self, f"careless-{number}", topic, indexes))
        made += [
            PartitionReader(KafkaClient(self, f"reader-{number}"), *places[number % len(places)])
            for number in range(plan.readers)
        ]
        made += [SimGroupMember(self, f"member-{number}") for number in range(plan.new_members)]
        made += [SimClassicMember(self, f"classic-{number}") for number in range(plan.extras.classic)]
        for client in made:
            client.start()

    def _producers_of_crowd(self) -> list[SimProducer]:
        indexes = self.random("crowd").sample(range(self.plan.extras.crowd), PRODUCERS_OF_CROWD)
        made = [SimProducer(self, f"crowd-{index}", CROWD_TOPIC, index) for index in indexes]
        self.producers += made
        return made

    # Checks

    async def _wait_until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        ends_at = self.loop.now + seconds
        while not holds():
            if self.loop.now > ends_at:
                self.violate(f"{what}: not within {seconds:g} s; {self._state()}")
            await asyncio.sleep(POLL_SECONDS)

    def _state(self) -> str:
        image = self.truth.image
        partitions = [
            f"{topic.name}-{state.index}: {state.leader} of {state.isr} in {state.replicas}"
            for topic in image.topics.values()
            for state in topic.partitions
        ]
        busy = [producer.name for producer in self.producers if not producer.is_idle]
        return f"admitted {sorted(image.admitted)}, {'; '.join(partitions)}; unacknowledged: {busy}"

    def is_fully_replicated(self) -> bool:
        """Whether every broker is admitted and every replica in the ISR."""
        image: ClusterImage = self.truth.image
        return image.admitted == set(self.plan.nodes) and all(
            set(state.isr) == set(state.replicas) and state.leader in state.isr
            for topic in image.topics.values()
            for state in topic.partitions
        )

    @property
    def may_forget_acknowledged(self) -> bool:
        """Whether a broker may lose acknowledged records, because no other one has them."""
        return self.plan.log is not None and not self.plan.extras.flushes_before_ack

    def may_end_process(self, node: int) -> bool:
        """Whether this node's process may be killed or stopped now.

        With flush.policy=os the cluster treats an unclean end of a process as a loss of its memory. So
        while one broker has lost acknowledged records and was not admitted since, no other one may end. A
        stop counts as well: it is unclean if the disk is full or a sync has failed.
        """
        others = (other for other in self.nodes.values() if other.id != node)
        return self.plan.extras.flushes_before_ack or not any(other.has_lost_data for other in others)

    def may_lose_power(self, node: int) -> bool:
        """Whether this node may lose power.

        With flush.policy=os only if every other broker runs, is not about to end, and has all records in
        memory.
        """
        others = [other for other in self.nodes.values() if other.id != node]
        are_there = all(
            other.is_up
            and not other.is_about_to_end
            and other.serving is not None
            and other.id in self.truth.image.admitted
            for other in others
        )
        if self.plan.extras.flushes_before_ack or not others:
            return True
        return are_there and self.can_lose_data(node)

    def can_lose_data(self, node: int) -> bool:
        """Whether other brokers have every committed record that this node has."""
        before_ack = self.plan.extras.flushes_before_ack
        for topic in self.truth.image.topics.values():
            for state in topic.partitions:
                # An eligible leader that loses its disk is detected where topics flush before they
                # acknowledge.
                has_all = state.isr if before_ack else (*state.isr, *state.elr)
                if node in has_all and not self._others_have_all(node, topic, state):
                    return False
        return True

    def _others_have_all(self, node: int, topic: Topic, state: PartitionState) -> bool:
        partition_id = (topic.id, state.index)
        return any(
            other != node
            and not self.nodes[other].has_lost_data
            and self.bit_rot.has_no_flipped_bit(other, partition_id)
            for other in state.isr
        )

    async def _check_bit_rot_is_found(self) -> None:
        """Check that every flipped bit is detected and another replica leads, without a restart.

        The bound begins when all brokers are admitted and all partitions have leaders. Before that no
        broker could take over, and the controller may have hundreds of elections to write to a store that
        takes 0.2 s for each request. The time until then has a bound as well, as everything after healing
        has.
        """
        scrubber = KafkaClient(self, "scrubber")
        ends_at, is_ready = self.loop.now + LIVENESS_SECONDS_MAX, False
        while left := [flip for flip in self.bit_rot.present() if not self.bit_rot.is_handled(flip)]:
            if not is_ready and self._is_led():
                is_ready, ends_at = True, min(ends_at, self.loop.now + ROT_SECONDS_MAX)
            if self.loop.now > ends_at:
                bound = (
                    f"{ROT_SECONDS_MAX:g} s of a led cluster" if is_ready else f"{LIVENESS_SECONDS_MAX:g} s"
                )
                self.violate(f"{left[0]}: not handed over within {bound}; {self._state()}")
            for flip in left:
                if not self.bit_rot.must_be_noticed(flip):
                    await self.bit_rot.read(scrubber, flip)
            await asyncio.sleep(POLL_SECONDS)

    def _is_led(self) -> bool:
        """Whether all brokers are admitted and every partition has a leader."""
        image = self.truth.image
        return image.admitted == set(self.plan.nodes) and all(
            state.leader != NO_NODE for topic in image.topics.values() for state in topic.partitions
        )

    async def _check_liveness(self, faults: Faults) -> None:
        """Check H12: everything works again, within a bound."""
        ends_at = self.loop.now + LIVENESS_SECONDS_MAX
        administrator = self.administrator
        if self.plan.changes_minimum or self.plan.extras.deposes:
            for name in self.topics:
                await administrator.retry(partial(administrator.set_minimum, name, 2))
        counts = [producer.acknowledged for producer in self.producers]

        def all_write() -> bool:
            return all(
                producer.acknowledged > before
                for producer, before in zip(self.producers, counts, strict=True)
            )

        await self._check_bit_rot_is_found()
        await self._wait_until(all_write, ends_at - self.loop.now, "every partition takes records again")
        self.is_producing = False
        await faults.restart_damaged()
        await self._wait_until(
            lambda: all(producer.is_idle for producer in self.producers) and self.is_fully_replicated(),
            ends_at - self.loop.now + 10,
            "all replicas are in sync again",
        )
        self.acknowledged = sum(producer.acknowledged for producer in self.producers)

    async def _validate(self) -> None:
        await asyncio.sleep(2)  # followers receive the last high watermark
        if left := self.bit_rot.present():
            self.violate(f"{left[0]} is still there, and the copy in sync")
        last = KafkaClient(self, "last")
        for topic in tuple(self.truth.image.topics.values()):
            if topic.name not in (*self.topics, CROWD_TOPIC) and not topic.internal:
                continue  # the administrator may be deleting it
            for index in range(len(topic.partitions)):
                ledger = self.ledger(topic.id, topic.name, index)
                if not ledger.end and topic.name == CROWD_TOPIC:
                    continue
                if topic.name in self.topics:
                    await self.administrator.complete_deletion(topic.name, index)
                await self._compare(ledger, topic.name, index)
                if not topic.internal:
                    reader = PartitionReader(last, topic.name, index)
                    async with asyncio.timeout(30):
                        await reader.until(ledger.end)
        if self.plan.new_members or self.plan.extras.classic:
            await self._compare_group_offsets()

    async def _compare(self, ledger: Ledger, topic: str, index: int) -> None:
        """Compare the replicas in the ISR with the committed batches.

        A replica that was added later may be missing there.
        """

        def logs() -> dict[int, PartitionLog]:
            state = self.truth.image.topics[topic].partitions[index]
            return {node_id: self._log(node_id, topic, index) for node_id in state.isr}

        def agree() -> bool:
            """Whether the log start offsets agree. A follower receives a new one with its next fetch."""
            found, leader = logs(), self.truth.image.topics[topic].partitions[index].leader
            starts = {node_id: log.log_start_offset for node_id, log in found.items()}
            return starts_agree(starts, leader, has_retention=self.plan.extras.has_retention) and all(
                log.has_stable_segments for log in found.values()
            )

        await self._wait_until(agree, AGREE_SECONDS_MAX, f"log start offsets of {ledger.name} agree")
        found = logs()
        start = max(log.log_start_offset for log in found.values())
        for node_id, log in found.items():
            ledger.compare(node_id, log, start)
        if isinstance(ledger, CompactedLedger):
            return
        producers = {node_id: ledger.producers_on(node_id, log, start) for node_id, log in found.items()}
        if len({tuple(sorted(each.items())) for each in producers.values()}) > 1:
            self.violate(f"{ledger.name}: replicas remember producers as {producers}")

    def _log(self, node_id: int, topic: str, index: int) -> PartitionLog:
        running = self.nodes[node_id].running
        partition = None if running is None else running.storage.partitions.find(topic, index)
        assert partition is not None
        return partition.log

    async def _compare_group_offsets(self) -> None:
        """Check I9 and H9: the group has read everything, and another coordinator loads the same offsets
        from its log.
        """
        ends = {
            (topic.id, state.index): self.ledger(topic.id, name, state.index).end
            for name in self.topics
            for topic in (self.truth.image.topics[name],)
            for state in topic.partitions
        }
        await self._wait_until(
            lambda: all(self.places.acknowledged.get(each, 0) >= end for each, end in ends.items()),
            GROUP_SECONDS_MAX,
            "the group has read everything",
        )
        last = SimGroupMember(self, "last-member")
        before = [await last.find_committed_offset(owned) for owned in ends]
        coordinator = await last.find_coordinator()
        await self.nodes[coordinator].kill()
        other = SimGroupMember(self, "other-member")
        async with asyncio.timeout(GROUP_SECONDS_MAX):
            after = [await other.find_committed_offset(owned) for owned in ends]
        if before != after:
            self.violate(f"node-{coordinator} has the group at {before}, who comes after it at {after}")


def starts_agree(starts: Mapping[int, int], leader: int, *, has_retention: bool) -> bool:
    """Whether the log start offsets of the replicas, by node, fit together.

    No follower starts before its leader. With retention a follower may start later, because an earlier leader
    removed more than the present one: by a clock that is ahead of the present leader's, or by the size of a
    log with records that no other replica has.
    """
    if has_retention:
        return leader in starts and min(starts.values()) == starts[leader]
    return len(set(starts.values())) == 1
