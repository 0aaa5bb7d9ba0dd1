"""`format("penstock-database")`: a table that grows, as a stream.

    spark.readStream.format("penstock-database").option("url", ...).option("table", ...).option("column", ...)

Offsets are values of the column. The planner asks how far there is something to read (`database.py`); one
task reads the range in chunks. Rows whose values do not fit the schema have a dead letter.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import CommandFailed
from penstock.spark.payload import dead_letters
from penstock.spark.payload.dead_letters import COLUMN, ERROR_HEADER
from penstock.spark.pipelines.etl.database import Database, Range, connect
from penstock.spark.pipelines.etl.rows import STAGE_HEADER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "penstock-database"
SETTLE_S_MAX: Final = 60.0
_SETTLE_TURN_S: Final = 0.05
MISFITS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError)


def register(spark: "SparkSession") -> None:
    spark.dataSource.register(DatabaseSource)


class DatabaseSource(DataSource):
    """Options: url, table, column, rowsPerBatch, deadTopic."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: StructType) -> "DatabaseReader":
        return DatabaseReader(dict(self.options), schema)


class RangePartition(InputPartition):
    def __init__(self, wanted: Range) -> None:
        super().__init__(tuple(wanted))
        self.wanted = wanted


class DatabaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._url = given["url"]
        self._table = given["table"]
        self._column = given["column"]
        self._rows_max = int(given["rowsperbatch"])
        self._dead_topic = given["deadtopic"]
        self._schema = schema
        self._database: Database | None = None
        self._stops_at: str | None = None
        self._is_bounded = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_database": None}

    # In the planner's process

    def initialOffset(self) -> dict[str, Any]:
        return {"after": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        after = start["after"]
        if self._is_bounded and after == self._stops_at:
            return start
        end = self._planning().settled_end(self._table, self._column, after, self._rows_max)
        return start if end is None else {"after": end}

    def prepareForTriggerAvailableNow(self) -> None:
        """Ends with what is there now. What is not settled yet is waited for, but not for ever."""
        database, deadline = self._planning(), time.monotonic() + SETTLE_S_MAX
        unlimited = 1 << 62
        end = database.settled_end(self._table, self._column, None, unlimited)
        while database.is_settling and time.monotonic() < deadline:
            time.sleep(_SETTLE_TURN_S)
            end = database.settled_end(self._table, self._column, None, unlimited)
        self._is_bounded, self._stops_at = True, end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [RangePartition(Range(start["after"], end["after"]))]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for rows that were read."""

    def stop(self) -> None:
        if self._database is not None:
            self._database.close()

    def _planning(self) -> Database:
        if self._database is None:
            self._database = connect(self._url)
        return self._database

    # In the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        database = connect(self._url)
        names = [name for name in self._schema.fieldNames() if name != COLUMN]
        try:
            for rows in database.rows(self._table, names, self._column, partition.wanted):
                yield batch_of(rows, self._schema, self._dead_topic)
        finally:
            database.close()


def batch_of(rows: list[tuple[Any, ...]], schema: StructType, dead_topic: str) -> pa.RecordBatch:
    """Rows as Arrow; those that do not fit have a dead letter, if the schema has a place for it."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    values = [field for field in arrow if field.name != COLUMN]
    bad: dict[int, str] = {}
    try:
        arrays = _arrays(rows, values)
    except MISFITS as problem:
        if COLUMN not in schema.fieldNames():
            raise CommandFailed(f"a row does not fit {schema.simpleString()}: {problem}") from problem
        bad = _misfits(rows, values)
        nothing = (None,) * len(values)
        arrays = _arrays([nothing if place in bad else row for place, row in enumerate(rows)], values)
    if COLUMN in schema.fieldNames():
        letters = [_letter(row, bad.get(place), values, dead_topic) for place, row in enumerate(rows)]
        arrays.append(pa.array(letters, arrow.field(COLUMN).type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _arrays(rows: list[tuple[Any, ...]], fields: list[pa.Field]) -> list[pa.Array]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    return [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]


def _misfits(rows: list[tuple[Any, ...]], fields: list[pa.Field]) -> dict[int, str]:
    bad = {}
    for place, row in enumerate(rows):
        for value, field in zip(row, fields, strict=True):
            try:
                pa.array([value], field.type)
            except MISFITS as problem:
                bad[place] = f"column {field.name} is no {field.type}: {problem}"
                break
    return bad


def _letter(
    row: tuple[Any, ...], reason: str | None, fields: list[pa.Field], dead_topic: str
) -> dict[str, Any] | None:
    if reason is None:
        return None
    named = {field.name: value for field, value in zip(fields, row, strict=True)}
    said = {ERROR_HEADER: reason, STAGE_HEADER: "extract"}
    return {
        "topic": dead_topic,
        "key": None,
        "value": json.dumps(named, default=str).encode(),
        "headers": [{"key": key, "value": text.encode()} for key, text in said.items()],
    }


def with_letters(schema: StructType) -> StructType:
    return StructType([*schema.fields]).add(COLUMN, dead_letters.TYPE)
