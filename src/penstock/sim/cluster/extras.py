"""What some seeds have beside the plain plan: settings of topics, other clients, more partitions, worker jobs
that are interrupted, and the faults that need them.

Rule: extras are drawn from a random stream of their own. A new extra never changes the plain plan of a seed,
      and `--without extras` runs that plan alone.
"""

from random import Random
from typing import Any, Final, NamedTuple

NO_LIMIT: Final = -1
# What a failing plan may be tried without, as fields of Extras.
WITHOUT_OF_EXTRAS: Final[dict[str, dict[str, Any]]] = {
    "deletions": {"deletes_records": False},
    "retention": {"retention_ms": NO_LIMIT, "retention_bytes": NO_LIMIT},
    "compaction": {"compacts": False},
    "flush-os": {"flushes_before_ack": True},
}


class Extras(NamedTuple):
    deletes_records: bool = False
    """An administrator calls DeleteRecords."""
    retention_ms: int = NO_LIMIT
    retention_bytes: int = NO_LIMIT
    compacts: bool = False
    """The cleaner works on `__consumer_offsets`, with small segments, all the time."""
    flushes_before_ack: bool = True
    """False: all topics have flush.policy=os. A broker loses power only where another one in sync keeps its
    memory, and then has lost what it had acknowledged."""

    @property
    def has_retention(self) -> bool:
        return self.retention_ms != NO_LIMIT or self.retention_bytes != NO_LIMIT

    @property
    def moves_start(self) -> bool:
        return self.deletes_records or self.has_retention

    def without(self, name: str) -> "Extras":
        """Without something that WITHOUT_OF_EXTRAS names."""
        return self._replace(**WITHOUT_OF_EXTRAS[name])


NO_EXTRAS: Final = Extras()


def drawn_extras(seed: int) -> Extras:
    random = Random(f"extras {seed}")
    retention = random.choice(("none", "none", "none", "ms", "bytes"))
    return Extras(
        deletes_records=random.random() < 0.35,
        retention_ms=random.choice((4_000, 15_000)) if retention == "ms" else NO_LIMIT,
        retention_bytes=random.choice((2_000, 10_000)) if retention == "bytes" else NO_LIMIT,
        compacts=random.random() < 0.35,
        flushes_before_ack=random.random() < 0.8,
    )
