"""Whatever a row holds, what is made of it fits a record."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import CommandFailed
from penstock.protocol.compression import Codec
from penstock.spark import topic_sink
from penstock.spark.payload import dead_letters
from penstock.spark.pipelines.common.truncate_oversized import OversizedRowTruncator
from penstock.spark.pipelines.replay.replay import _Sender
from penstock.spark.records.encode import RecordTooLarge, encode
from penstock.spark.topic_sink import RowTooLarge
from penstock.types import TopicPartition

SCHEMA = to_arrow_schema(dead_letters.DEAD_LETTER_TYPE, timezone="UTC")
BYTES_MAX = 250_000
sizes = st.one_of(st.none(), st.integers(0, 200), st.integers(BYTES_MAX - 300, BYTES_MAX + 10))
header = st.tuples(st.sampled_from(["penstock-a", "b", "penstock-" + "n" * 300_000]), sizes)
row = st.tuples(sizes, sizes, st.one_of(st.none(), st.lists(header, max_size=4)))


def filled(size: int | None) -> bytes | None:
    return None if size is None else bytes(size)


def batch_of(
    rows: list[tuple[int | None, int | None, list[tuple[str, int | None]] | None]],
) -> pa.RecordBatch:
    made = [
        {
            "topic": "rows",
            "key": filled(key),
            "value": filled(value),
            "headers": None
            if headers is None
            else [{"key": name, "value": filled(size)} for name, size in headers],
        }
        for key, value, headers in rows
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=4), st.sampled_from([None, "dead"]))
def test_what_comes_out_fits_and_nothing_is_missing(
    rows: list[tuple[int | None, int | None, list[tuple[str, int | None]] | None]], dead_topic: str | None
) -> None:
    given_rows = batch_of(rows)
    made = [
        each
        for each in OversizedRowTruncator(dead_topic, bytes_max=BYTES_MAX)(iter([given_rows]))
        if each.num_rows
    ]
    assert sum(each.num_rows for each in made) == len(rows)
    for each in made:
        encode(
            each.column("key"),
            each.column("value"),
            each.column("headers"),
            None,
            codec=Codec.NONE,
            batch_bytes_max=BYTES_MAX,
        )
    small = [each for each in rows if sum(size or 0 for size in each[:2]) < 1_000 and not each[2]]
    whole = [one for each in made for one in each.to_pylist() if one["topic"] == "rows"]
    assert dead_topic is None or len(whole) >= len(small)


def test_a_replay_says_which_of_its_options_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(settings: object, batches: Iterator[pa.RecordBatch], *, row_bytes_max: int) -> None:
        error = RecordTooLarge(row=0, record_bytes=2_000_000, batch_bytes_max=row_bytes_max)
        raise RowTooLarge(TopicPartition("orders", 0), error)

    monkeypatch.setattr(topic_sink, "write_rows", refuses)
    send = _Sender({"kafka.bootstrap.servers": "127.0.0.1:1"}, 1_048_588)
    with pytest.raises(
        CommandFailed,
        match=r"takes 2000000 bytes, and 1048588 .* give --max-record-bytes 2000000 .* of topic orders",
    ):
        list(send(iter([])))
