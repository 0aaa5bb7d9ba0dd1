"""The invariants of a compacted partition, and a simulated cleaner process.

A log that is cleaned does not keep every byte, so it is compared with records:

    each record that is present is the one that was appended at its offset
    the last record of each key is present, if it has a value
    a tombstone that is the last record of its key is present until its delete horizon, which is at least
        delete.retention.ms after it was appended; and once it is gone, no older record of its key is present
    records that were found to be gone never return
    offsets have no hole

The cleaning is the production code. Only its process is simulated: it runs a step at a time, in a simulated
worker, and sometimes dies.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple, Protocol

from penstock.host.child_process import ChildDied
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.compaction.batch_filter import horizon_of
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import CleaningJob, CleaningStep
from penstock.protocol import records
from penstock.protocol.batches import BatchHeader, split_batches
from penstock.protocol.records import Record
from penstock.replication.partition import Partition
from penstock.sim.disk import Mount, SimDisk
from penstock.sim.history import History, batches_of
from penstock.sim.worker import SimWorker


class CompactionContext(NamedTuple):
    disk: SimDisk
    now_ms: Callable[[], int]
    retention_ms: int


class CompactedHistory(History):
    def __init__(self, name: str, setting: CompactionContext) -> None:
        super().__init__(name)
        self._disk, self._now_ms, self._retention_ms = setting
        self._records: dict[int, Record] = {}
        self._written_ms: dict[int, int] = {}
        self._removed_offsets: set[int] = set()
        self._horizons: dict[int, int] = {}
        """The delete horizons of tombstones, as they were first seen."""
        self._partition: Partition

    def appended(self, data: bytes) -> None:
        super().appended(data)
        for _, found in records_in(data):
            for record in found:
                self._records[record.offset] = record
                self._written_ms[record.offset] = self._now_ms()

    def check_reopened(self, partition: Partition, *, power_was_lost: bool) -> None:
        self._partition = partition
        super().check_reopened(partition, power_was_lost=power_was_lost)
        for kept in (self._records, self._written_ms, self._horizons):
            for offset in [offset for offset in kept if offset >= self.end]:
                del kept[offset]

    def check_read(self, offset: int, data: bytes) -> int:
        needed = {last.offset for last in self._last_of_each_key().values() if last.value is not None}
        seen, first = set(), offset
        for header, found in records_in(data):
            in_place = header.base_offset <= offset if offset == first else header.base_offset == offset
            self.require(in_place and header.next_offset > offset, f"a reader at {offset} got {header}")
            self._require_as_written(found)
            seen |= {record.offset for record in found}
            offset = header.next_offset
        missed = {number for number in needed - seen if first <= number < offset}
        self.require(not missed, f"a reader at {first} was not given {missed}")
        return offset

    def first_at_or_after(self, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        for _, found in self._stored():
            for record in found:
                if start <= record.offset < end and record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return None

    # The whole log

    def observe(self) -> None:
        """Check everything that is stored now, including records that no reader may read yet."""
        self._require_compacted(self._stored())

    def _compare(self, partition: Partition) -> None:
        self._require_compacted(records_in(b"".join(batches_of(partition))))

    def _stored(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        for segment in self._partition.log.segments:
            yield from records_in(self._disk.peek(segment.path())[: segment.size_bytes])

    def _require_compacted(self, stored: Iterator[tuple[BatchHeader, list[Record]]]) -> None:
        log = self._partition.log
        present: dict[int, Record] = {}
        start, expected = log.log_start_offset, None
        for header, found in stored:
            in_place = header.base_offset == expected if expected is not None else header.base_offset <= start
            self.require(in_place, f"the batch at {header.base_offset} does not follow {expected}")
            self._require_as_written(found)
            self._note_horizons(header, found)
            present |= {record.offset: record for record in found if record.offset >= start}
            expected = header.next_offset
        self.require(expected in (None, log.log_end_offset), f"ends at {expected}")
        reappeared = self._removed_offsets & present.keys()
        self.require(not reappeared, f"the records at {reappeared} were gone and are back")
        self._removed_offsets |= {offset for offset in range(start, self.end) if offset not in present}
        last_of_each_key = self._last_of_each_key()
        for last in last_of_each_key.values():
            if last.offset < start or last.offset in present:
                continue
            self.require(last.value is None, f"the last record of {last.key!r}, at {last.offset}, is gone")
            horizon = self._horizons.get(last.offset)
            self.require(
                horizon is not None and horizon <= self._now_ms(),
                f"the tombstone at {last.offset} is gone before its horizon {horizon}",
            )
            older = [record.offset for record in present.values() if record.key == last.key]
            self.require(not older, f"{last.key!r} was deleted at {last.offset} and is there at {older}")

    def _require_as_written(self, found: list[Record]) -> None:
        for record in found:
            self.require(self._records.get(record.offset) == record, f"{record} is not what was written")

    def _note_horizons(self, header: BatchHeader, found: list[Record]) -> None:
        if (horizon := horizon_of(header)) is None:
            return
        for record in found:
            if record.value is None:
                earliest = self._written_ms[record.offset] + self._retention_ms
                self.require(horizon >= earliest, f"the horizon of {record} is {horizon}, before {earliest}")
                first = self._horizons.setdefault(record.offset, horizon)
                self.require(horizon == first, f"the horizon of {record} was {first} and is {horizon}")

    def _last_of_each_key(self) -> dict[bytes | None, Record]:
        return {record.key: record for offset, record in sorted(self._records.items()) if offset < self.end}


def records_in(data: bytes) -> Iterator[tuple[BatchHeader, list[Record]]]:
    for at, header in split_batches(data):
        batch = data[at : at + header.size]
        found = records.iterate(batch, limit_bytes=DECOMPRESSED_BYTES_MAX) if header.record_count else ()
        yield header, list(found)


class SwapObserver(Protocol):
    """Receives a call before and after cleaned segments replace others."""

    def before_swap(self) -> None: ...

    def after_swap(self) -> None: ...


class SimCleaner:
    """A cleaner process without a process."""

    def __init__(self, mount: Mount, worker: SimWorker, random: Random, witness: SwapObserver) -> None:
        self._mount = mount
        self._worker = worker
        self._random = random
        self._swap_observer = witness
        self._steps: Iterator[CleaningStep] = iter(())

    async def begin(self, job: CleaningJob) -> CleaningStep:
        self._steps = clean(self._mount, job)
        return await self._step()

    async def go_on(self) -> CleaningStep:
        self._swap_observer.after_swap()
        return await self._step()

    async def _step(self) -> CleaningStep:
        if self._random.random() < 0.02:
            raise ChildDied("it was killed")
        step = await self._worker.run(lambda: next(self._steps))
        self._swap_observer.before_swap()
        return step

    async def abandon(self) -> None:
        self._steps = iter(())

    def interrupt(self) -> None:
        """Do nothing: no topic is deleted in this simulation."""

    async def shut_down(self) -> None:
        """Do nothing: there is no process to end."""
