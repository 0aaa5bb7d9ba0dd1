"""Truncates rows that are too large for a topic, and writes them as dead letters.

A batch that cannot be written is retried with the same rows, so it would fail forever. So a row that no
record can hold is truncated: the record keeps the beginning of the row, and headers give the original size
and the reason. If the source record of the row is known, other headers give its topic, partition and offset.

Rule: every output row fits a batch of `bytes_max`, whatever the input was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.spark.payload.dead_letters import ERROR_HEADER

TOPIC_BYTES_MAX: Final = 1_048_588
"""Largest batch that topics accept, unless their `max.message.bytes` sets another limit."""
BATCH_BYTES_MAX: Final = 1_000_000
"""Largest batch of `format("penstock")`, unless `kafka.max.request.size` sets another limit."""
TRUNCATED_HEADER: Final = "penstock-cut"
TRUNCATED_BYTES: Final = 64 * 1024
"""Limit for the value after truncation. A key or headers larger than this are dropped."""
_HEADER_PREFIX: Final = "penstock-"
_PENSTOCK_HEADERS_MAX: Final = 20
_NAME_LENGTH_MAX: Final = 100
_HEADER_VALUE_BYTES_MAX: Final = 2_000
_RECORD_BYTES: Final = 100
"""Upper bound of the overhead of a batch and a record, without keys, values and headers."""
_HEADER_BYTES: Final = 10


@dataclass(frozen=True)
class OversizedRowTruncator:
    """Function that tasks apply to rows (topic, key, value, headers). Plain values: sent to executors."""

    dead_topic: str | None
    """Topic for truncated rows. None: the row's own topic, since the rows are dead letters already."""
    stage: tuple[tuple[str, str], ...] = ()
    """Headers added to truncated rows that were not dead letters before."""
    bytes_max: int = TOPIC_BYTES_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            too_large = _sizes(batch) > self.bytes_max
            if not too_large.any():
                yield batch
                continue
            yield batch.filter(pa.array(~too_large))
            for row in too_large.nonzero()[0].tolist():
                (whole,) = batch.slice(row, 1).to_pylist()
                yield pa.RecordBatch.from_pylist([self._truncate(whole)], schema=batch.schema)

    def _truncate(self, row: dict[str, Any]) -> dict[str, Any]:
        key, value = row["key"], row["value"]
        headers = row["headers"] or []
        # Foreign headers are dropped first; Penstock's own headers identify the source record.
        if sum(map(_header_bytes, headers)) > TRUNCATED_BYTES:
            headers = [_truncated_header(each) for each in headers if _is_penstock_header(each)][
                -_PENSTOCK_HEADERS_MAX:
            ]
        sizes = f"key {len(key or b'')} bytes, value {len(value or b'')} bytes"
        header_texts = {TRUNCATED_HEADER: sizes}
        if self.dead_topic is not None and self.dead_topic != row["topic"]:
            header_texts = {
                ERROR_HEADER: f"too large for topic {row['topic']} (limit {self.bytes_max} bytes): {sizes}",
                **dict(self.stage),
                **header_texts,
            }
        return {
            **row,
            "topic": self.dead_topic or row["topic"],
            "key": key if key is None or len(key) <= TRUNCATED_BYTES else None,
            "value": None if value is None else value[:TRUNCATED_BYTES],
            "headers": [
                *headers,
                *({"key": name, "value": text.encode()} for name, text in header_texts.items()),
            ],
        }


def _is_penstock_header(header: dict[str, Any]) -> bool:
    return header["key"].startswith(_HEADER_PREFIX) and len(header["key"]) <= _NAME_LENGTH_MAX


def _truncated_header(header: dict[str, Any]) -> dict[str, Any]:
    return {**header, "value": (header["value"] or b"")[:_HEADER_VALUE_BYTES_MAX]}


def _header_bytes(header: dict[str, Any]) -> int:
    return len(header["key"].encode()) + len(header["value"] or b"") + _HEADER_BYTES


def _sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the maximum encoded size of each row, as the only record of a batch."""
    sizes = _lengths(batch.column("key")) + _lengths(batch.column("value")) + _RECORD_BYTES
    headers = batch.column("headers")
    pairs = headers.flatten()
    of_pairs = _lengths(pairs.field("key")) + _lengths(pairs.field("value")) + _HEADER_BYTES
    np.add.at(sizes, np.asarray(pc.list_parent_indices(headers), np.int64), of_pairs)
    return sizes


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    return np.array(pc.fill_null(pc.binary_length(column), 0), np.int64)
