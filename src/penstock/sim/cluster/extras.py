"""Optional parts of a seed: topic settings, clients, partitions, interrupted jobs, and their faults.

Rule: Extras are drawn from a random stream of their own. A new extra never changes the plain plan of a
      seed, and `--without extras` runs that plan alone.
"""

from random import Random
from typing import Any, Final, NamedTuple

NO_LIMIT: Final = -1
CROWD: Final = 210
# Names of parts that a failing plan may be run without, with the fields of Extras that turn them off.
WITHOUT_OF_EXTRAS: Final[dict[str, dict[str, Any]]] = {
    "deletions": {"deletes_records": False, "crashes_at_deletions": False},
    "deletion-crashes": {"crashes_at_deletions": False},
    "retention": {"retention_ms": NO_LIMIT, "retention_bytes": NO_LIMIT},
    "compaction": {"compacts": False},
    "flush-os": {"flushes_before_ack": True},
    "rot": {"rots": False},
    "deposals": {"deposes": False},
    "isolations": {"isolates": False},
    "classic": {"classic": 0},
    "crowd": {"crowd": 0},
    "job-steps": {"job_steps": 0.0},
    "follower-reads": {"follower_reads": 0.0, "cold_reads": 0.0},
}


class Extras(NamedTuple):
    deletes_records: bool = False
    """A client sends DeleteRecords."""
    crashes_at_deletions: bool = False
    """All brokers lose power at the moment when a deletion is confirmed."""
    retention_ms: int = NO_LIMIT
    retention_bytes: int = NO_LIMIT
    compacts: bool = False
    """The cleaner works on `__consumer_offsets`, with small segments, all the time."""
    flushes_before_ack: bool = True
    """False: all topics have flush.policy=os. A broker then loses power only where another one in the ISR
    keeps its memory, and it has then lost acknowledged records.
    """
    rots: bool = False
    """Bits flip on platters."""
    deposes: bool = False
    """Leaders are deposed and reinstated. At times one in-sync replica must suffice for that."""
    isolates: bool = False
    """Leaders are cut off from the other brokers alone."""
    classic: int = 0
    """The number of group members that use the classic protocol."""
    is_all_classic: bool = False
    """All members of the group use the classic protocol."""
    crowd: int = 0
    """The number of partitions of one more topic, most of which get no records. They are so many that
    followers need a second fetch session, and that changes of ISRs are batched.
    """
    job_steps: float = 0.0
    """The probability that a worker job is interrupted at a disk call."""
    follower_reads: float = 0.0
    """The probability that a reader fetches from any broker, not from the leader."""
    cold_reads: float = 0.0
    """The lowest probability that bytes are not in memory."""

    @property
    def has_retention(self) -> bool:
        return self.retention_ms != NO_LIMIT or self.retention_bytes != NO_LIMIT

    @property
    def moves_start(self) -> bool:
        return self.deletes_records or self.has_retention

    def without(self, name: str) -> "Extras":
        """These extras without the part named in WITHOUT_OF_EXTRAS."""
        return self._replace(**WITHOUT_OF_EXTRAS[name])


NO_EXTRAS: Final = Extras()


def draw_extras(seed: int, *, changes_minimum: bool, wipes: bool) -> Extras:
    """Draw the extras, each from its own random stream, so that a new extra leaves the others unchanged.

    Extras that lose a disk are not drawn where one in-sync replica may suffice: no other replica need have
    its records.
    """

    def random(name: str) -> Random:
        return Random(f"extra {name} {seed}")

    flushes_before_ack = random("flush").random() < 0.8
    deletes_records = random("deletions").random() < 0.35
    crashes_at_deletions = random("deletion crashes").random() < 0.7
    deposes = random("depose").random() < 0.2 and flushes_before_ack and not wipes
    retention, reads, classic = random("retention"), random("reads"), random("classic")
    limit = retention.choice(("none", "none", "none", "ms", "bytes"))
    reads_followers = reads.random() < 0.3
    return Extras(
        deletes_records=deletes_records,
        crashes_at_deletions=crashes_at_deletions and deletes_records and flushes_before_ack,
        retention_ms=retention.choice((4_000, 15_000)) if limit == "ms" else NO_LIMIT,
        retention_bytes=retention.choice((2_000, 10_000)) if limit == "bytes" else NO_LIMIT,
        compacts=random("compaction").random() < 0.35,
        flushes_before_ack=flushes_before_ack,
        deposes=deposes,
        rots=random("rot").random() < 0.35 and not changes_minimum and not deposes and flushes_before_ack,
        isolates=random("isolations").random() < 0.25,
        classic=classic.choice((0, 0, 0, 0, 1, 2, 3)),
        is_all_classic=classic.random() < 0.4,
        crowd=CROWD if random("crowd").random() < 0.04 else 0,
        job_steps=random("steps").choice((0.0, 0.0, 0.0, 0.1, 0.4)),
        follower_reads=reads.choice((0.3, 0.6)) if reads_followers else 0.0,
        cold_reads=reads.choice((0.3, 0.8)) if reads_followers else 0.0,
    )
