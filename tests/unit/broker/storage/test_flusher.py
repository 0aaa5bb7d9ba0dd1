"""Which appends share a flush, and when a flush starts. The syncs end when the test says so."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from penstock.broker.storage.flusher import Flusher
from penstock.errors import StorageFailed
from penstock.host.clock import SystemClock
from penstock.host.disk import File
from penstock.host.file_sync import SyncDone
from penstock.replication.partition import Partition
from penstock.replication.produce_waits import ProduceWait
from tests.unit.replication.replica_support import leader_on, new_log, produce


class HeldSyncs:
    """Syncs that are under way until the test ends them."""

    def __init__(self) -> None:
        self.done: list[SyncDone] = []

    def sync(self, files: Sequence[File], folders: Sequence[str], done: SyncDone) -> None:
        self.done.append(done)

    def end(self, error: BaseException | None = None) -> None:
        self.done.pop()(error)

    def close(self) -> None: ...


class HeldTimer:
    """A timer that ends when the test says so."""

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None

    def start(self, seconds: float, callback: Callable[[], None]) -> None:
        assert self.callback is None
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None

    def expire(self) -> None:
        callback, self.callback = self.callback, None
        assert callback is not None
        callback()

    def close(self) -> None: ...


class Flushing:
    def __init__(self) -> None:
        self.syncs, self.timer = HeldSyncs(), HeldTimer()
        self.flusher = Flusher(self.syncs, self.timer, SystemClock())
        self.failures: list[StorageFailed] = []
        self.flusher.on_failure = self.failures.append
        self.partition: Partition = leader_on(new_log())

    async def append(self, count: int = 1) -> None:
        """Append in one iteration of the loop."""
        for _ in range(count):
            produce(self.partition)
            self.flusher.request(self.partition)
        await asyncio.sleep(0)

    @property
    def is_running(self) -> bool:
        return bool(self.syncs.done)

    @property
    def is_delayed(self) -> bool:
        return self.timer.callback is not None

    async def flush_of_two(self) -> None:
        """A flush, during which a second append arrives: afterwards two appends are expected."""
        await self.append()
        self.syncs.end()
        await self.append()
        await self.append()
        self.syncs.end()


def run(scenario: Callable[[Flushing], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        await scenario(Flushing())

    asyncio.run(main())


def test_a_flush_starts_at_the_end_of_the_iteration_that_appended() -> None:
    async def scenario(on: Flushing) -> None:
        on.flusher.request(on.partition)
        assert not on.is_running
        await asyncio.sleep(0)
        assert on.is_running

    run(scenario)


def test_appends_during_a_flush_share_the_next_one() -> None:
    async def scenario(on: Flushing) -> None:
        await on.append()
        await on.append(2)
        assert len(on.syncs.done) == 1
        end = on.partition.log.log_end_offset
        on.syncs.end()
        assert on.partition.log.flushed_end_offset == end - 2
        on.syncs.end()
        assert on.partition.log.flushed_end_offset == end

    run(scenario)


def test_a_delayed_flush_starts_when_the_expected_append_arrives() -> None:
    async def scenario(on: Flushing) -> None:
        await on.flush_of_two()
        assert on.is_delayed
        assert not on.is_running
        await on.append()
        assert on.is_running
        assert not on.is_delayed
        on.syncs.end()
        assert on.partition.log.flushed_end_offset == on.partition.log.log_end_offset

    run(scenario)


def test_a_delayed_flush_starts_when_its_delay_is_over() -> None:
    async def scenario(on: Flushing) -> None:
        await on.flush_of_two()
        on.timer.expire()
        assert on.is_running

    run(scenario)


def test_an_append_after_a_delay_is_complete_joins_the_flush() -> None:
    """The flush starts at the end of the iteration, once, with everything that was appended in it."""

    async def scenario(on: Flushing) -> None:
        await on.flush_of_two()
        await on.append(3)
        assert len(on.syncs.done) == 1
        on.syncs.end()
        assert on.partition.log.flushed_end_offset == on.partition.log.log_end_offset

    run(scenario)


def test_the_end_of_a_flush_without_new_appends_starts_none() -> None:
    async def scenario(on: Flushing) -> None:
        await on.append()
        on.syncs.end()
        await asyncio.sleep(0)
        assert not on.is_running
        assert not on.is_delayed
        await on.append()
        assert on.is_running

    run(scenario)


def test_after_a_failed_sync_no_flush_starts() -> None:
    async def scenario(on: Flushing) -> None:
        await on.append()
        on.syncs.end(StorageFailed("the disk is gone"))
        await on.append()
        assert not on.is_running
        assert [str(failure) for failure in on.failures] == ["the disk is gone"]
        with pytest.raises(StorageFailed):
            await on.flusher.flush_to([(on.partition, on.partition.log.log_end_offset)])

    run(scenario)


def test_a_reply_that_fails_does_not_stop_the_flushes_of_others() -> None:
    """The sync has succeeded: what failed is one request."""

    def fail(wait: ProduceWait) -> None:
        raise RuntimeError("the connection's state is broken")

    async def scenario(on: Flushing) -> None:
        await on.append()
        on.partition.own_end_waits.add(on.partition.log.log_end_offset, ProduceWait(1.0, fail), 0)
        await on.append()
        with pytest.raises(RuntimeError):
            on.syncs.end()
        assert on.is_running, "the second append is flushed"
        on.syncs.end()
        assert on.partition.log.flushed_end_offset == on.partition.log.log_end_offset

    run(scenario)
