"""Rows that are too large for a topic are cut, and written as dead letters.

A batch that cannot be written is run again, with the same rows: it would fail for ever. So of a row that no
record can hold, its beginning is kept, and headers say how large it was and why it was cut. Where the record
that it is from is known, other headers say where the whole of it is.

Rule: what comes out fits a batch of `bytes_max`, whatever came in.
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
"""The largest batch that topics take, unless their `max.message.bytes` says otherwise."""
BATCH_BYTES_MAX: Final = 1_000_000
"""That of `format("penstock")`, unless `kafka.max.request.size` says otherwise."""
TRUNCATED_HEADER: Final = "penstock-cut"
TRUNCATED_BYTES: Final = 64 * 1024
"""Of a value; and of a key and of headers, which are left out if they are larger."""
_HEADER_PREFIX: Final = "penstock-"
_PENSTOCK_HEADERS_MAX: Final = 20
_NAME_LENGTH_MAX: Final = 100
_HEADER_VALUE_BYTES_MAX: Final = 2_000
_RECORD_BYTES: Final = 100
"""What a batch and a record take beside keys, values and headers, at most."""
_HEADER_BYTES: Final = 10


@dataclass(frozen=True)
class OversizedRowTruncator:
    """What a task does with rows: topic, key, value, headers. Plain values: sent to executors."""

    dead_topic: str | None
    """Where rows go that were cut; None: where they were to go, since they are dead letters already."""
    stage: tuple[tuple[str, str], ...] = ()
    """Headers of rows that were cut and were no dead letters."""
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
    """What each row takes at most, as the only record of a batch."""
    sizes = _lengths(batch.column("key")) + _lengths(batch.column("value")) + _RECORD_BYTES
    headers = batch.column("headers")
    pairs = headers.flatten()
    of_pairs = _lengths(pairs.field("key")) + _lengths(pairs.field("value")) + _HEADER_BYTES
    np.add.at(sizes, np.asarray(pc.list_parent_indices(headers), np.int64), of_pairs)
    return sizes


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    return np.array(pc.fill_null(pc.binary_length(column), 0), np.int64)
