"""Spec of an etl: the stages that a file defines, validated and typed.

Plain values: which stages exist, what each reads and writes, under which names.
"""

from pathlib import Path
from typing import Final, NamedTuple

from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.options.options import READ_COMMITTED
from penstock.spark.pipelines.etl.address import without_password

DELETED: Final = "_deleted"
"""Column that is true in rows that delete the row with their key, and null in other rows."""
STAGES: Final = ("extract", "transform", "enrich", "load")


class FromFiles(NamedTuple):
    """Source of an etl: files that appear in a folder."""

    path: str
    format: str
    schema: str
    options: dict[str, str]
    files_per_batch: int


class FromDatabase(NamedTuple):
    """Source of an etl: a database table to which rows are only added."""

    url: str
    table: str
    column: str
    """Column that grows with every new row: only rows above the last value read are read."""
    schema: str | None
    is_unique: bool = False
    """Whether the user declares that no value of `column` is used twice, without a database guarantee."""
    same_value_s: float | None = None
    """Longest time for which rows with an existing value of `column` appear. None: unknown."""


class FromTopic(NamedTuple):
    """Source of an etl: a topic whose values a schema describes."""

    topic: str
    format: str
    schema: str
    message: str | None
    key_column: str | None = None
    """Column for the record's key: a column of the value, or an additional one."""
    timestamp_column: str | None = None
    headers_column: str | None = None
    tombstones: str = "dead"
    """Handling of records without a value: dead, row, delete."""


ExtractSpec = FromFiles | FromDatabase | FromTopic


class SqlQuery(NamedTuple):
    text: str


class PythonFunction(NamedTuple):
    file: Path | None
    """None for a module on Python's import path."""
    module: str
    function: str


TransformSpec = SqlQuery | PythonFunction


class ReferenceSpec(NamedTuple):
    """Lookup table of the stage `enrich`, as the spec file declares it. `ReferenceTable` reads it."""

    format: str
    place: str
    """Path, or the address of a database."""
    table: str | None
    schema: str | None
    options: dict[str, str]


class EnrichSpec(NamedTuple):
    """Settings of the stage `enrich`."""

    reference: ReferenceSpec
    on: tuple[str, ...]
    missing: str
    """Handling of a row without a match in the reference: keep, drop, dead."""
    refresh_s: float


class ToLake(NamedTuple):
    """Target of an etl: a lake table."""

    format: str
    folder: Path
    partition_by: PartitionBy
    time_column: str


class ToPostgres(NamedTuple):
    """Target of an etl: a PostgreSQL table."""

    url: str
    table: str
    key: tuple[str, ...]
    """Rows with the same key replace each other. Empty: every row is inserted."""
    version: str | None = None
    """Column by which the largest of rows with the same key is kept. None: the row that came last."""


class ToTopic(NamedTuple):
    """Target of an etl: a topic."""

    topic: str


LoadSpec = ToLake | ToPostgres | ToTopic


class EtlSpec(NamedTuple):
    """Everything that a spec file defines."""

    file: Path
    name: str
    key: tuple[str, ...]
    """Columns that form the key of records between stages. Rows of one key stay in order."""
    partitions: int
    dead_letters: str
    checkpoint: Path
    extract: ExtractSpec
    transform: TransformSpec | None
    enrich: EnrichSpec | None
    load: LoadSpec
    topics: dict[str, str]
    """Output topic of each stage but the last, in the order of stages."""
    isolation: str = READ_COMMITTED
    """Isolation level of every read of a topic."""

    @property
    def stages(self) -> tuple[str, ...]:
        return (*self.topics, "load")

    @property
    def deletes(self) -> bool:
        """Return whether a record without a value deletes the target row with its key."""
        return isinstance(self.extract, FromTopic) and self.extract.tombstones == "delete"

    @property
    def key_in_every_stage(self) -> tuple[str, ...]:
        """Return the columns that rows need from the first stage on, to keep versions of a row in order."""
        is_ordered = isinstance(self.load, ToPostgres) and self.load.key and self.load.version is None
        return self.key if is_ordered or self.deletes else ()

    def query_name(self, stage: str) -> str:
        return f"{self.name}-{stage}"

    def input_topic(self, stage: str) -> str | None:
        """Return the stage's input topic; None for the first stage, which reads the configured source."""
        before = self.stages[: self.stages.index(stage)]
        return self.topics[before[-1]] if before else None

    def topics_read(self, stage: str) -> list[str]:
        topic = self.input_topic(stage)
        if topic is None and isinstance(self.extract, FromTopic):
            topic = self.extract.topic
        return [] if topic is None else [topic]

    def checkpoint_identity(self, stage: str) -> dict[str, str]:
        """Return the properties that must not change while the checkpoint is used."""
        reads = self.input_topic(stage) or endpoint_text(self.extract)
        writes = self.topics.get(stage) or endpoint_text(self.load)
        return {"pipeline": "etl", "stage": stage, "from": reads, "to": writes}


def endpoint_text(end: ExtractSpec | LoadSpec) -> str:
    match end:
        case FromFiles(path):
            return path
        case FromDatabase(url, table) | ToPostgres(url, table):
            return f"{without_password(url)}, table {table}"
        case FromTopic(topic) | ToTopic(topic):
            return f"topic {topic}"
        case ToLake(_, folder):
            return str(folder)
