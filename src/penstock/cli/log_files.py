"""Readers for a partition's files, used by `penstock dump-log` without a broker.

Each reader yields rows and raises CorruptData at the first damage, so that the rows before the damage are
printed and the message names its position. The readers write and lock nothing. They can also read the log of
a running broker, though its last batch may be incomplete.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from penstock.cli.output import counted
from penstock.errors import CorruptData
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.checkpoint_file import parse_rows
from penstock.log.index.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from penstock.log.index.time_index import ENTRY as TIME_ENTRY
from penstock.log.leader_epochs import FILE_NAME as EPOCH_FILE
from penstock.log.partition_log import LOG_START_FILE, SNAPSHOT_SUFFIX
from penstock.log.producer_state import Producers
from penstock.log.reading.cold_reading import validate_stored_batch
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from penstock.protocol import records
from penstock.protocol.batches import HEADER_BYTES, BatchHeader, parse_header
from penstock.protocol.compression import Codec
from penstock.types import NO_TIMESTAMP

Row = dict[str, Any]
_ENTRIES_AT_ONCE: Final = 4096
_NUMBER: Final = re.compile(r"[0-9]{1,20}", re.ASCII)


class DumpOptions(NamedTuple):
    with_records: bool = False
    """Yield a row for each record after the row of its batch."""
    open_batches: bool = False
    """Decode every record, even if none is printed."""


class LogFileBatch(NamedTuple):
    position: int
    header: BatchHeader
    data: bytes


def is_log_file(path: Path) -> bool:
    return _reader_of(path) is not None


def rows_of(path: Path, options: DumpOptions) -> Iterator[Row]:
    """Yield the rows of a file; raises CorruptData at damage, ValueError if this is no log file."""
    reader = _reader_of(path)
    if reader is None:
        raise ValueError(f"{path.name} is no file of a log")
    yield from reader(path, options)


def batches_of(path: Path) -> Iterator[LogFileBatch]:
    """Yield complete batches, with their checksum and offset order verified."""
    size = path.stat().st_size
    with path.open("rb") as file:
        position, expected = 0, _offset_named(path)
        while position < size:
            batch = _batch_at(file, position, size)
            # Gaps are valid (compaction); only offsets that go back are damage.
            if batch.header.base_offset < expected:
                found = batch.header.base_offset
                raise CorruptData(f"at position {position}: offset {found} where {expected} or more belongs")
            yield batch
            expected = batch.header.next_offset
            position += batch.header.size


def _batch_at(file: BinaryIO, position: int, size: int) -> LogFileBatch:
    file.seek(position)
    head = file.read(HEADER_BYTES)
    try:
        header = parse_header(head)
        if position + header.size > size:
            missing = counted(position + header.size - size, "byte")
            raise CorruptData(f"the file ends inside this batch, {missing} short")
        data = head + file.read(header.size - HEADER_BYTES)
        validate_stored_batch(data, header, 0, f"{header.size} bytes")
    except CorruptData as damage:
        raise CorruptData(f"at position {position}: {damage}") from damage
    return LogFileBatch(position, header, data)


def _log_rows(path: Path, options: DumpOptions) -> Iterator[Row]:
    for batch in batches_of(path):
        yield _batch_row(batch)
        if options.with_records:
            yield from map(_record_row, _records_of(batch))
        elif options.open_batches:
            for _ in _records_of(batch):
                pass


def _records_of(batch: LogFileBatch) -> Iterator[records.Record]:
    try:
        yield from records.iterate_records(batch.data, limit_bytes=DECOMPRESSED_BYTES_MAX)
    except CorruptData as damage:
        raise CorruptData(f"at position {batch.position}: {damage}") from damage


def _batch_row(batch: LogFileBatch) -> Row:
    header = batch.header
    return {
        "type": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "position": batch.position,
        "bytes": header.size,
        "codec": Codec(header.codec).name.lower(),
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "append" if header.has_log_append_time else "create",
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }


def _record_row(record: records.Record) -> Row:
    return {"type": "record", **record._asdict()}


def _index_rows(path: Path, _: DumpOptions) -> Iterator[Row]:
    base = _offset_named(path)
    before = (-1, -1)
    for at, entry in _entries(path, INDEX_ENTRY_BYTES):
        relative, position = int.from_bytes(entry[:4]), int.from_bytes(entry[4:])
        if relative <= before[0] or position <= before[1]:
            raise CorruptData(f"at position {at}: the entries do not ascend")
        before = relative, position
        yield {"type": "index", "offset": base + relative, "position": position}


def _time_index_rows(path: Path, _: DumpOptions) -> Iterator[Row]:
    base = _offset_named(path)
    before = (-1, -1)
    for at, entry in _entries(path, TIME_ENTRY.size):
        timestamp, relative = TIME_ENTRY.unpack(entry)
        if timestamp <= before[0] or relative <= before[1]:
            raise CorruptData(f"at position {at}: the entries do not ascend")
        before = timestamp, relative
        yield {"type": "timeindex", "timestamp": timestamp, "offset": base + relative}


def _entries(path: Path, entry_bytes: int) -> Iterator[tuple[int, bytes]]:
    position = 0
    with path.open("rb") as file:
        while chunk := file.read(entry_bytes * _ENTRIES_AT_ONCE):
            whole = len(chunk) - len(chunk) % entry_bytes
            for at in range(0, whole, entry_bytes):
                yield position + at, chunk[at : at + entry_bytes]
            position += whole
            if whole < len(chunk):
                raise CorruptData(f"at position {position}: the file ends inside an entry")


def _snapshot_rows(path: Path, _: DumpOptions) -> Iterator[Row]:
    for producer_id, producer in Producers.from_bytes(path.read_bytes()).items():
        for batch in producer.batches:
            yield {
                "type": "producer",
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "first_sequence": batch.first_sequence,
                "last_sequence": batch.last_sequence,
                "last_offset": batch.last_offset,
                "timestamp": batch.timestamp,
            }


def _epoch_rows(path: Path, _: DumpOptions) -> Iterator[Row]:
    before = (-1, -1)
    for epoch, start in parse_rows(path.read_bytes(), path.name, columns=2):
        if epoch <= before[0] or start <= before[1]:
            raise CorruptData(f"epoch {epoch} from offset {start} follows epoch {before[0]} from {before[1]}")
        before = epoch, start
        yield {"type": "epoch", "leader_epoch": epoch, "start_offset": start}


def _start_rows(path: Path, _: DumpOptions) -> Iterator[Row]:
    for (start,) in parse_rows(path.read_bytes(), path.name, columns=1):
        yield {"type": "log-start", "start_offset": start}


RowReader = Callable[[Path, DumpOptions], Iterator[Row]]
_BY_SUFFIX: Final[dict[str, RowReader]] = {
    LOG_SUFFIX: _log_rows,
    INDEX_SUFFIX: _index_rows,
    TIME_INDEX_SUFFIX: _time_index_rows,
    SNAPSHOT_SUFFIX: _snapshot_rows,
}
_BY_NAME: Final[dict[str, RowReader]] = {EPOCH_FILE: _epoch_rows, LOG_START_FILE: _start_rows}


def _reader_of(path: Path) -> RowReader | None:
    return _BY_NAME.get(path.name) or (_BY_SUFFIX.get(path.suffix) if _NUMBER.fullmatch(path.stem) else None)


def _offset_named(path: Path) -> int:
    return int(path.stem)


# Comparison of indexes with their log


def index_problems(path: Path) -> Iterator[str]:
    """Yield the entries of a segment's indexes that contradict the .log file.

    A missing index is no problem: the broker rebuilds it.
    """
    positions = {row["offset"]: row["position"] for row in _rows_beside(path, INDEX_SUFFIX)}
    times = {row["offset"]: row["timestamp"] for row in _rows_beside(path, TIME_INDEX_SUFFIX)}
    newest = NO_TIMESTAMP
    for batch in batches_of(path):
        last_offset, newest = batch.header.last_offset, max(newest, batch.header.max_timestamp)
        if positions.get(last_offset) == batch.position:
            del positions[last_offset]
        if times.get(last_offset) == newest:
            del times[last_offset]
    # Entries that matched a batch were deleted above; the remaining ones match none.
    for offset, position in positions.items():
        yield f"{path.stem}{INDEX_SUFFIX}: no batch at position {position} ends with offset {offset}"
    for offset, timestamp in times.items():
        yield f"{path.stem}{TIME_INDEX_SUFFIX}: the newest time up to offset {offset} is not {timestamp}"


def _rows_beside(path: Path, suffix: str) -> Iterator[Row]:
    beside = path.with_suffix(suffix)
    if beside.exists():
        yield from rows_of(beside, DumpOptions())
