"""`format("penstock-database")`: streams the new rows of a growing table.

    spark.readStream.format("penstock-database").option("url", ...).option("table", ...).option("column", ...)

Offsets are values of the column. The planner determines the end up to which rows can be read
(`settled_end.py`). One task reads the range in chunks. Rows whose values do not fit the schema carry a dead
letter.

Rule: a bounded run (`--once`) reads up to the end that existed when the run began, and no further.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import CommandFailed
from penstock.spark.payload import dead_letters
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN, ERROR_HEADER
from penstock.spark.pipelines.etl.database import Database, ValueRange, connect
from penstock.spark.pipelines.etl.rows import STAGE_HEADER
from penstock.spark.pipelines.etl.settled_end import SettledEndTracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "penstock-database"
SETTLE_S_MAX: Final = 60.0
_SETTLE_TURN_S: Final = 0.05
CONVERSION_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError)


def register(spark: "SparkSession") -> None:
    spark.dataSource.register(DatabaseSource)


class DatabaseSource(DataSource):
    """Spark data source. Options: those of `database_options`; rowsPerBatch, deadTopic."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: StructType) -> "DatabaseReader":
        return DatabaseReader(dict(self.options), schema)


class ValueRangePartition(InputPartition):
    def __init__(self, value_range: ValueRange) -> None:
        super().__init__(tuple(value_range))
        self.value_range = value_range


class DatabaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of one table: plans on the driver, reads in tasks."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, settle_s_max: float = SETTLE_S_MAX
    ) -> None:
        self._settle_s_max = settle_s_max
        given = {name.lower(): value for name, value in options.items()}
        self._url = given["url"]
        self._incremental_table = _parse_incremental_table(given)
        self._rows_max = int(given["rowsperbatch"])
        self._dead_topic = given["deadtopic"]
        self._schema = schema
        self._planner: _Planner | None = None
        self._bound: _RunBound | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A database connection cannot be pickled; each process opens its own.
        return self.__dict__ | {"_planner": None}

    # In the planner's process

    def initialOffset(self) -> dict[str, Any]:
        return {"after": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        after, planner = start["after"], self._open_planner()
        # A bounded run never reads beyond the end that it found at its start.
        until = planner.settled_end() if self._bound is None else self._bound.until
        if until is None or until == after:
            return start
        table, column = self._incremental_table.table, self._incremental_table.column
        end = planner.database.range_end(table, column, ValueRange(after, until), self._rows_max)
        return start if end is None else {"after": end}

    def prepareForTriggerAvailableNow(self) -> None:
        """Bound the run to the rows present now, after no more row can appear below that end."""
        self._bound = _RunBound(self._open_planner().first_end(self._settle_s_max))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [ValueRangePartition(ValueRange(start["after"], end["after"]))]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the database keeps no state for rows that were read."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.database.close()

    def _open_planner(self) -> "_Planner":
        if self._planner is None:
            self._planner = _Planner(connect(self._url), self._incremental_table)
        return self._planner

    # In the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ValueRangePartition)
        database = connect(self._url)
        names = [name for name in self._schema.fieldNames() if name != DEAD_LETTER_COLUMN]
        try:
            for rows in database.rows(
                self._incremental_table.table, names, self._incremental_table.column, partition.value_range
            ):
                yield to_record_batch(rows, self._schema, self._dead_topic)
        finally:
            database.close()


class IncrementalTable(NamedTuple):
    """Table and the column that it is read by, with the user's declarations about the column."""

    table: str
    column: str
    is_unique: bool = False
    """Whether the user declares that no value is used twice, although the database does not guarantee it."""
    same_value_s: float | None = None
    """Longest time for which further rows with an existing value may appear. None: unknown."""

    def delays_newest_rows(self, database: Database) -> bool:
        """Return whether rows with the largest value wait for a larger one, since more of them may appear."""
        is_known_unique = database.is_unique(self.table, self.column)  # always called: it rejects some tables
        return not (is_known_unique or self.is_unique) and self.same_value_s is None


def database_options(url: str, growing: IncrementalTable) -> dict[str, str]:
    """Return the options as text, as Spark requires."""
    said_s = growing.same_value_s
    same_value = {} if said_s is None else {"sameValueS": str(said_s)}
    is_unique = str(growing.is_unique).lower()
    return {"url": url, "table": growing.table, "column": growing.column, "unique": is_unique, **same_value}


def _parse_incremental_table(options: Mapping[str, str]) -> IncrementalTable:
    """Parse the options, whose names are in lower case."""
    said_s = options.get("samevalues")
    return IncrementalTable(
        options["table"],
        options["column"],
        is_unique=options.get("unique", "false") == "true",
        same_value_s=None if said_s is None else float(said_s),
    )


class _RunBound(NamedTuple):
    until: str | None
    """None: there is nothing to read."""


class _Planner:
    """Planner that repeatedly determines how far a table can be read."""

    def __init__(self, database: Database, growing: IncrementalTable) -> None:
        self.database = database
        self._incremental_table = growing
        self._below_largest = growing.delays_newest_rows(database)
        self._same_value_s = growing.same_value_s or 0.0
        self._settling = SettledEndTracker(self._same_value_s)

    def settled_end(self) -> str | None:
        table, column = self._incremental_table.table, self._incremental_table.column
        observed_end = self.database.observed_end(table, column, below_largest=self._below_largest)
        self._settling.observe(observed_end, time.monotonic())
        return self._settling.end

    def first_end(self, settle_s_max: float) -> str | None:
        """Return the end that the first query observed, once it is settled; CommandFailed on a timeout."""
        deadline = time.monotonic() + self._same_value_s + settle_s_max
        end = self.settled_end()
        while end is None and self._settling.is_waiting:
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"the newest rows of {self._incremental_table.table}:"
                    f" {self._settling.waits_for} transactions that "
                    f"could still add rows before them are open for {settle_s_max:g} s. pg_stat_activity "
                    "shows them: end them, or start again later. Nothing was read"
                )
            time.sleep(_SETTLE_TURN_S)
            end = self.settled_end()
        return end


def to_record_batch(rows: list[tuple[Any, ...]], schema: StructType, dead_topic: str) -> pa.RecordBatch:
    """Convert rows to Arrow; rows that do not fit get a dead letter, if the schema has that column."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    values = [field for field in arrow if field.name != DEAD_LETTER_COLUMN]
    bad: dict[int, str] = {}
    try:
        arrays = _arrays(rows, values)
    except CONVERSION_ERRORS as problem:
        if DEAD_LETTER_COLUMN not in schema.fieldNames():
            raise CommandFailed(f"a row does not fit {schema.simpleString()}: {problem}") from problem
        # Only after a failed conversion are rows checked one by one: that is slow.
        bad = _unconvertible_rows(rows, values)
        nothing = (None,) * len(values)
        arrays = _arrays([nothing if place in bad else row for place, row in enumerate(rows)], values)
    if DEAD_LETTER_COLUMN in schema.fieldNames():
        letters = [_dead_letter(row, bad.get(place), values, dead_topic) for place, row in enumerate(rows)]
        arrays.append(pa.array(letters, arrow.field(DEAD_LETTER_COLUMN).type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _arrays(rows: list[tuple[Any, ...]], fields: list[pa.Field]) -> list[pa.Array]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    return [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]


def _unconvertible_rows(rows: list[tuple[Any, ...]], fields: list[pa.Field]) -> dict[int, str]:
    bad = {}
    for place, row in enumerate(rows):
        for value, field in zip(row, fields, strict=True):
            try:
                pa.array([value], field.type)
            except CONVERSION_ERRORS as problem:
                bad[place] = f"column {field.name} is no {field.type}: {problem}"
                break
    return bad


def _dead_letter(
    row: tuple[Any, ...], reason: str | None, fields: list[pa.Field], dead_topic: str
) -> dict[str, Any] | None:
    if reason is None:
        return None
    named = {field.name: value for field, value in zip(fields, row, strict=True)}
    header_texts = {ERROR_HEADER: reason, STAGE_HEADER: "extract"}
    return {
        "topic": dead_topic,
        "key": None,
        "value": json.dumps(named, default=str).encode(),
        "headers": [{"key": key, "value": text.encode()} for key, text in header_texts.items()],
    }


def add_dead_letter_field(schema: StructType) -> StructType:
    return StructType([*schema.fields]).add(DEAD_LETTER_COLUMN, dead_letters.DEAD_LETTER_TYPE)
