"""What a file says about the stages of an etl, checked and typed.

Plain values: which stages there are, what each reads and writes, under which names.
"""

from pathlib import Path
from typing import Final, NamedTuple

from penstock.spark.lake.partitioning import PartitionBy
from penstock.spark.options.options import READ_COMMITTED
from penstock.spark.pipelines.etl.address import without_password

DELETED: Final = "_deleted"
"""A column that is true in rows that say that what their key names is gone, and null in others."""
STAGES: Final = ("extract", "transform", "enrich", "load")


class FromFiles(NamedTuple):
    path: str
    format: str
    schema: str
    options: dict[str, str]
    files_per_batch: int


class FromDatabase(NamedTuple):
    url: str
    table: str
    column: str
    """Grows with every new row: only rows beyond the last value seen are read."""
    schema: str | None
    is_unique: bool = False
    """No value of `column` comes twice, although the database does not know it."""
    same_value_s: float | None = None
    """For so long at most, rows come with a value of `column` that another has. None: nobody knows."""


class FromTopic(NamedTuple):
    topic: str
    format: str
    schema: str
    message: str | None
    key_column: str | None = None
    """What a record's key is: a column of the rows, of the value's or one more."""
    timestamp_column: str | None = None
    headers_column: str | None = None
    tombstones: str = "dead"
    """What becomes of records without a value: dead, row, delete."""


ExtractSpec = FromFiles | FromDatabase | FromTopic


class Sql(NamedTuple):
    text: str


class PythonFunction(NamedTuple):
    file: Path | None
    """None if it is a module that Python finds by itself."""
    module: str
    function: str


TransformSpec = Sql | PythonFunction


class Reference(NamedTuple):
    """A table to look things up in."""

    format: str
    place: str
    """A path, or the address of a database."""
    table: str | None
    schema: str | None
    options: dict[str, str]


class EnrichSpec(NamedTuple):
    reference: Reference
    on: tuple[str, ...]
    missing: str
    """What becomes of a row that the reference has nothing for: keep, drop, dead."""
    refresh_s: float


class ToLake(NamedTuple):
    format: str
    folder: Path
    partition_by: PartitionBy
    time_column: str


class ToPostgres(NamedTuple):
    url: str
    table: str
    key: tuple[str, ...]
    """Rows with the same key replace each other. Empty: every row is one more."""
    version: str | None = None
    """Of rows with the same key, the one with the largest value here stays. None: the one that came last."""


class ToTopic(NamedTuple):
    topic: str


LoadSpec = ToLake | ToPostgres | ToTopic


class Spec(NamedTuple):
    file: Path
    name: str
    key: tuple[str, ...]
    """Columns whose values are the key of records between stages. Rows of one key stay in their order."""
    partitions: int
    dead_letters: str
    checkpoint: Path
    extract: ExtractSpec
    transform: TransformSpec | None
    enrich: EnrichSpec | None
    load: LoadSpec
    topics: dict[str, str]
    """What each stage but the last writes to, in the order of stages."""
    isolation: str = READ_COMMITTED
    """Of every read of a topic."""

    @property
    def stages(self) -> tuple[str, ...]:
        return (*self.topics, "load")

    @property
    def deletes(self) -> bool:
        """Whether a record without a value deletes what its key names in the target."""
        return isinstance(self.extract, FromTopic) and self.extract.tombstones == "delete"

    @property
    def key_in_every_stage(self) -> tuple[str, ...]:
        """Columns that rows must have from the first stage on, or versions of a row overtake each other."""
        is_ordered = isinstance(self.load, ToPostgres) and self.load.key and self.load.version is None
        return self.key if is_ordered or self.deletes else ()

    def query_name(self, stage: str) -> str:
        return f"{self.name}-{stage}"

    def input_topic(self, stage: str) -> str | None:
        """None for the first stage, which reads what the file says."""
        before = self.stages[: self.stages.index(stage)]
        return self.topics[before[-1]] if before else None

    def topics_read(self, stage: str) -> list[str]:
        topic = self.input_topic(stage)
        if topic is None and isinstance(self.extract, FromTopic):
            topic = self.extract.topic
        return [] if topic is None else [topic]

    def checkpoint_identity(self, stage: str) -> dict[str, str]:
        """Whose checkpoint it is: what must not change while it is used."""
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
