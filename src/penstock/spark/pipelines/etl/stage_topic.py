"""Topic writer of a stage: skips the rows of a micro-batch that a crashed run has already written.

Spark repeats a batch whose end it did not record, with the same rows. So before a batch is written, a note in
the checkpoint records the topic's end offsets. Every record names its batch in a header. If a batch already
has a note, an earlier run began it: the records after the noted offsets that name this batch are written, and
as many equal rows of the repeated batch are skipped.

Rule 1: rows that are not equal to a written record are written, whatever the reason. So no row is ever lost;
        a transformation that returns other rows when repeated has written both.
Rule 2: rows are written in order even if some are skipped: a single task writes them then.
Rule 3: a task that Spark retries does the same for its own rows (`stage_sink.py`).
Rule 4: records that retention removed meanwhile, or that were in a topic since recreated, are written again.

Not covered: tasks of a crashed run that still write, and dead letters, which are written at least once.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.lake import disk
from penstock.spark.options.options import ISOLATION_OPTION, READ_UNCOMMITTED
from penstock.spark.payload.dead_letters import DEAD_LETTER_COLUMN
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.etl import stage_sink
from penstock.spark.pipelines.etl.rows import to_json
from penstock.spark.pipelines.etl.spec import DELETED
from penstock.spark.pipelines.etl.stage_sink import BATCH_HEADER, DeadLetterTarget, StageWrite
from penstock.spark.topic_table import HEADERS_TYPE
from penstock.wire.cluster_client import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOTES: Final = "penstock-outputs"
_PLACE: Final = "_record"


class StageTopic:
    """Writer of a stage's micro-batches to its output topic."""

    def __init__(
        self,
        topic: str,
        *,
        query: str,
        key: Sequence[str],
        access: Mapping[str, str],
        checkpoint: Path,
        dead: DeadLetterTarget,
        writes_tombstones: bool = False,
    ) -> None:
        """Create the writer; with `writes_tombstones`, rows to be deleted become records without a value."""
        self._topic = topic
        self._dead = dead
        self._query = query
        self._key = list(key)
        self._writes_tombstones = writes_tombstones
        self._access = dict(access)
        self._notes = checkpoint / NOTES

    def write(self, rows: "DataFrame", batch: int) -> None:
        # The ends are read before the note is written: every record of this batch comes after them.
        ends = self._offsets(LATEST)
        begun_at = self._begin(batch, ends)
        records = self._records(rows.drop(_PLACE))
        if begun_at is not None:
            starts = clamped_starts(begun_at, self._offsets(EARLIEST), ends)
            records = self._without_written(records, batch, starts)
        begun = StageWrite(self._topic, f"{self._mark(batch)}{uuid.uuid4().hex[:8]}/", ends)
        stage_sink.register(rows.sparkSession)
        options = stage_sink.stage_options(begun, self._access, self._dead)
        _with_batch_header(records, begun).write.format(stage_sink.NAME).options(**options).mode(
            "append"
        ).save()

    def _records(self, rows: "DataFrame") -> "DataFrame":
        """Return topic, key, value and headers: of rows (no headers yet) and of dead letters among them."""
        from pyspark.sql import functions as f

        record = {
            "topic": f.lit(self._topic),
            "key": _key_column(rows, self._key),
            "value": self._value_column(rows),
            "headers": f.lit(None).cast(HEADERS_TYPE),
        }
        if DEAD_LETTER_COLUMN in rows.columns:
            is_good = f.col(DEAD_LETTER_COLUMN).isNull()
            record = {
                name: f.when(is_good, column).otherwise(f.col(f"{DEAD_LETTER_COLUMN}.{name}"))
                for name, column in record.items()
            }
        return rows.select(*(column.alias(name) for name, column in record.items()))

    def _value_column(self, rows: "DataFrame") -> "Column":
        from pyspark.sql import functions as f

        if not self._writes_tombstones or DELETED not in rows.columns:
            return to_json(rows).cast("binary")
        return f.when(f.col(DELETED).isNull(), to_json(rows, without=DELETED).cast("binary"))

    def _mark(self, batch: int) -> str:
        return f"{self._query}/{batch}/"

    def _begin(self, batch: int, ends: dict[str, int]) -> dict[str, int] | None:
        """Return the noted end offsets if an earlier run began the batch; None if this run begins it."""
        note = self._notes / f"{batch}.json"
        if note.exists():
            found: dict[str, dict[str, int]] = json.loads(note.read_bytes())
            return found[self._topic]
        disk.make_folder(self._notes)
        disk.create_once(note, json.dumps({self._topic: ends}).encode())
        # Notes of earlier batches are obsolete: Spark runs a batch only after all earlier ones have ended.
        for older in self._notes.glob("*.json"):
            if int(older.stem) < batch:
                older.unlink()
        return None

    def _offsets(self, which: int) -> dict[str, int]:
        with open_client(self._access) as client:
            wanted = fetch_partitions(client, [self._topic], existed=True)
            found = client.offsets(dict.fromkeys(wanted, which), read_committed=False)
        return {str(each.partition): int(offset) for each, (offset, _) in found.items()}

    def read_options_from(self, starts: Mapping[str, int]) -> dict[str, str]:
        """Return the options for reading the topic from these offsets on."""
        return {
            **self._access,
            "subscribe": self._topic,
            "startingOffsets": json.dumps({self._topic: starts}),
            "failOnDataLoss": "false",  # records that retention removed are written again
            "includeHeaders": "true",
            # Stage records are in no transaction. They must be read even if another producer's transaction is
            # open.
            ISOLATION_OPTION: READ_UNCOMMITTED,
        }

    def _without_written(self, records: "DataFrame", batch: int, starts: Mapping[str, int]) -> "DataFrame":
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        written = (
            records.sparkSession.read.format("penstock")
            .options(**self.read_options_from(starts))
            .load()
            .where(
                f.exists(
                    "headers",
                    lambda header: (
                        (header["key"] == BATCH_HEADER)
                        & header["value"].cast("string").startswith(self._mark(batch))
                    ),
                )
            )
            .groupBy(f.col("key").alias("_key"), f.col("value").alias("_value"))
            .agg(f.count("*").alias("_times"))
        )
        numbered = records.withColumn("_order", f.monotonically_increasing_id()).withColumn(
            "_nth", f.row_number().over(Window.partitionBy("topic", "key", "value").orderBy("_order"))
        )
        is_same = (
            f.col("key").eqNullSafe(f.col("_key"))
            & f.col("value").eqNullSafe(f.col("_value"))
            & (f.col("topic") == self._topic)
        )
        return (
            numbered.join(written, is_same, "left")
            .where(f.col("_nth") > f.coalesce("_times", f.lit(0)))
            # One partition: several tasks would lose the order of rows (rule 2).
            .repartition(1)
            .sortWithinPartitions("_order")
            .select("topic", "key", "value", "headers")
        )


def _key_column(rows: "DataFrame", names: Sequence[str]) -> "Column":
    """Return one column as text, several as a JSON array of texts; null if a column is missing."""
    from pyspark.sql import functions as f

    if not names or not set(names) <= set(rows.columns):
        return f.lit(None).cast("binary")
    texts = [f.col(f"`{name}`").cast("string") for name in names]
    return (texts[0] if len(texts) == 1 else f.to_json(f.array(*texts))).cast("binary")


def clamped_starts(
    noted: Mapping[str, int], firsts: Mapping[str, int], ends: Mapping[str, int]
) -> dict[str, int]:
    """Return the offsets to begin at: the noted offset, if the topic still has it.

    Otherwise retention has removed it, the topic was recreated, or the partition is new: then all records are
    read.
    """
    return {
        partition: place if first <= (place := noted.get(partition, first)) <= ends[partition] else first
        for partition, first in firsts.items()
    }


def _with_batch_header(records: "DataFrame", begun: StageWrite) -> "DataFrame":
    """Add the header that names batch and task; the task number is final, so no shuffle may follow."""
    from pyspark.sql import functions as f

    mark = f.concat(f.lit(begun.mark), f.spark_partition_id().cast("string")).cast("binary")
    header = f.struct(f.lit(BATCH_HEADER).alias("key"), mark.alias("value"))
    is_row = f.col("topic") == begun.topic
    return records.withColumn("headers", f.when(is_row, f.array(header)).otherwise(f.col("headers")))
