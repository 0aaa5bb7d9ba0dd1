"""The parameters that a seed draws first for a log simulation: sizes, settings, and which faults are on."""

from random import Random
from typing import NamedTuple

from penstock.config.topic import FlushPolicy
from penstock.limits import LONG_MAX

COMPACTED_SEGMENT_BYTES_MAX = 4_000
SEGMENTS_GROW = 3


class Choices(NamedTuple):
    """The parameters of one seed. Not every run has every fault, because some faults hide others."""

    policy: FlushPolicy
    partitions: int
    lives: int
    life_seconds: float
    segment_bytes: int
    index_interval_bytes: int
    retention_ms: int
    retention_bytes: int
    timeout_seconds: float
    sync_seconds: float
    cold_reads: float
    deletes: bool
    fills_up: bool
    sync_fails: bool
    open_files_max: int
    runs_out_of_files: bool
    compacts: bool
    delete_retention_ms: int
    max_compaction_lag_ms: int

    @classmethod
    def draw(cls, random: Random) -> "Choices":
        return cls(
            policy=random.choice([FlushPolicy.BEFORE_ACK] * 3 + [FlushPolicy.INTERVAL, FlushPolicy.OS]),
            partitions=random.choice((1, 1, 2, 3)),
            lives=random.randint(1, 4),
            life_seconds=random.choice((1.0, 4.0, 9.0)),
            segment_bytes=random.choice((1_000, 3_000, 20_000)),
            index_interval_bytes=random.choice((1, 150, 1_000)),
            retention_ms=random.choice((-1, -1, 5_000)),
            retention_bytes=random.choice((-1, -1, 4_000)),
            timeout_seconds=random.choice((0.2, 5.0)),
            sync_seconds=random.choice((0.001, 0.02, 0.5)),
            cold_reads=random.choice((0.0, 0.3, 1.0)),
            deletes=random.random() < 0.4,
            fills_up=random.random() < 0.3,
            sync_fails=random.random() < 0.3,
            open_files_max=random.choice((3, 3, 7)),
            runs_out_of_files=random.random() < 0.3,
            compacts=random.random() < 0.5,
            delete_retention_ms=random.choice((0, 500, 5_000)),
            max_compaction_lag_ms=random.choice((3_000, 10_000, LONG_MAX)),
        )

    def is_compacted(self, number: int) -> bool:
        """Whether the topic is compacted. With several topics, some are not."""
        return self.compacts and number % 2 == 0

    @property
    def lives_in_all(self) -> int:
        """The number of process lives.

        The next cleaning, in another life, reads what an interrupted one left behind.
        """
        return self.lives + 2 if self.compacts else self.lives

    @property
    def life_seconds_mean(self) -> float:
        """The average length of a life. Shorter lives would end before the first cleaning does."""
        return max(self.life_seconds, 4.0) if self.compacts else self.life_seconds

    def segment_bytes_in(self, life: int) -> int:
        """The size of segments in one life.

        Where logs are compacted, the segment size changes from life to life, as an operator may change it.
        While all segments are full, no two of them fit into one when they are cleaned. After segments
        became larger, several are merged into one, and a process that ends meanwhile leaves some of them
        beside the segment that replaces them. Segments that no life fills would never be cleaned.
        """
        if not self.compacts:
            return self.segment_bytes
        filled = min(self.segment_bytes, COMPACTED_SEGMENT_BYTES_MAX)
        return filled * SEGMENTS_GROW if life % 2 == 1 else filled

    def overrides(self, number: int) -> dict[str, str]:
        """The topic's own settings."""
        if not self.is_compacted(number):
            return {}
        return {
            "cleanup.policy": "compact,delete" if self.retention_bytes > 0 else "compact",
            "delete.retention.ms": str(self.delete_retention_ms),
            "max.compaction.lag.ms": str(self.max_compaction_lag_ms),
            "min.cleanable.dirty.ratio": "0.1",
        }
