"""Tables with rows of a topic, for the tests of the lake."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.description import DATA_FOLDER, TableDescription, make_table, table_in_format
from penstock.spark.lake.lake_table import LakeBatch, LakeTable
from penstock.spark.lake.parquet_table import ParquetTable, staging_folder
from penstock.spark.lake.task_files import FileLayout, TaskFiles
from penstock.spark.lake.time_partitioning import PartitionBy

DAY_US = 86_400_000_000
NOON_US = 1_794_744_000_000_000  # 2026-11-15, twelve o'clock


def records(
    start: int, end: int, *, day: int = 0, topic: str = "orders", partition: int = 0
) -> pa.RecordBatch:
    count = end - start
    fields = [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="Etc/UTC")),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
    times = [NOON_US + day * DAY_US + offset for offset in range(start, end)]
    columns = [
        pa.array([topic] * count, pa.string()),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(start, end), pa.int64()),
        pa.array(times, fields[3].type),
        pa.array([b"value %d" % offset for offset in range(start, end)], pa.binary()),
        pa.array([[{"key": "k", "value": b"v"}]] * count, fields[5].type),
    ]
    return pa.record_batch(columns, schema=pa.schema(fields))


class TestTable:
    """A table of one format, written to as a query would."""

    __test__ = False

    def __init__(self, folder: Path, form: str, by: PartitionBy = PartitionBy.DAY) -> None:
        self.folder = folder
        self.form = form
        self.description = TableDescription(form, by)
        self.shape = FileLayout(by)
        make_table(folder, self.description)

    def open(self) -> LakeTable:
        return table_in_format(self.folder, self.description)

    def write(self, version: int, *rows: pa.RecordBatch, app: str = "query") -> LakeBatch:
        """What the tasks of a batch do, up to its commit."""
        is_flat = self.form == "parquet"
        data = DATA_FOLDER[self.form]
        place = staging_folder(self.folder) if is_flat else self.folder / data
        files = TaskFiles(place, self.shape, batch=version, task=0, flat=is_flat)
        for each in rows:
            files.write(each)
        done = files.close()
        assert files.schema is not None
        named = tuple(file._replace(folder=f"{data}/{file.folder}".strip("/")) for file in done)
        return LakeBatch(app, version, named, files.spans, files.schema)

    def commit(self, batch: LakeBatch) -> bool:
        table = self.open()
        try:
            return table.commit(batch)
        finally:
            table.close()

    def append(self, version: int, *rows: pa.RecordBatch, app: str = "query") -> bool:
        return self.commit(self.write(version, *rows, app=app))

    def paths(self) -> list[str]:
        table = self.open()
        try:
            return table.files()
        finally:
            table.close()

    def offsets(self) -> list[int]:
        """Offsets of all rows, in order. A row that is there twice counts twice."""
        return sorted(offsets_in(self.paths()))

    def parquet_files(self) -> set[Path]:
        return set(self.folder.rglob("*.parquet"))


class OftenSnapshotted(TestTable):
    """One of plain Parquet whose log has a snapshot after so many commits."""

    def __init__(self, folder: Path, *, snapshot_every: int) -> None:
        super().__init__(folder, "parquet")
        self._snapshot_every = snapshot_every

    def open(self) -> LakeTable:
        return ParquetTable(self.folder, self._snapshot_every)


def offsets_in(paths: Sequence[str | Path]) -> list[int]:
    return [offset for path in paths for offset in pq.ParquetFile(path).read(["offset"])[0].to_pylist()]
