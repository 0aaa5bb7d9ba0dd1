"""`format("penstock-postgres")`: streaming sink for a PostgreSQL table that applies each batch once.

Tasks stage rows, the driver commits (`postgres.py`). Rows are JSON in the column `value`, with `partition`
and `offset` of their source record.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import CommandFailed
from penstock.spark.lake.lake_sink import QUERY_ID
from penstock.spark.options.options import write_settings
from penstock.spark.payload import dead_letters
from penstock.spark.payload.dead_letters import ERROR_HEADER, OFFSET_HEADER, PARTITION_HEADER, TOPIC_HEADER
from penstock.spark.pipelines.etl import postgres
from penstock.spark.pipelines.etl.postgres import PostgresTarget, RejectedRow, StagedAttempt, StagedRow
from penstock.spark.pipelines.etl.rows import STAGE_HEADER, write_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "penstock-postgres"
_REASON_CHARACTERS_MAX: Final = 500
"""Limit for the reason in a header: PostgreSQL's messages quote keys."""


def register(spark: "SparkSession") -> None:
    spark.dataSource.register(PostgresSink)


def postgres_options(target: PostgresTarget, access: Mapping[str, str], dead_topic: str) -> dict[str, str]:
    """Return the options as text, as Spark requires."""
    return {
        "url": target.url,
        "target": json.dumps(target._replace(url="")),
        "access": json.dumps(dict(access)),
        "deadTopic": dead_topic,
    }


class PostgresSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> "PostgresWriter":
        return PostgresWriter(self.options)


class StagedRowsMessage(WriterCommitMessage):
    """Message of a task to the driver."""

    def __init__(self, query: str, staged: StagedAttempt) -> None:
        self.query = query
        self.staged = staged


class PostgresWriter(DataSourceStreamArrowWriter):
    """Writer of one query: tasks copy rows to the staging table, the driver commits."""

    def __init__(self, options: Mapping[str, str]) -> None:
        _, table, columns, key, *others = json.loads(options["target"])
        self._target = PostgresTarget(options["url"], table, tuple(columns), tuple(key), *others)
        self._access: dict[str, str] = json.loads(options["access"])
        self._dead_topic = options["deadTopic"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRowsMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "Spark calls this within a task"
        query = context.getLocalProperty(QUERY_ID)
        assert query, "a streaming query has an id"
        return StagedRowsMessage(
            query, postgres.stage(self._target, uuid.uuid4().hex, _staged_rows(iterator))
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if None in messages:
            raise CommandFailed(
                f"{messages.count(None)} of {len(messages)} tasks of batch {batchId} do not say what they "
                "staged: rows would be left out. Start the query again"
            )
        staged_messages = [message for message in messages if isinstance(message, StagedRowsMessage)]
        staged = [message.staged for message in staged_messages if message.staged.rows]
        if staged:
            postgres.commit(self._target, staged_messages[0].query, batchId, staged, self._write_rejected)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: staged rows that no commit applies are removed when they are old."""

    def _write_rejected(self, refused: Sequence[RejectedRow]) -> None:
        letters = [self._dead_letter(each) for each in refused]
        batch = pa.RecordBatch.from_pylist(
            letters, schema=to_arrow_schema(dead_letters.DEAD_LETTER_TYPE, timezone="UTC")
        )
        write_dead_letters(write_settings(self._access), batch)

    def _dead_letter(self, refused: RejectedRow) -> dict[str, Any]:
        header_texts = {
            ERROR_HEADER: refused.reason[:_REASON_CHARACTERS_MAX],
            STAGE_HEADER: "load",
            TOPIC_HEADER: self._target.topic,
            PARTITION_HEADER: str(refused.row.partition),
            OFFSET_HEADER: str(refused.row.offset),
        }
        return {
            "topic": self._dead_topic,
            "key": None,
            "value": refused.row.row.encode(),
            "headers": [{"key": key, "value": text.encode()} for key, text in header_texts.items()],
        }


def _staged_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[StagedRow]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        yield from map(StagedRow, *columns)
