"""Transactions of a log against a list of what was written, under whatever a hypothesis thinks of.

The model is a list of batches and markers. From it follow the last stable offset, the aborted transactions
and what a reader of committed records delivers from any offset. The log must say the same after each step.
"""

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.log.retention import RetentionPolicy, segments_to_drop
from penstock.log.segment import TXN_INDEX_SUFFIX
from penstock.log.transactions.aborted_index import CHECKPOINT_NAME
from penstock.protocol.batches import parse_header
from penstock.protocol.control_batches import EndTransactionMarker, marker_batch
from penstock.protocol.records import Record, build_batch
from penstock.types import LeaderEpoch, Offset, ProducerId
from tests.unit.log.compaction.compaction_support import compact, dirt_of, job_of
from tests.unit.log.log_support import (
    FOLDER,
    NOW_MS,
    checkpoint,
    file_at,
    flush,
    new_disk,
    new_log,
    reopened,
    truncate_to,
)
from tests.unit.log.transactions.transaction_support import committed_records, stable_end

KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3)


class Step(NamedTuple):
    """Something to write: a batch, or a marker if it has no keys."""

    producer: int
    keys: list[bytes]
    is_commit: bool
    raises_epoch: bool


STEPS = st.builds(Step, st.integers(0, 4), st.one_of(st.just([]), KEYS), st.booleans(), st.booleans())


class Entry(NamedTuple):
    """A batch, or a marker if it has no keys."""

    offset: int
    producer: int
    """0: an ordinary batch without a producer."""
    epoch: int
    sequence: int
    keys: list[bytes]
    is_commit: bool = False

    @property
    def end(self) -> int:
        return self.offset + max(len(self.keys), 1)


class Transaction(NamedTuple):
    producer: int
    first: int
    last: int | None
    """Offset of the marker; None: open."""
    is_commit: bool = False


def transactions_of(entries: list[Entry]) -> list[Transaction]:
    opened: dict[int, int] = {}
    found = []
    for entry in entries:
        if entry.producer == 0:
            continue
        if entry.keys:
            opened.setdefault(entry.producer, entry.offset)
        elif entry.producer in opened:
            first = opened.pop(entry.producer)
            found.append(Transaction(entry.producer, first, entry.offset, entry.is_commit))
    return found + [Transaction(producer, first, None) for producer, first in opened.items()]


class TransactionMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from((400, 900, 100_000)),
        index_interval_bytes=st.sampled_from((1, 150)),
        cold_reads=st.sampled_from((0.0, 0.5)),
        seed=st.integers(0, 2**16),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, cold_reads: float, seed: int) -> None:
        self.settings = {"segment_bytes": segment_bytes, "index_interval_bytes": index_interval_bytes}
        self.disk = new_disk(seed)
        self.disk.disk.cold_reads = cold_reads
        self.log = new_log(self.disk, **self.settings)
        self.entries: list[Entry] = []
        self.forgotten: list[Entry] = []
        """Entries that retention removed, and that no snapshot covers any more."""
        self.high = 0
        """The high watermark."""
        self.clean_to = 0
        self.removed: set[int] = set()
        """Offsets of records that a cleaning removed."""
        self.has_all_rows = True
        """Whether nothing has happened yet that may remove or shorten rows of the index."""
        self.now_ms = NOW_MS + 1_000

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else self._end_without_entries

    _end_without_entries = 0

    def position(self, producer: int) -> tuple[int, int]:
        """Epoch and next sequence of a producer."""
        mine = [entry for entry in self.entries if entry.producer == producer]
        if not mine:
            return 0, 0
        epoch = mine[-1].epoch
        numbers = [e.sequence + len(e.keys) for e in mine if e.keys and e.epoch == epoch]
        return epoch, numbers[-1] if numbers else 0

    # Writing

    @rule(steps=st.lists(STEPS, min_size=1, max_size=10), segments=st.booleans())
    def write(self, steps: list[Step], segments: bool) -> None:
        """`segments`: a new segment begins behind them."""
        for step in steps:
            epoch, sequence = self.position(step.producer)
            if step.keys:
                self._append(Entry(self.end, step.producer, epoch, sequence, step.keys))
            elif step.producer:
                self._end_transaction(step.producer, step.is_commit, step.raises_epoch)
        if segments and self.log.active.size_bytes:
            self.log.roll()

    def _end_transaction(self, producer: int, is_commit: bool, raises_epoch: bool) -> None:
        epoch, _ = self.position(producer)
        entry = Entry(self.end, producer, epoch + raises_epoch, -1, [], is_commit)
        marker = EndTransactionMarker(ProducerId(producer), entry.epoch, is_commit, 0)
        opened = [each.first for each in self.transactions if each.producer == producer and each.last is None]
        is_open = any(first >= self.clean_to for first in opened)
        if not self.log.producers.check_marker(marker, must_be_newer=raises_epoch):
            assert not is_open, "an open transaction is ended by its marker"
            return
        batch = marker_batch(marker, NOW_MS)
        assert self.log.append(batch, parse_header(batch), LeaderEpoch(1)) == self.end
        self.entries.append(entry)

    def _append(self, entry: Entry) -> None:
        records = [Record(Offset(0), NOW_MS, key, b"%d" % entry.offset) for key in entry.keys]
        if entry.producer:
            batch = build_batch(
                records,
                producer_id=entry.producer,
                producer_epoch=entry.epoch,
                base_sequence=entry.sequence,
                transactional=True,
            )
        else:
            batch = build_batch(records)
        header = parse_header(batch)
        if entry.producer:
            assert self.log.producers.check(header) is None
        assert self.log.append(bytearray(batch), header, LeaderEpoch(1)) == entry.offset
        self.entries.append(entry)

    @rule(where=st.floats(0, 1))
    def replicate(self, where: float) -> None:
        flush(self.log)
        ends = [self.high, *(entry.end for entry in self.entries if entry.end > self.high)]
        self.high = ends[int((len(ends) - 1) * where)]
        self.log.transactions.settle(Offset(self.high))

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.log)

    @precondition(lambda self: self.end > max(self.log.log_start_offset, self.clean_to, self.high))
    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        start = max(self.log.log_start_offset, self.clean_to, self.high)
        offset = start + int((self.end - start) * where)
        if any(entry.offset < start < entry.end for entry in self.entries):
            return  # a batch that begins before the log start cannot go in part
        base = self.log.segments[0].base_offset
        keeps_snapshot = any(base <= snapshot <= offset for snapshot in self.log.snapshots)
        truncate_to(self.log, Offset(offset))
        self._cut(offset)
        if not keeps_snapshot:
            self._forget_before(base)

    def _cut(self, offset: int) -> None:
        self._end_without_entries = self.log.log_end_offset
        self.entries = [entry for entry in self.entries if entry.end <= offset]
        assert self.end == self.log.log_end_offset
        self.high = min(self.high, self.end)
        self.log.transactions.settle(Offset(self.high))  # as `Partition.truncated` does

    def _forget_before(self, offset: int) -> None:
        """The log was replayed from its first segment."""
        self._end_without_entries = self.log.log_end_offset
        self.forgotten += [entry for entry in self.entries if entry.offset < offset]
        self.entries = [entry for entry in self.entries if entry.offset >= offset]
        self.has_all_rows = False

    # Removing

    @precondition(lambda self: self.high > self.log.log_start_offset)
    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        start = self.log.log_start_offset
        self.log.advance_start(Offset(start + int((self.high - start) * where)))
        self.disk.store([self.log.start_file(self.log.log_start_offset)])

    @rule(keep_bytes=st.integers(0, 3_000))
    def retain(self, keep_bytes: int) -> None:
        checkpoint(self.log)
        policy = RetentionPolicy(-1, keep_bytes, self.log.log_start_offset, Offset(self.high))
        count = segments_to_drop(self.log.segment_facts(), policy, NOW_MS)
        for path in self.log.drop_segments(count):
            self.disk.remove(path)

    @rule(memory_bytes=st.sampled_from((200, 1 << 20)), wait_ms=st.sampled_from((0, 200)))
    def clean(self, memory_bytes: int, wait_ms: int) -> None:
        checkpoint(self.log)
        self.now_ms += wait_ms
        stable = stable_end(self.log, self.high)
        base = self.log.segments[0].base_offset
        clean_to = self.clean_to if self.clean_to >= base else None
        if dirt_of(self.log, clean_to, stable).dirty_bytes == 0:
            return
        job = job_of(
            self.log,
            clean_to,
            now_ms=self.now_ms,
            delete_retention_ms=100,
            memory_bytes=memory_bytes,
            stable_end=stable,
        )
        cleaned = compact(self.log, job)
        assert cleaned.end_offset <= stable, "nothing undecided is cleaned"
        self.clean_to = cleaned.end_offset
        self.has_all_rows = False
        before = [record for record in self._committed(base) if record[0] < cleaned.end_offset]
        last = {key: offset for offset, key in before}
        self.removed |= {offset for offset, key in before if last[key] != offset}

    # Ending

    @rule()
    def restart(self) -> None:
        flush(self.log)
        self.log.close()
        self._reopen()

    @rule()
    def lose_power(self) -> None:
        flush(self.log)
        self.disk.disk.lose_power()
        self.disk = self.disk.disk.mount()
        self._reopen()

    @precondition(lambda self: self.disk.exists(FOLDER))
    @rule(damage=st.sampled_from(("missing", "shorter", "zeros", "noise")), which=st.integers(0, 5))
    def damage_an_index(self, damage: str, which: int) -> None:
        checkpoint(self.log)
        self.log.close()
        files = self.disk.list_folder(FOLDER)
        names = [name for name in files if name.endswith(TXN_INDEX_SUFFIX) or name == CHECKPOINT_NAME]
        if names:
            self.has_all_rows = False
            path = f"{FOLDER}/{names[which % len(names)]}"
            file = file_at(self.disk, path)
            size = file.size()
            if damage == "missing":
                self.disk.remove(path)
            elif damage == "shorter":
                file.truncate(max(size - 3, 0))
            else:
                file.write(0, bytes(size) if damage == "zeros" else b"\xff" * size)
        self._reopen()

    def _reopen(self) -> None:
        self.log = reopened(self.disk, **self.settings).log
        assert self.log.log_end_offset == self.end
        flush(self.log)
        # The only replica: what is on its disk is committed.
        self.high = self.end
        self.log.transactions.settle(Offset(self.high))

    # What must hold

    @property
    def transactions(self) -> list[Transaction]:
        return transactions_of(self.entries)

    @property
    def stable(self) -> int:
        return self._stable(self.transactions)

    def _stable(self, transactions: list[Transaction]) -> int:
        unsettled = [each.first for each in transactions if each.last is None or each.last >= self.high]
        start = self.log.log_start_offset
        return min([self.high, *(max(first, start) for first in unsettled)])

    def _committed(self, start: int) -> list[tuple[int, bytes]]:
        """Offset and key of every record that is left and belongs to no aborted transaction."""
        lost = [each for each in self.transactions if each.last is not None and not each.is_commit]

        def is_aborted(entry: Entry) -> bool:
            return any(
                entry.producer == each.producer and each.first <= entry.offset < (each.last or 0)
                for each in lost
            )

        return [
            (entry.offset + number, key)
            for entry in self.entries
            if not is_aborted(entry)
            for number, key in enumerate(entry.keys)
            if entry.offset + number >= start and entry.offset + number not in self.removed
        ]

    @invariant()
    def the_last_stable_offset_agrees(self) -> None:
        first = self.log.transactions.first_unstable_offset
        start = self.log.log_start_offset
        found = min([self.high, *([] if first is None else [max(first, start)])])
        # The log may know, and need not know, that a transaction began before its first segment.
        least = self._stable(transactions_of(self.forgotten + self.entries))
        # An open transaction that begins below the log start may be cleaned: nothing of it can be read. Its
        # producer is known until a truncation goes back to where only the cleaned batches say so.
        most = self._stable([each for each in self.transactions if each.first >= self.clean_to])
        assert least <= found <= most

    @invariant()
    def the_aborted_transactions_agree(self) -> None:
        base = self.log.segments[0].base_offset
        expected = {
            (each.producer, each.last): each.first
            for each in self.transactions
            if each.last is not None and not each.is_commit and each.last >= base
        }
        rows = {
            (entry.producer_id, entry.last_offset): entry.first_offset
            for entry in self.log.transactions.aborted.entries()
        }
        if self.has_all_rows:
            assert rows == expected
        assert all(key in expected and first >= expected[key] for key, first in rows.items())

    @invariant()
    def readers_of_committed_records_get_them_all(self) -> None:
        self._compare_reads(self.log.log_start_offset, 2**30)

    @precondition(lambda self: self.stable > self.log.log_start_offset)
    @rule(where=st.floats(0, 1), bytes_max=st.sampled_from((1, 150, 400)))
    def read_committed(self, where: float, bytes_max: int) -> None:
        start = self.log.log_start_offset
        self._compare_reads(start + int((self.stable - start) * where), bytes_max)

    def _compare_reads(self, offset: int, bytes_max: int) -> None:
        found = committed_records(self.log, offset, self.stable, bytes_max)
        # A reply begins with the batch that holds the offset; a client drops the records before it.
        seen = [(record.offset, record.key) for record in found if record.offset >= offset]
        assert seen == [each for each in self._committed(offset) if each[0] < self.stable]


TransactionMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
test_the_log_knows_the_transactions_of_a_list = TransactionMachine.TestCase
