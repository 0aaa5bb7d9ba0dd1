"""One server that is running, its client processes, and the questions that it is asked.

Rule 1: a question that fails is recorded with its reason, and the next one is asked.
Rule 2: before each clock starts, what others have left to write is on disk (`sync`), so that no contender
pays for it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from benchmarks.figures import Better, percentile
from benchmarks.peers.clients.processes import Clients
from benchmarks.peers.clients.work import Work
from benchmarks.peers.contenders import Contender
from benchmarks.peers.results import Sample
from benchmarks.peers.servers.process import Server
from benchmarks.peers.sizes import Sizes
from benchmarks.peers.warm import settled
from benchmarks.phase import Phase

MB = 1_000_000
SYSTEM_CPU = "CPU of server and kernel"
"""Of everything on the machine but the client: threads of the kernel sync files and write them to disk."""
KEPT_UP = 0.99


@dataclass(slots=True)
class Session:
    contender: Contender
    server: Server
    clients: Clients
    sizes: Sizes
    question: str = ""
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def work(self, **options: object) -> Work:
        """Work with a new name."""
        name = f"bench{next(self.numbers)}"
        return Work(address=self.server.address, pids=self.server.pids, name=name, **options)  # type: ignore[arg-type]

    @contextmanager
    def lanes(self, work: Work) -> Iterator[Work]:
        """Make the lanes of the work, and remove them at the end, so that memory and disk do not fill up."""
        self.clients.call("create", work)
        os.sync()
        yield work
        self.clients.call("delete", work)

    def steady_flow(self, lead_s: float, **options: object) -> tuple[Phase, list[float]]:
        """The phase of sending evenly, and the ages in milliseconds at which readers had the records.

        Readers have `lead_s` to connect. The flow is repeated until its median age settles.
        """

        def run() -> tuple[Phase, list[float]]:
            work = self.work(**options)
            with self.lanes(work):
                receiving = self.clients.begin("receive_steadily", work)
                time.sleep(lead_s)
                phase: Phase = self.clients.call("send_steadily", work)
                return phase, receiving.wait()

        return settled(run, lambda each: percentile(sorted(each[1]), 0.5), runs_max=self.sizes.runs_max)

    def sample(
        self, figure: str, value: float, unit: str, better: Better = Better.LOWER, limited_by: str = ""
    ) -> Sample:
        return Sample(
            question=self.question,
            figure=figure,
            unit=unit,
            contender=self.contender.name,
            value=value,
            better=better,
            limited_by=limited_by,
        )

    def ages(
        self, figure: str, ages_ms: list[float], *, expected: int, sent: int, limited_by: str
    ) -> Iterator[Sample]:
        """Percentiles of a steady flow. If server or client cannot keep up, ages grow with the run."""
        if len(ages_ms) < expected * KEPT_UP:
            came = f"{sent:,} of {expected:,} records were sent, {len(ages_ms):,} came in time"
            limited_by = f"CANNOT KEEP UP: {came}; {limited_by}"
        yield from self.percentiles(figure, ages_ms, limited_by)

    def percentiles(self, figure: str, took_ms: list[float], limited_by: str) -> Iterator[Sample]:
        ordered = sorted(took_ms)
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            yield self.sample(f"{figure}, {label}", percentile(ordered, share), "ms", limited_by=limited_by)
