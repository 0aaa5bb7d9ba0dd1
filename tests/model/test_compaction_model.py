"""Compaction against a list of records, under whatever a hypothesis thinks of.

The model keeps every record that was ever written and, after each cleaning, those that must be left:
the last of each key, and tombstones until their horizon. After each step the log must hold exactly
those, at their offsets, with their times, however they are read.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.log.partition_log import PartitionLog
from penstock.log.reading.time_lookup import TimedSegment, TimeLookup, look_up
from penstock.protocol.batches import parse_header
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record
from penstock.types import Offset
from tests.unit.log.compaction.compaction_support import (
    Put,
    compact,
    dirt_of,
    job_of,
    put,
    read_records,
    records_of,
)
from tests.unit.log.log_support import NOW_MS, batches, checkpoint, new_disk, new_log, read, reopened

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e" * 200, b""])
VALUES = st.one_of(st.none(), st.binary(max_size=40))
PUTS = st.lists(st.builds(Put, KEYS, VALUES, st.integers(NOW_MS, NOW_MS + 40)), min_size=1, max_size=6)
PRODUCERS = st.sampled_from([None, 1, 2, 3])
RETENTION_MS = 100


class CompactionMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from((300, 700, 2_000)),
        index_interval_bytes=st.sampled_from((1, 150, 900)),
        seed=st.integers(0, 2**16),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, seed: int) -> None:
        self.settings = {"segment_bytes": segment_bytes, "index_interval_bytes": index_interval_bytes}
        self.disk = new_disk(seed)
        self.log = new_log(self.disk, **self.settings)
        self.history: list[Record] = []
        self.left: list[Record] = []
        self.sequences: dict[int, int] = {}
        self.first_cleaned_ms: dict[int, int] = {}
        """When the first cleaning passed a tombstone, by its offset."""
        self.clean_to = 0
        self.now_ms = NOW_MS + 1_000

    # Writing

    @rule(
        puts=PUTS,
        codec=st.sampled_from(list(Codec)),
        producer=PRODUCERS,
        append_time=st.booleans(),
    )
    def write(self, puts: list[Put], codec: Codec, producer: int | None, append_time: bool) -> None:
        options: dict[str, object] = {"codec": codec}
        if producer is not None:
            first = self.sequences.get(producer, 0)
            options |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": first}
            self.sequences[producer] = first + len(puts)
        if append_time:
            options["log_append_time_ms"] = NOW_MS + 20
        written = put(self.log, puts, **options)
        if append_time:
            written = [record._replace(timestamp=NOW_MS + 20) for record in written]
        self.history += written
        self.left += written

    @precondition(lambda self: self.log.active.size_bytes > 0)
    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.log)

    @rule(ms=st.sampled_from((1, 60, 150)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    # Cleaning

    @rule(memory_bytes=st.sampled_from((80, 400, 1 << 20)), forgets=st.sampled_from((False, False, True)))
    def clean(self, memory_bytes: int, forgets: bool) -> None:
        """`forgets`: the note of how far the log is clean was lost."""
        checkpoint(self.log)
        clean_to = None if forgets else self.clean_to
        log_to_clean = dirt_of(self.log, clean_to)
        if log_to_clean.dirty_bytes == 0:
            return
        job = job_of(
            self.log,
            clean_to,
            now_ms=self.now_ms,
            delete_retention_ms=RETENTION_MS,
            memory_bytes=memory_bytes,
        )
        cleaned = compact(self.log, job)
        assert log_to_clean.first_dirty_offset < cleaned.end_offset <= log_to_clean.end_offset
        self.clean_to = cleaned.end_offset
        self._clean_model(cleaned.end_offset)

    def _clean_model(self, end_offset: int) -> None:
        last = {record.key: record.offset for record in self.left if record.offset < end_offset}
        self.left = [
            record
            for record in self.left
            if record.offset >= end_offset or (last[record.key] == record.offset and self._outlives(record))
        ]

    def _outlives(self, record: Record) -> bool:
        if record.value is not None:
            return True
        first_ms = self.first_cleaned_ms.setdefault(record.offset, self.now_ms)
        return first_ms == self.now_ms or self.now_ms < first_ms + RETENTION_MS

    # Ending

    @rule()
    def lose_power(self) -> None:
        checkpoint(self.log)
        self.disk.disk.lose_power()
        self.disk = self.disk.disk.mount()
        self._reopen()

    @rule(loses_snapshots=st.booleans())
    def restart(self, loses_snapshots: bool) -> None:
        """Without a snapshot the producers are learned again from what is left of their batches."""
        checkpoint(self.log)
        self.log.close()
        if loses_snapshots:
            for offset in self.log.snapshots:
                self.disk.remove(self.log.snapshot_path(offset))
        self._reopen()

    def _reopen(self) -> None:
        before = self._producers()
        self.log = reopened(self.disk, **self.settings).log
        assert self._producers() == before
        assert self.log.log_end_offset == len(self.history)

    def _producers(self) -> dict[int, tuple[int, int]]:
        return {
            producer_id: (producer.last.last_sequence, producer.last.last_offset)
            for producer_id, producer in self.log.producers.items()
        }

    # What must hold

    @invariant()
    def the_log_holds_what_the_model_does(self) -> None:
        assert records_of(self.log) == self.left

    @invariant()
    def the_last_value_of_each_key_is_what_was_written_last(self) -> None:
        assert _values(self.left) == _values(self.history)

    @invariant()
    def offsets_have_no_hole(self) -> None:
        expected = 0
        for batch in batches(self.log):
            header = parse_header(batch)
            assert header.base_offset == expected
            expected = header.next_offset
        assert expected == self.log.log_end_offset == len(self.history)

    @precondition(lambda self: self.history)
    @rule(where=st.floats(0, 1), limit=st.sampled_from((1, 200, 2**30)))
    def read_from_anywhere(self, where: float, limit: int) -> None:
        start = int(where * (len(self.history) - 1))
        expected = next((record for record in self.left if record.offset >= start), None)
        assert _first_record(self.log, start, limit) == expected

    @rule(time_ms=st.integers(NOW_MS - 1, NOW_MS + 41))
    def look_up_a_time(self, time_ms: int) -> None:
        segments = [TimedSegment(self.log.view(s), s) for s in self.log.segments if s.size_bytes]
        lookup = TimeLookup(segments, self.log.log_start_offset, self.log.log_end_offset)
        expected = next((record for record in self.left if record.timestamp >= time_ms), None)
        found = look_up(lookup, time_ms)
        assert found == (None if expected is None else (expected.offset, expected.timestamp))
        newest = max(self.left, key=lambda record: record.timestamp, default=None)
        found = look_up(lookup, None)
        assert found == (None if newest is None else (newest.offset, newest.timestamp))

    @rule()
    def nothing_is_left_lying_about(self) -> None:
        if self.disk.exists(self.log.folder):
            names = self.disk.list_folder(self.log.folder)
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


def _values(records: list[Record]) -> dict[bytes | None, bytes]:
    newest = {record.key: record.value for record in records}
    return {key: value for key, value in newest.items() if value is not None}


def _first_record(log: PartitionLog, start: int, limit: int) -> Record | None:
    offset = Offset(start)
    while offset < log.log_end_offset:
        found = read(log, offset, bytes_max=limit)
        header = parse_header(bytes(found.data))
        for record in read_records(bytes(found.data)[: header.size]):
            if record.offset >= start:
                return record
        assert header.next_offset > offset, "a reader must get on"
        offset = header.next_offset
    return None


TestCompaction = CompactionMachine.TestCase
TestCompaction.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
