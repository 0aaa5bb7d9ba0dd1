"""The log against a list of batches, under whatever a hypothesis thinks of.

The model is a list; every lookup on it is a linear scan. After each step the log must say the same.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.reading.time_lookup import TimedSegment, TimeLookup, look_up
from penstock.log.retention import RetentionPolicy, segments_to_drop
from penstock.protocol import records
from penstock.protocol.batches import parse_header, split_batches
from penstock.types import Offset
from tests.unit.log.log_support import (
    FOLDER,
    NOW_MS,
    append,
    batches,
    checkpoint,
    file_at,
    flush,
    new_disk,
    new_log,
    read,
    reopened,
    truncate_to,
)

TIMES = st.integers(0, 40)
SIZES = st.sampled_from((0, 30, 120, 500))


class LogMachine(RuleBasedStateMachine):
    @initialize(
        segment_bytes=st.sampled_from((700, 2_000, 100_000)),
        index_interval_bytes=st.sampled_from((1, 150, 900)),
        cold_reads=st.sampled_from((0.0, 0.5)),
        seed=st.integers(0, 2**16),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, cold_reads: float, seed: int) -> None:
        self.settings = {"segment_bytes": segment_bytes, "index_interval_bytes": index_interval_bytes}
        self.disk = new_disk(seed)
        self.disk.disk.cold_reads = cold_reads
        self.log = new_log(self.disk, **self.settings)
        self.model: list[bytes] = []
        """Every batch that is in the log, and those that were before its start."""
        self.safe = 0
        self.sequence = 0

    # Writing

    @rule(times=st.lists(TIMES, min_size=1, max_size=4), size=SIZES, epoch_step=st.sampled_from((0, 0, 0, 1)))
    def append(self, times: list[int], size: int, epoch_step: int) -> None:
        epoch = max(int(self.log.epochs.latest), 1) + epoch_step
        base = append(
            self.log,
            [b"%d" % self.sequence + bytes(size // len(times))] * len(times),
            [NOW_MS + time for time in times],
            epoch=epoch,
            producer_id=1,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.sequence += len(times)
        assert base == self.end
        self.model.append(bytes(read(self.log, base).data))

    @precondition(lambda self: self.log.active.size_bytes > 0)
    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        flush(self.log)
        self.safe = self.end

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.log)
        self.safe = self.end

    @precondition(lambda self: self.end > self.log.log_start_offset)
    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        start = self.log.log_start_offset
        first = parse_header(self._readable()[0])
        if first.base_offset < start:  # a batch that begins before the log cannot go in part
            start = first.next_offset
        offset = start + int((self.end - start) * where)
        truncate_to(self.log, Offset(offset))
        self.model = [batch for batch in self.model if parse_header(batch).next_offset <= offset]
        self.safe = min(self.safe, self.end)
        self.sequence = self._next_sequence()

    # Removing

    @precondition(lambda self: self.end > self.log.log_start_offset)
    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        flush(self.log)
        self.safe = self.end
        start = self.log.log_start_offset
        self.log.advance_start(Offset(start + int((self.end - start) * where)))
        self.disk.store([self.log.start_file(self.log.log_start_offset)])

    @rule(keep_bytes=st.integers(0, 3_000))
    def retain(self, keep_bytes: int) -> None:
        checkpoint(self.log)
        self.safe = self.end
        facts = self.log.segment_facts()
        policy = RetentionPolicy(-1, keep_bytes, self.log.log_start_offset, self.log.log_end_offset)
        count = segments_to_drop(facts, policy, NOW_MS)
        kept_bytes = sum(fact.size_bytes for fact in facts[count:])
        if any(fact.end_offset > self.log.log_start_offset for fact in facts[:count]):
            assert kept_bytes >= keep_bytes, "no more is dropped than is too much"
        for path in self.log.drop_segments(count):
            self.disk.remove(path)

    # Ending

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = reopened(self.disk, **self.settings).log
        self.compare()

    @rule()
    def lose_power(self) -> None:
        self.disk.disk.lose_power()
        self.disk = self.disk.disk.mount()
        self.log = reopened(self.disk, **self.settings).log
        assert self.safe <= self.log.log_end_offset <= self.end
        self.model = [b for b in self.model if parse_header(b).next_offset <= self.log.log_end_offset]
        self.sequence = self._next_sequence()
        self.compare()

    @precondition(lambda self: self.disk.exists(FOLDER))
    @rule(damage=st.sampled_from(("missing", "truncated", "zeros", "noise")), which=st.integers(0, 5))
    def damage_an_index(self, damage: str, which: int) -> None:
        checkpoint(self.log)
        self.safe = self.end
        self.log.close()
        names = [name for name in self.disk.list_folder(FOLDER) if name.endswith("index")]
        if names:
            path = f"{FOLDER}/{names[which % len(names)]}"
            file = file_at(self.disk, path)
            size = file.size()
            if damage == "missing":
                self.disk.remove(path)
            elif damage == "truncated":
                file.truncate(max(size - 3, 0))
            else:
                file.write(0, bytes(size) if damage == "zeros" else b"\xff" * size)
        self.log = reopened(self.disk, **self.settings).log
        self.compare()

    # Looking

    @precondition(lambda self: self.end > self.log.log_start_offset)
    @rule(data=st.data())
    def read_anywhere(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.log.log_start_offset, self.end - 1))
        end = data.draw(st.integers(start, self.end))
        bytes_max = data.draw(st.sampled_from((0, 1, 61, 200, 1_000, 2**30)))
        at_least_one = data.draw(st.booleans())
        found = read(self.log, start, end, bytes_max, at_least_one)
        expected = [b for b in self._readable() if start < parse_header(b).next_offset]
        taken = [expected[i] for i, _ in enumerate(split_batches(found.data))]
        assert bytes(found.data) == b"".join(taken), "whole batches, in order, from the one asked for"
        assert len(found.data) <= bytes_max or (at_least_one and len(taken) == 1)
        assert all(parse_header(batch).base_offset < end for batch in taken)
        if at_least_one and start < end:
            assert taken, "a reader makes progress"
        if taken:
            assert found.next_offset == parse_header(taken[-1]).next_offset

    @rule(time=TIMES)
    def look_up_a_time(self, time: int) -> None:
        timestamp = NOW_MS + time
        log = self.log
        segments = [TimedSegment(log.view(s), s) for s in log.segments if s.size_bytes]
        lookup = TimeLookup(segments, log.log_start_offset, log.log_end_offset)
        timed = [
            (record.offset, record.timestamp)
            for batch in self._readable()
            for record in records.iterate_records(batch, limit_bytes=DECOMPRESSED_BYTES_MAX)
            if record.offset >= log.log_start_offset
        ]
        assert look_up(lookup, timestamp) == next((t for t in timed if t[1] >= timestamp), None)
        assert look_up(lookup, None) == max(timed, key=lambda entry: entry[1], default=None)

    @invariant()
    def positions_agree(self) -> None:
        log = self.log
        assert log.log_end_offset == self.end
        assert log.recovery_point <= log.flushed_end_offset <= log.log_end_offset
        epochs = [parse_header(batch) for batch in self._readable()]
        for header in epochs:
            offset = max(header.base_offset, log.log_start_offset)
            assert log.epochs.epoch_at(Offset(offset)) == header.leader_epoch

    def compare(self) -> None:
        assert batches(self.log) == self._readable()
        known = [p.last.last_sequence for key, p in self.log.producers.items() if key == 1]
        if known or self._readable():  # a producer all of whose records are gone may be forgotten
            assert known == ([self.sequence - 1] if self.sequence else [])

    @property
    def end(self) -> int:
        # An emptied log goes on from where it ended.
        return parse_header(self.model[-1]).next_offset if self.model else 0

    def _readable(self) -> list[bytes]:
        return [b for b in self.model if parse_header(b).next_offset > self.log.log_start_offset]

    def _next_sequence(self) -> int:
        return parse_header(self.model[-1]).last_sequence + 1 if self.model else 0


def test_a_cold_read_and_a_warm_read_give_the_same_bytes() -> None:
    disk = new_disk()
    log = new_log(disk)
    for number in range(30):
        append(log, [b"%d" % number * 40])
    for offset in range(30):
        warm = read(log, offset, bytes_max=500)
        disk.disk.cold_reads = 1.0
        cold = log.read(Offset(offset), log.log_end_offset, 500, at_least_one=True)
        disk.disk.cold_reads = 0.0
        assert isinstance(cold, ColdRead)
        found = cold.run().found
        assert (bytes(warm.data), warm.next_offset) == (bytes(found.data), found.next_offset)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_the_log_does_what_a_list_would = LogMachine.TestCase
