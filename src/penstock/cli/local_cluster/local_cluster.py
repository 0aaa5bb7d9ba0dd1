"""Local cluster: starts its processes, supervises them, and stops them.

    etcd ──→ all brokers at once ──→ ... ──→ stop: all brokers at once ──→ etcd

Rule 1: a stop request (Ctrl-C or SIGTERM) first ends the brokers cleanly and then etcd, since brokers need
        etcd for a controlled shutdown. A second request kills all processes.
Rule 2: if a process fails to start, all started processes are stopped, and the reason is reported.
Rule 3: a process that dies later is not restarted, so that users can observe the effect, unless `restarts` is
        set.
Rule 4: stdout gets one line for each node that is ready; all other output goes to stderr.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Final

from penstock.cli.local_cluster.managed_process import ManagedProcess, exit_text
from penstock.cli.local_cluster.plan import LocalBroker, LocalClusterPlan
from penstock.errors import CommandFailed
from penstock.host.tasks import Tasks

ETCD_READY_S_MAX: Final = 60.0
ETCD_LOOK_S: Final = 0.1
STOP_S_MAX: Final = 45.0
"""Longer than a broker takes to stop if it must give up waiting for other brokers."""
RESTART_PAUSE_S_MAX: Final = 30.0
GOES_ON: Final = "the same command goes on with what they keep"
START_AGAIN: Final = "Ctrl-C and the same command start all of it again"


class DidNotStart(CommandFailed):
    """A process ended before it was ready."""


def print_stderr(text: str) -> None:
    """Print a line; ignore a closed terminal, since closing it is one way to request a stop."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class LocalCluster:
    def __init__(self, plan: LocalClusterPlan, *, restarts: bool) -> None:
        self._plan = plan
        self._restarts = restarts
        self._stop_requested = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks = Tasks(self._failed)
        self._etcd = ManagedProcess("etcd", plan.etcd.command(), plan.etcd.log_path, plan.etcd.pid_path)
        self._brokers = {
            node: ManagedProcess(
                node.name, node.command(plan.etcd.address), node.log_path, node.pid_path, captures_stdout=True
            )
            for node in plan.nodes
        }
        self._not_ready_yet = set(plan.nodes)
        self.was_killed = False
        """Whether a second Ctrl-C killed the processes."""

    async def run(self) -> None:
        """Run until a stop is requested; raise the error that prevented the start."""
        self._install_signal_handlers()
        self._tasks.start(self._start(), "start")
        try:
            await self._stop_requested.wait()
        finally:
            await self._tasks.stop()
            await self._stop()
        if self._failure is not None:
            raise self._failure

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup, the end of the terminal is ignored.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_stop_signal)

    def _on_stop_signal(self) -> None:
        if not self._stop_requested.is_set():
            self._stop_requested.set()
            return
        self.was_killed = True
        for child in (*self._brokers.values(), self._etcd):
            child.signal(signal.SIGKILL)

    def _failed(self, _: str, failure: BaseException) -> None:
        self._failure = self._failure or failure
        self._stop_requested.set()

    # Starting

    async def _start(self) -> None:
        plan = self._plan
        await self._start_etcd()
        print_stderr(f"etcd ready {plan.etcd.address} pid={self._etcd.pid}")
        self._tasks.start(self._supervise_etcd(), "etcd")
        for node, broker in self._brokers.items():
            self._tasks.start(self._supervise_broker(node, broker), node.name)

    async def _start_etcd(self) -> None:
        await self._etcd.start()
        try:
            async with asyncio.timeout(ETCD_READY_S_MAX):
                while not await self._etcd_answers():
                    if not self._etcd.is_running:
                        raise self._did_not_start(self._etcd, exit_text(await self._etcd.end()))
                    await asyncio.sleep(ETCD_LOOK_S)
        except TimeoutError:
            raise self._did_not_start(self._etcd, f"no answer within {ETCD_READY_S_MAX:.0f} s") from None

    async def _etcd_answers(self) -> bool:
        from penstock.host.metadata_store import StoreRejected, StoreUnavailable
        from penstock.metadata.etcd.etcd_store import EtcdStore
        from penstock.metadata.etcd.url import parse_etcd_url
        from penstock.metadata.keys import CLUSTER_ID_KEY

        store = EtcdStore(parse_etcd_url(self._plan.etcd.address))
        try:
            await store.read(CLUSTER_ID_KEY)
        except (StoreUnavailable, StoreRejected):
            return False
        finally:
            await store.close()
        return True

    async def _start_broker(self, node: LocalBroker, broker: ManagedProcess) -> None:
        await broker.start()
        if not await broker.line():  # the broker prints its ready line, or ends
            raise self._did_not_start(broker, exit_text(await broker.end()))
        print(f"{node.name} ready kafka={node.kafka} http={node.http} pid={broker.pid}", flush=True)
        if self._not_ready_yet == {node}:
            folder = self._plan.folder
            print_stderr(f"cluster ready: --bootstrap {self._plan.bootstrap}")
            print_stderr(f"logs: tail -F {folder}/broker-*/penstock.log {folder}/etcd.log")
            print_stderr("Ctrl-C stops everything")
        self._not_ready_yet.discard(node)

    def _did_not_start(self, child: ManagedProcess, how: str) -> DidNotStart:
        said = child.log_tail()
        return DidNotStart(
            f"{child.name} did not start ({how}); {child.log_path} says more"
            + (f":\n{said}" if said else ".")
        )

    # Watching

    async def _supervise_broker(self, node: LocalBroker, broker: ManagedProcess) -> None:
        await self._start_broker(node, broker)
        while await self._wait_for_exit(broker, self._without_a_broker):
            await self._restart(broker, lambda: self._start_broker(node, broker))

    async def _supervise_etcd(self) -> None:
        while await self._wait_for_exit(self._etcd, self._without_etcd):
            await self._restart(self._etcd, self._start_etcd)
            print_stderr(f"etcd ready {self._plan.etcd.address} pid={self._etcd.pid}")

    def _without_a_broker(self) -> str:
        if any(broker.is_running for broker in self._brokers.values()):
            return "the others go on without it"
        return f"no broker is left; {START_AGAIN}"

    def _without_etcd(self) -> str:
        return f"brokers serve on, and nothing can be changed; {START_AGAIN}"

    async def _wait_for_exit(self, child: ManagedProcess, meanwhile: Callable[[], str]) -> bool:
        """Wait for the end of the process and report it; return whether to restart the process."""
        how = exit_text(await child.end())
        if self._restarts:
            print_stderr(f"{child.name} ended ({how}): starting it again; {child.log_path} says more")
        else:
            print_stderr(
                f"{child.name} ended ({how}) and stays so: {meanwhile()}; {child.log_path} says more"
            )
        return self._restarts

    async def _restart(self, child: ManagedProcess, start_process: Callable[[], Awaitable[None]]) -> None:
        for attempt in count():
            try:
                await start_process()
                return
            except DidNotStart as problem:
                pause_s = min(2.0**attempt, RESTART_PAUSE_S_MAX)
                print_stderr(f"{problem}\n{child.name} is started again in {pause_s:.0f} s")
                child.signal(signal.SIGKILL)  # for an etcd that runs but does not respond
                await child.end()
                await asyncio.sleep(pause_s)

    # Stopping

    # Only processes that were started have an exit code to wait for.
    async def _stop(self) -> None:
        started = {node: broker for node, broker in self._brokers.items() if broker.was_started}
        if any(broker.is_running for broker in started.values()):
            print_stderr("stopping the brokers, then etcd; Ctrl-C again kills them")
        await asyncio.gather(
            *(
                self._stop_process(broker, reports_failure=node not in self._not_ready_yet)
                for node, broker in started.items()
            )
        )
        if self._etcd.was_started:
            await self._stop_process(self._etcd)
            if self._failure is None:
                print_stderr(f"all {'killed' if self.was_killed else 'stopped'}; {GOES_ON}")

    async def _stop_process(self, child: ManagedProcess, *, reports_failure: bool = True) -> None:
        """Stop a process, unless it has already ended.

        `reports_failure`: whether an unclean exit is reported; a broker that was not ready yet may exit
        uncleanly.
        """
        reports_failure = reports_failure and child.is_running
        if self.was_killed:
            child.signal(signal.SIGKILL)
        child.signal(signal.SIGTERM, signal.SIGCONT)  # a paused process handles SIGTERM only after SIGCONT
        try:
            async with asyncio.timeout(STOP_S_MAX):
                code = await child.end()
        except TimeoutError:
            print_stderr(f"{child.name} did not stop within {STOP_S_MAX:.0f} s, and is killed")
            child.signal(signal.SIGKILL)
            code = await child.end()
        # etcd stops cleanly and then exits with the signal's status.
        if reports_failure and code not in (0, -signal.SIGTERM) and not self.was_killed:
            print_stderr(f"{child.name} did not stop cleanly ({exit_text(code)}); {child.log_path} says more")
