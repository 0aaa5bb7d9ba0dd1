"""Decoding of record batches to Arrow, many records at a time.

    fetched   the batches of one fetch                   wire/range_fetcher.py
    table     the headers of its batches, as columns     batch_table.py
    groups    payloads in one buffer, decompressed       payload_groups.py
    framed    where each record begins and ends          record_starts.py
    rows      where each field is, all validated         rows.py, record_headers.py, varints.py
    result    the selected columns, extracted            binary_extraction.py

Python code runs a few times for each batch and never for a single record, unless lengths are unusual.

Rule 1: The result is that of protocol/records.py, or CorruptData.
Rule 2: Memory is bounded by a group of batches, which is limited in bytes, and by a block of its rows.
Rule 3: The last result of `decode` contains the offset that the fetch reached, even if it has no rows:
        gaps, markers and aborted transactions are progress too.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from penstock.limits import DECOMPRESSED_BYTES_MAX, INT_MAX
from penstock.protocol.batches import HEADER_BYTES
from penstock.spark.records.aborted import AbortedTransaction, AbortedTransactions
from penstock.spark.records.batch_table import BatchTable, check_crcs, read_table
from penstock.spark.records.binary_extraction import extract_strings
from penstock.spark.records.payload_groups import payload_groups
from penstock.spark.records.record_headers import HEADERS_TYPE, headers_array, no_headers
from penstock.spark.records.record_starts import (
    LANE_SIZES,
    LaneSizes,
    Payloads,
    RecordSpans,
    frame_records,
)
from penstock.spark.records.rows import BatchRows, Rows, read_rows
from penstock.types import Offset, ProducerId

ROWS_AT_ONCE_MAX = 32_768
"""Columns of this many numbers stay in a core's cache while they are processed."""


class ColumnSelection(NamedTuple):
    """The selected columns. The offset is always included."""

    key: bool = True
    value: bool = True
    headers: bool = True
    timestamp: bool = True
    timestamp_type: bool = True


class DecodedRecords(NamedTuple):
    """Records as columns. Columns that were not selected are None."""

    offsets: pa.Int64Array
    timestamps_ms: pa.Int64Array | None
    timestamp_types: pa.Int32Array | None
    """0 if the producer set the timestamp, 1 if the broker did."""
    keys: pa.BinaryArray | None
    values: pa.BinaryArray | None
    headers: pa.ListArray | None
    next_offset: Offset
    """Every record below this offset has been returned or does not exist."""


class FetchedData(Protocol):
    """Batches of one fetch and its aborted transactions: what decoding needs of `FetchedBatches`."""

    @property
    def data(self) -> memoryview: ...

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]: ...


class RecordBatchDecoder:
    """Decoder of one partition, for one fetch after the other."""

    def __init__(
        self,
        columns: ColumnSelection,
        *,
        read_committed: bool,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
        lanes: LaneSizes = LANE_SIZES,
    ) -> None:
        assert 0 < decompressed_bytes_max <= INT_MAX // 2, "Arrow's offsets have 31 bits"
        self._columns = columns
        self._lanes = lanes
        self._aborted = AbortedTransactions() if read_committed else None
        self._decompressed_bytes_max = decompressed_bytes_max

    def decode(self, fetched: FetchedData, start: Offset, end: Offset) -> Iterator[DecodedRecords]:
        """The records with start <= offset < end, without markers and aborted records.

        An incomplete last batch is ignored. Raises CorruptData.
        """
        view = fetched.data.cast("B") if fetched.data.format != "B" else fetched.data
        if len(view) < HEADER_BYTES:
            return
        table = read_table(view, np.frombuffer(view, np.uint8))
        if not table.size:
            return
        reached = Offset(min(end, int(table.next_offset[-1])))
        table = table.where((table.next_offset > start) & (table.base_offset < end))
        # Only batches in the range are checked. Other tasks check the rest.
        check_crcs(view, table)
        # One result is held back, because only the last one gets the offset that the fetch reached.
        held: DecodedRecords | None = None
        for decoded in self._decode_groups(view, self._with_records(table, fetched.aborted), start, end):
            if held is not None:
                yield held
            held = decoded
        if held is not None:
            yield held._replace(next_offset=reached)
        elif reached > start:
            yield self._empty(reached)

    def _decode_groups(
        self, view: memoryview, table: BatchTable, start: Offset, end: Offset
    ) -> Iterator[DecodedRecords]:
        for batches, payloads in payload_groups(
            view, table, decompressed_bytes_max=self._decompressed_bytes_max
        ):
            framed = frame_records(payloads, self._lanes)
            buffer = pa.py_buffer(payloads.view)
            rows_of = BatchRows(batches)
            blocks = -(-rows_of.count // ROWS_AT_ONCE_MAX)
            borders = np.linspace(0, rows_of.count, blocks + 1).astype(int).tolist()
            for first, last in pairwise(borders):
                rows = _block(payloads, framed, rows_of, slice(first, last))
                wanted = slice(*np.searchsorted(rows.offset, (start, end)).tolist())
                if wanted.start < wanted.stop:
                    yield self._cut(buffer, rows, wanted)

    def _with_records(self, table: BatchTable, aborted: tuple[AbortedTransaction, ...]) -> BatchTable:
        """The batches with records to return."""
        # A batch without records and without bytes was emptied by compaction.
        chosen = ~table.is_control & ((table.record_count > 0) | (table.end - table.position > HEADER_BYTES))
        if self._aborted is None or not table.size:
            return table.where(chosen)
        first, last = Offset(int(table.base_offset[0])), Offset(int(table.next_offset[-1]))
        self._aborted.take_reply(aborted, start=first, end=last)
        # Only these batches are processed one by one, in log order, because a marker ends a transaction.
        for batch in (table.is_transactional | table.is_control).nonzero()[0].tolist():
            producer, offset = (
                ProducerId(int(table.producer_id[batch])),
                Offset(int(table.next_offset[batch]) - 1),
            )
            if table.is_control[batch]:
                self._aborted.end_transaction(producer, offset)
            elif self._aborted.is_aborted(producer, offset):
                chosen[batch] = False
        return table.where(chosen)

    def _cut(self, buffer: pa.Buffer, rows: Rows, wanted: slice) -> DecodedRecords:
        columns = self._columns
        offsets = rows.offset[wanted]
        count = len(offsets)
        headers = None
        if columns.headers:
            headers = no_headers(count)
            if rows.headers is not None:
                headers = headers_array(buffer, rows.headers).slice(wanted.start, count)
        types = np.zeros(count, np.int32)
        if rows.is_append_time is not None:
            types[:] = rows.is_append_time[wanted]
        return DecodedRecords(
            offsets=pa.array(offsets),
            timestamps_ms=pa.array(rows.timestamp[wanted]) if columns.timestamp else None,
            timestamp_types=pa.array(types) if columns.timestamp_type else None,
            keys=extract_strings(buffer, rows.key.start[wanted], rows.key.length[wanted])
            if columns.key
            else None,
            values=extract_strings(buffer, rows.value.start[wanted], rows.value.length[wanted])
            if columns.value
            else None,
            headers=headers,
            next_offset=Offset(int(offsets[-1]) + 1),
        )

    def _empty(self, next_offset: Offset) -> DecodedRecords:
        columns = self._columns
        return DecodedRecords(
            offsets=pa.array([], pa.int64()),
            timestamps_ms=pa.array([], pa.int64()) if columns.timestamp else None,
            timestamp_types=pa.array([], pa.int32()) if columns.timestamp_type else None,
            keys=pa.array([], pa.binary()) if columns.key else None,
            values=pa.array([], pa.binary()) if columns.value else None,
            headers=pa.array([], HEADERS_TYPE) if columns.headers else None,
            next_offset=next_offset,
        )


def _block(payloads: Payloads, framed: RecordSpans, rows_of: BatchRows, block: slice) -> Rows:
    batches, counts = rows_of.block(block.start, block.stop)
    return read_rows(payloads.raw, RecordSpans(framed.body[block], framed.end[block]), batches, counts)
