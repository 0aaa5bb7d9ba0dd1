"""Client processes, which live as long as a session with one server.

They are started before the clock of anything: the time to load Python and a library belongs to no figure.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import TimeoutError as LateError
from multiprocessing import get_context
from multiprocessing.pool import AsyncResult, Pool
from typing import Any

from benchmarks.peers.clients import driver
from benchmarks.peers.clients.work import ClientFailed, Work

CALL_S_MAX = 120.0
PROCESSES = 2


class ClientStuck(ClientFailed):
    """A client process did not finish in time, and is still busy."""


def ignore_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the parent alone ends the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def guarded(module: str, function: str, work: Work) -> Any:
    """Any error of a library becomes one that the parent knows, with its text."""
    try:
        return driver.run(module, function, work)
    except Exception as problem:
        raise ClientFailed(f"{function}: {problem!r}") from None


@dataclass(slots=True)
class Call:
    result: "AsyncResult[Any]"
    function: str

    def wait(self, limit_s: float = CALL_S_MAX) -> Any:
        try:
            return self.result.get(limit_s)
        except LateError:
            raise ClientStuck(f"{self.function}: no result after {limit_s:.0f} s") from None


@dataclass(slots=True)
class Clients:
    module: str
    pool: Pool

    def begin(self, function: str, work: Work) -> Call:
        return Call(self.pool.apply_async(guarded, (self.module, function, work)), function)

    def call(self, function: str, work: Work) -> Any:
        return self.begin(function, work).wait()


@contextmanager
def client_processes(module: str) -> Iterator[Clients]:
    """Processes with the client module loaded. They end with the block, whatever they are doing."""
    with get_context("spawn").Pool(PROCESSES, initializer=ignore_interrupts) as pool:
        clients = Clients(module, pool)
        idle = Work(address="", pids=(), name="")
        for call in [clients.begin("ping", idle) for _ in range(PROCESSES)]:
            call.wait()
        yield clients
