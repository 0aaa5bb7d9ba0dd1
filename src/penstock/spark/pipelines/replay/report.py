"""Reports of a replay and of a dry run, and the names of the headers that a replay adds."""

from typing import Any, Final, NamedTuple

from penstock.spark.pipelines.common import report

SOURCE_HEADER_PREFIX: Final = "penstock-replay-source-"
"""Prefix of the headers that identify the source record of a replayed record."""
SOURCE_COLUMNS: Final = ("topic", "partition", "offset")
"""Suffixes of these headers."""


class ReplayReport(NamedTuple):
    name: str
    table: str
    to: str
    rows: int
    bytes: int
    batches: int
    seconds: float
    rows_in_all: int
    """Rows of this run and of earlier runs of the same replay."""
    left: int
    """Offsets that are still to be sent."""
    ends: dict[str, dict[str, int]]
    checkpoint: str

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    def document(self) -> dict[str, Any]:
        return report.document({"pipeline": "replay", **self._asdict(), "rows_per_s": self.rows_per_s})

    def lines(self) -> list[str]:
        earlier = self.rows_in_all - self.rows
        again = f"{self.left:,} offsets: the same command goes on" if self.left else None
        nothing = not self.left and not self.rows and earlier
        return report.lines(
            {
                "replayed": self.table,
                "to": self.to,
                "rows": self.rows,
                "size": report.size_text(self.bytes),
                "batches": self.batches,
                "seconds": self.seconds,
                "rows/s": round(self.rows_per_s),
                "earlier": f"{earlier:,} rows by runs before this" if earlier else None,
                "left": again,
                "done": f"before: to replay all again, give another --name than {self.name}"
                if nothing
                else None,
                "checkpoint": self.checkpoint,
            }
        )


class DryReport(NamedTuple):
    """Result of a dry run: what a run would send now."""

    table: str
    to: str
    rows: int
    bytes: int
    partitions: dict[str, dict[str, int]]
    """Rows of each partition of the table."""
    first_timestamp: str | None
    last_timestamp: str | None
    seconds_at_least: float | None

    def document(self) -> dict[str, Any]:
        return report.document({"pipeline": "replay", "dry_run": True, **self._asdict()})

    def lines(self) -> list[str]:
        each = {
            f"{topic}/{number}": rows
            for topic, counts in self.partitions.items()
            for number, rows in counts.items()
        }
        return report.lines(
            {
                "would replay": self.table,
                "to": self.to,
                "rows": self.rows,
                "size": report.size_text(self.bytes),
                "first": self.first_timestamp,
                "last": self.last_timestamp,
                "takes": None
                if self.seconds_at_least is None
                else f"{self.seconds_at_least:,.1f} s at least",
                **each,
            }
        )
