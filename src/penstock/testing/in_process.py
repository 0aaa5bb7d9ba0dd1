"""A broker in a thread of the calling process, with its own event loop.

It is the broker that `penstock serve` runs, without the HTTP server. Only its environment differs: the wall
clock can be moved, and events go to Python's logging, so that test runners show them next to a failure.

Rule 1: a failed start raises its cause in the caller of `broker`.
Rule 2: after the block no thread and no socket is left, and no file but those in a given data directory.
Rule 3: importing this module costs nothing: the broker's modules are imported when one is started.
"""

import logging
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from penstock.broker.broker import BrokerLimits, RunningBroker
    from penstock.config.broker import BrokerConfig
    from penstock.host.disk import Disk

SettingValue = str | int | float | bool

START_SECONDS_MAX = 30
STOP_SECONDS_MAX = 30
ORIGIN = "the settings given to penstock.testing.broker"
FREE_PORT = {"listeners": "PLAINTEXT://127.0.0.1:0"}
NO_REBALANCE_DELAY = {"group.initial.rebalance.delay.ms": "0"}
"""In production a new group waits for more members before its first rebalance. In a test that would only take
time.
"""


@contextmanager
def broker(data_dir: str | Path | None = None, /, **settings: SettingValue) -> Iterator["Broker"]:
    """Run a broker within the block, on a free port.

    Without `data_dir` the data is in a temporary folder that is removed afterwards. `settings` are those of
    `penstock serve --set`, by Kafka's names:

        with broker(**{"num.partitions": 3, "auto.create.topics.enable": False}) as running:
    """
    with broker_with(data_dir, settings) as running:
        yield running


@contextmanager
def broker_with(
    data_dir: str | Path | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    *,
    limits: "BrokerLimits | None" = None,
    disk: "Disk | None" = None,
) -> Iterator["Broker"]:
    """Run a broker with other limits or on another disk, for tests of Penstock itself."""
    with ExitStack() as stack:
        if data_dir is None:
            data_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
        served = _BrokerThread(_configure(str(data_dir), settings or {}), limits, disk)
        stack.callback(served.stop)
        yield Broker(served.start(), served, Path(data_dir))


class Broker:
    """A running broker, as a test uses it."""

    def __init__(self, running: "RunningBroker", served: "_BrokerThread", data_dir: Path) -> None:
        self._running = running
        self._served = served
        self.data_dir = data_dir

    @property
    def bootstrap(self) -> str:
        """host:port, for a client's `bootstrap.servers`."""
        return self.address()

    def address(self, listener: str | None = None) -> str:
        """host:port of the listener with this name, or of the first. ValueError if there is none."""
        from penstock.config.listeners import Address

        listeners = {each.name: each for each in self._running.listeners}
        name = next(iter(listeners)) if listener is None else listener.upper()
        if name not in listeners:
            raise ValueError(f"no listener is called {name}; there are {', '.join(listeners)}")
        return str(Address(listeners[name].host, listeners[name].port))

    def advance(self, *, ms: int) -> None:
        """Move the broker's wall clock forward. Returns when records that are then too old are deleted.

        Timeouts of the protocol use real time.
        """
        self._served.clock.advance(ms)
        self._served.call(self._enforce_retention())

    async def _enforce_retention(self) -> None:
        storage = self._running.storage
        # Retention removes nothing above the recovery point, and the next checkpoint may be seconds away.
        await storage.checkpoints.run([each for each in storage.partitions if each.log.needs_checkpoint])
        for partition in tuple(storage.partitions):
            await storage.retention.enforce(partition)

    def __repr__(self) -> str:
        return f"<Broker {self.bootstrap} data_dir={self.data_dir}>"


class _BrokerThread:
    """The thread of a broker, from its start to its end."""

    def __init__(self, config: "BrokerConfig", limits: "BrokerLimits | None", disk: "Disk | None") -> None:
        from penstock.host.clock import AdjustableClock

        self.clock = AdjustableClock()
        self._config = config
        self._limits = limits
        self._disk = disk
        self._started: Future[RunningBroker] = Future()
        self._ended: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-broker")

    def start(self) -> "RunningBroker":
        """Start the broker. Raises the cause if the start fails."""
        self._ended = self._thread.submit(self._run)
        either: list[Future[Any]] = [self._started, self._ended]
        wait(either, START_SECONDS_MAX, FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()  # raises the cause of the failed start
        return self._started.result(timeout=0)

    def stop(self) -> None:
        """Stop the broker. Raises the failure that ended it early, if there was one."""
        if self._started.done():
            self._loop.call_soon_threadsafe(self._stopping.set)
            assert self._ended is not None
            self._ended.result(STOP_SECONDS_MAX)
        # A broker that neither started nor failed in time is not waited for.
        self._thread.shutdown(wait=self._ended is None or self._ended.done())

    def call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the broker's event loop and wait for it."""
        import asyncio

        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STOP_SECONDS_MAX)

    def _run(self) -> None:
        import asyncio

        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        import asyncio

        from penstock.broker.broker import BrokerLimits, Environment, running_broker
        from penstock.host.os_disk import OsDisk

        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._stopping: asyncio.Event = asyncio.Event()
        world = Environment(clock=self.clock, disk=self._disk or OsDisk(), log=_PythonLog())
        async with running_broker(self._config, world, self._limits or BrokerLimits()) as running:
            self._started.set_result(running)
            await self._stopping.wait()


class _PythonLog:
    """Log that writes the broker's events as records of the logger `penstock`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("penstock")

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(_line(event, fields))

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(_line(event, fields))

    def error(self, event: str, **fields: object) -> None:
        self._logger.error(_line(event, fields))


def _line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{name}={value}" for name, value in fields.items())])


def _configure(data_dir: str, settings: Mapping[str, SettingValue]) -> "BrokerConfig":
    from penstock.config.setting import render
    from penstock.config.sources import load

    sets = [
        f"{key}={render(value)}" for key, value in {**FREE_PORT, **NO_REBALANCE_DELAY, **settings}.items()
    ]
    return load({"data_dir": data_dir}, sets, sets_origin=ORIGIN)


def _new_loop() -> "asyncio.AbstractEventLoop":
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
