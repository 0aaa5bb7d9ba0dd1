"""Indexes that were written while `index.interval.bytes` had no bound. No read walks far because of them."""

import pytest

from penstock.limits import INDEX_INTERVAL_BYTES_MAX
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import ColdRead
from penstock.protocol.batches import HEADER_BYTES
from penstock.sim.disk import Mount, SimFile
from penstock.types import Offset
from tests.unit.log.log_support import append, checkpoint, new_disk, new_log, reopened

BATCHES = 5_000
SEGMENT_BYTES = 3 * INDEX_INTERVAL_BYTES_MAX
UNBOUNDED = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 2**31 - 1}
BOUNDED = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": INDEX_INTERVAL_BYTES_MAX}
HEADERS_MAX = INDEX_INTERVAL_BYTES_MAX // HEADER_BYTES + 2


def filled(disk: Mount, value: bytes = b"x", batches: int = BATCHES) -> PartitionLog:
    log = new_log(disk, **UNBOUNDED)
    for _ in range(batches):
        append(log, [value])
    checkpoint(log)
    return log


def cold_read(log: PartitionLog, offset: int) -> int:
    """Reads one batch as a worker thread does. Returns how many headers were passed on the way."""
    segment = log.segment_holding(Offset(offset))
    end = log.log_end_offset
    passed = 0
    read = SimFile.read

    def counting(file: SimFile, position: int, length: int) -> bytes:
        nonlocal passed
        passed += length == HEADER_BYTES
        return read(file, position, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimFile, "read", counting)
        result = ColdRead(log.view(segment), Offset(offset), end, 1, at_least_one=True).run()
    assert result.found.next_offset == offset + 1
    for loaded in result.loaded:
        log.keep_indexes(loaded)
    return passed


def test_a_sparse_index_of_a_sealed_segment_is_made_anew_once() -> None:
    disk = new_disk()
    filled(disk)
    log = reopened(disk, **BOUNDED).log
    assert len(log.segments) > 1
    last = log.segments[1].base_offset - 1
    cold_read(log, last)
    assert cold_read(log, last) <= HEADERS_MAX
    append(log, [b"x"])
    checkpoint(log)
    again = reopened(disk, **BOUNDED).log
    assert cold_read(again, last) <= 2 * HEADERS_MAX, "to the batch, and to see that the index is dense"


def test_a_sparse_index_of_the_last_segment_is_made_anew_when_the_log_is_opened() -> None:
    disk = new_disk()
    log = new_log(disk, segment_bytes=2**30, index_interval_bytes=2 * SEGMENT_BYTES)
    for _ in range(3 * BATCHES):
        append(log, [b"x"])
    checkpoint(log)
    assert len(log.active.index) > 0, "a start believes the entries that there are"
    log = reopened(disk, segment_bytes=2**30, index_interval_bytes=INDEX_INTERVAL_BYTES_MAX).log
    for offset in (BATCHES, 2 * BATCHES, 3 * BATCHES - 1):
        assert cold_read(log, offset) <= HEADERS_MAX


@pytest.mark.parametrize(
    "value_bytes", [INDEX_INTERVAL_BYTES_MAX // 2, INDEX_INTERVAL_BYTES_MAX + 1, 150_000]
)
def test_an_index_is_not_sparse_because_batches_are_large(value_bytes: int) -> None:
    disk = new_disk()
    log = new_log(disk, **BOUNDED)
    for _ in range(20):
        append(log, [bytes(value_bytes)])
    checkpoint(log)
    log = reopened(disk, **BOUNDED).log
    for segment in log.segments[:-1]:
        file = disk.open(segment.path())
        assert log.view(segment).load_indexes(file).are_stored
        file.release()


def test_a_damaged_header_is_left_to_whoever_reads_it() -> None:
    disk = new_disk()
    filled(disk)
    log = reopened(disk, **BOUNDED).log
    file = disk.open(log.segments[0].path())
    file.write(10_000 // 69 * 69, b"\xff" * 69)
    assert log.view(log.segments[0]).load_indexes(file).are_stored
