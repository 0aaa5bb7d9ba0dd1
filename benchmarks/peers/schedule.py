"""The order of a run: every repetition asks each contender once, each time beginning with another one.

A contender gets one session in a repetition: its server is started, warmed up, asked every chosen question,
and ended before the next one starts. So whatever else the machine does meets all of them alike, and no
server pays for another one that idles beside it.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import SubprocessError

from benchmarks.brokers import BrokerFailed, temporary_folder
from benchmarks.clients import ClientFailed as PenstockClientFailed
from benchmarks.peers.clients.processes import Clients, ClientStuck, client_processes
from benchmarks.peers.clients.work import ClientFailed, Work
from benchmarks.peers.contenders import Contender
from benchmarks.peers.questions import GROWTH, cluster, growth, java, lifecycle, limits, single
from benchmarks.peers.results import Missing, Sample
from benchmarks.peers.servers.process import ServerFailed
from benchmarks.peers.session import Session
from benchmarks.peers.sizes import Sizes
from benchmarks.peers.warm import are_alike
from benchmarks.phase import Phase

Ask = Callable[[Session], Iterator[Sample | Missing]]
FAILURES = (ClientFailed, PenstockClientFailed, ServerFailed, BrokerFailed, SubprocessError, OSError)
START, RECOVERY, LIMITS = "start", "recovery", "limits"
WARM_BYTES = 1000
WARM_RATE = 1000
WARM_ROUNDS = 3
"""So many rounds of warming up in a row that are alike end it."""

SINGLE: dict[str, Ask] = {
    "batched": single.batched,
    "java": java.java_defaults,
    "latency": single.latency,
    "end_to_end": single.end_to_end,
    "fan_out": single.fan_out,
    "connections": single.connections,
}
CLUSTER: dict[str, Ask] = {"replicated": cluster.replicated, "leader_kill": cluster.leader_kill}


@dataclass(slots=True)
class Schedule:
    contenders: Sequence[Contender]
    questions: Sequence[str]
    sizes: Sizes
    samples: list[Sample] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    _answered: set[str] = field(default_factory=set)
    """Questions of the present session that need no further note."""

    def run(self) -> None:
        for repetition in range(self.sizes.repetitions):
            self._note(f"repetition {repetition + 1} of {self.sizes.repetitions}")
            if LIMITS in self.questions:
                self._take(limits.measure(self.sizes))
            for contender in rotated(self.contenders, repetition):
                self._session(contender)
            for contender in rotated(self.contenders, repetition):
                self._cluster_session(contender)
        for name in self.questions:
            if name in GROWTH:
                self._grow(name)

    # One server

    def _session(self, contender: Contender) -> None:
        asked = [name for name in self.questions if name in SINGLE or name in (START, RECOVERY)]
        if not contender.peer.speaks_kafka and "java" in asked:
            asked.remove("java")
            self._miss(contender.name, "java", "Kafka's tools do not speak its protocol")
        if not asked:
            return
        self._note(f"{contender.name}: {', '.join(asked)}")
        self._answered.clear()
        with temporary_folder() as home:
            try:
                with client_processes(contender.client) as clients:
                    self._ask_single(contender, clients, home, asked)
            except FAILURES as problem:
                self._miss_rest(contender, asked, problem)

    def _ask_single(self, contender: Contender, clients: Clients, home: Path, asked: Sequence[str]) -> None:
        written: Work | None = None
        with contender.start(home, contender.settings) as server:
            session = Session(contender, server, clients, self.sizes)
            if START in asked:
                self._ask(session, START, lifecycle.start)
            lane = lifecycle.make_lane(session) if RECOVERY in asked else None
            if any(name in SINGLE for name in asked):
                self._warm_up(session)
            for name in asked:
                if name in SINGLE:
                    self._ask(session, name, SINGLE[name])
            if lane is not None:
                written = lifecycle.write_before_kill(session, *lane)
        if written is not None:
            work = written
            with contender.start(home, contender.settings) as server:
                session = Session(contender, server, clients, self.sizes)
                self._ask(session, RECOVERY, lambda each: lifecycle.after_kill(each, work))

    def _warm_up(self, session: Session, replicas: int = 1) -> None:
        """Produce and read in rounds until the rates settle: Java compiles what is used often."""
        deadline, rates = time.monotonic() + self.sizes.warm_up_s_max, list[float]()
        while time.monotonic() < deadline:
            work = session.work(record_bytes=WARM_BYTES, seconds=self.sizes.round_s, replicas=replicas)
            with session.lanes(work):
                produced: Phase = session.clients.call("produce", work)
                reading = replace(work, records=produced.work + 1, seconds=self.sizes.consume_s_max)
                session.clients.call("consume", reading)
            rates.append(produced.per_second)
            if are_alike(rates, WARM_ROUNDS):
                break
        flow = session.work(is_paced=True, rate=WARM_RATE, seconds=self.sizes.warm_flow_s, replicas=replicas)
        with session.lanes(flow):
            session.clients.call("send_steadily", flow)

    # Three servers

    def _cluster_session(self, contender: Contender) -> None:
        asked = [name for name in self.questions if name in CLUSTER]
        if not contender.fails_over and "leader_kill" in asked:
            asked.remove("leader_kill")
            self._miss(contender.name, "leader_kill", contender.cluster_note)
        if not asked:
            return
        self._note(f"{contender.name}, three servers: {', '.join(asked)}")
        self._answered.clear()
        with temporary_folder() as home:
            try:
                with (
                    client_processes(contender.client) as clients,
                    contender.start_cluster(home, contender.settings) as server,
                ):
                    session = Session(contender, server, clients, self.sizes)
                    # Members may need a moment to find each other: this is tried until it works.
                    clients.call("first_record", session.work(replicas=cluster.REPLICAS))
                    if "replicated" in asked:
                        self._warm_up(session, cluster.REPLICAS)
                    for name in asked:
                        self._ask(session, name, CLUSTER[name])
            except FAILURES as problem:
                self._miss_rest(contender, asked, problem)

    # Penstock alone

    def _grow(self, name: str) -> None:
        """Asked once: its steps are the samples of a curve."""
        self._note(f"penstock alone: {name}")
        try:
            self._take(growth.measure(name, self.sizes))
        except FAILURES as problem:
            self.missing.append(Missing("penstock", name, f"FAILED: {problem}"))

    # What was found

    def _ask(self, session: Session, name: str, ask: Ask) -> None:
        session.question, began = name, time.monotonic()
        try:
            self._take(ask(session))
            self._note(f"  {name}: {time.monotonic() - began:.1f} s")
        except FAILURES as problem:
            self._miss(session.contender.name, name, f"FAILED: {problem}")
            if isinstance(problem, ClientStuck):
                raise  # its process is not free for the next question
        finally:
            self._answered.add(name)

    def _take(self, found: Iterator[Sample | Missing]) -> None:
        for each in found:  # those before a failure are kept
            if isinstance(each, Missing):
                self._miss(each.contender, each.question, each.reason)
            else:
                self.samples.append(each)

    def _miss_rest(self, contender: Contender, asked: Sequence[str], problem: BaseException) -> None:
        for name in asked:
            if name not in self._answered:
                self._miss(contender.name, name, f"FAILED: {problem}")

    def _miss(self, contender: str, question: str, reason: str) -> None:
        missing = Missing(contender, question, reason)
        if missing not in self.missing:
            self.missing.append(missing)
            self._note(f"{contender}, {question}: {reason}")

    def _note(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def rotated(contenders: Sequence[Contender], repetition: int) -> list[Contender]:
    """The contenders, beginning with another one in each repetition."""
    count = len(contenders)
    first = repetition * max(1, count // 3) % count if count else 0
    return [*contenders[first:], *contenders[:first]]
