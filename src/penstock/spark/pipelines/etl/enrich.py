"""Stage `enrich`: joins each row with a reference table.

The reference is read once, cached by Spark, and read again when it is older than `refresh_s`.

Rule 1: each key must be unique in the reference, since rows would multiply silently otherwise. This is
        checked whenever the table is read.
Rule 2: the columns are fixed at the start. A reference that lost one of them later is an error.
"""

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from penstock.errors import CommandFailed
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.pipelines.common.query_run import reason
from penstock.spark.pipelines.etl.address import without_password
from penstock.spark.pipelines.etl.database import connect
from penstock.spark.pipelines.etl.database_source import to_record_batch
from penstock.spark.pipelines.etl.rows import dead_letter_column, parse_columns, to_json
from penstock.spark.pipelines.etl.spec import DELETED, EnrichSpec, EtlSpec, ReferenceSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FOUND = "_found"


class ReferenceTable:
    """Rows of the reference, read at most `refresh_s` ago, which rows of the stream are joined with."""

    def __init__(self, spark: "SparkSession", spec: EtlSpec) -> None:
        assert spec.enrich is not None, "the stage is there"
        self._spark = spark
        self._spec = spec
        self._enrich: EnrichSpec = spec.enrich
        self._cached: DataFrame | None = None
        self._read_at = 0.0
        self._first = self._read(self._enrich.on)
        self.columns = self._first.columns

    def enrich(self, rows: "DataFrame") -> "DataFrame":
        """Return the rows with the columns of the reference, and `deadLetter` if rows may be bad."""
        from pyspark.sql import functions as f

        missing, on = self._enrich.missing, list(self._enrich.on)
        # Broadcast: every task gets the whole reference, so rows are not shuffled and keep their order.
        enriched = rows.join(f.broadcast(self._current()), on, "left")
        passes = (
            enriched[DEAD_LETTER_COLUMN].isNotNull() if DEAD_LETTER_COLUMN in rows.columns else f.lit(False)
        )
        if DELETED in rows.columns:  # a deleted row has nothing but its key
            passes |= enriched[DELETED].isNotNull()
        if missing == "drop":
            enriched = enriched.where(passes | f.col(_FOUND).isNotNull())
        elif missing == "dead":
            enriched = self._with_dead_letters(enriched, rows, passes)
        return enriched.drop(_FOUND)

    def schema_after(self, rows: "DataFrame") -> "StructType":
        """Return the schema of joined rows, without reading a row."""
        self._check(rows)
        return rows.join(self._first, list(self._enrich.on), "left").schema

    def check(self, rows: "DataFrame") -> None:
        """Check before the first batch that such rows can be joined with this reference."""
        self._check(rows)
        self._current()

    def _with_dead_letters(self, enriched: "DataFrame", rows: "DataFrame", passes: "Column") -> "DataFrame":
        from pyspark.sql import functions as f

        named = f.concat_ws(
            ", ",
            *(
                f.concat(f.lit(f"{name} "), f.coalesce(f.col(name).cast("string"), f.lit("null")))
                for name in self._enrich.on
            ),
        )
        nothing_found = f.when(
            f.col(_FOUND).isNull() & ~passes, f.concat(f.lit("the reference has nothing for "), named)
        )
        value = f.when(
            f.col(_FOUND).isNull(),
            to_json(enriched.select(*(c for c in rows.columns if c not in (DEAD_LETTER_COLUMN, "_record")))),
        )
        letter = dead_letter_column(
            nothing_found, "enrich", self._spec.dead_letters, f.lit(None).cast("binary"), value, {}
        )
        given = f.col(DEAD_LETTER_COLUMN) if DEAD_LETTER_COLUMN in rows.columns else f.lit(None)
        return enriched.withColumn(DEAD_LETTER_COLUMN, f.coalesce(given, letter))

    def _check(self, rows: "DataFrame") -> None:
        where = f"{self._spec.file}: [enrich]"
        for name in self._enrich.on:
            if name not in rows.columns:
                shown = ", ".join(column for column in rows.columns if column != DEAD_LETTER_COLUMN)
                raise CommandFailed(f"{where} on: rows have no column {name}; they have {shown}")
        added = [name for name in self.columns if name not in self._enrich.on]
        if both := [name for name in added if name in rows.columns]:
            raise CommandFailed(
                f"{where}: both rows and the reference have a column {both[0]}: rename it in [transform]"
            )

    def _current(self) -> "DataFrame":
        from pyspark.sql import functions as f

        if self._cached is None or time.monotonic() - self._read_at >= self._enrich.refresh_s:
            table = self._read(self.columns).select(*self.columns)
            # Spark's cache treats two reads of the same files as equal. A random column makes each read
            # distinct.
            fresh = table.withColumn(_FOUND, f.lit(uuid.uuid4().hex)).persist()
            # The new table is checked before the old one is dropped.
            self._check_unique(fresh)
            if self._cached is not None:
                self._cached.unpersist()
            self._cached, self._read_at = fresh, time.monotonic()
        return self._cached

    def _check_unique(self, table: "DataFrame") -> None:
        on = list(self._enrich.on)
        twice = table.groupBy(*on).count().where("count > 1").limit(1).collect()
        if twice:
            named = ", ".join(f"{name} {twice[0][name]}" for name in on)
            raise CommandFailed(
                f"the reference {self._place} has {twice[0]['count']} rows for {named}: rows would multiply. "
                "Make it have one, or give on = more columns"
            )

    def _read(self, wanted: Sequence[str]) -> "DataFrame":
        try:
            table = read_reference(self._spark, self._enrich.reference)
        except PySparkException as problem:
            raise CommandFailed(f"cannot read the reference {self._place}: {reason(problem)}") from problem
        if lost := [name for name in wanted if name not in table.columns]:
            raise CommandFailed(
                f"the reference {self._place} has no column {lost[0]}; it has {', '.join(table.columns)}"
            )
        return table

    @property
    def _place(self) -> str:
        reference = self._enrich.reference
        if reference.table is None:
            return reference.place
        return f"{without_password(reference.place)}, table {reference.table}"


def read_reference(spark: "SparkSession", reference: ReferenceSpec) -> "DataFrame":
    match reference.format:
        case "database":
            return _read_database_table(spark, reference)
        case "delta":
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError

            try:
                return spark.createDataFrame(DeltaTable(reference.place).to_pyarrow_table())
            except (TableNotFoundError, DeltaError) as problem:
                raise CommandFailed(f"cannot read the Delta table {reference.place}: {problem}") from problem
        case form:
            options = {"header": "true", **({} if reference.schema else {"inferSchema": "true"})}
            reader = spark.read.format(form).options(**(options if form == "csv" else {}))
            reader = reader.options(**reference.options)
            return (reader.schema(reference.schema) if reference.schema else reader).load(reference.place)


def _read_database_table(spark: "SparkSession", reference: ReferenceSpec) -> "DataFrame":
    import pyarrow as pa

    assert reference.table is not None, "a database has tables"
    database = connect(reference.place)
    try:
        fields = database.fields(reference.table)
        ddl = reference.schema or ", ".join(f"`{field.name}` {field.type}" for field in fields)
        schema = parse_columns(ddl)
        chunks: list[Any] = [
            to_record_batch(rows, schema, "")
            for rows in database.rows(reference.table, schema.fieldNames(), None, None)
        ]
    finally:
        database.close()
    return spark.createDataFrame(pa.Table.from_batches(chunks or [to_record_batch([], schema, "")]))
