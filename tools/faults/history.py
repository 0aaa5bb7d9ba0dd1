"""History of a run: what the clients of a cluster did and saw.

Every written value is unique. A write is acknowledged, rejected, or its outcome is unknown: then it may be
stored or not. All times are of one monotonic clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import NamedTuple


class Outcome(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"
    """The broker said that it does not store the record."""
    UNKNOWN = "unknown"


class Write(NamedTuple):
    producer: str
    """Name of the producer. A client that crashed and was replaced counts as another producer."""
    partition: int
    value: str
    began: float
    ended: float
    outcome: Outcome
    offset: int | None = None
    """The offset in the acknowledgement."""


class Read(NamedTuple):
    consumer: str
    """Name of a consumer that reads on from its position. A member of a group has another name in each
    assignment, since the group decides where an assignment begins."""
    partition: int
    offset: int
    value: str
    at: float


class Assignment(NamedTuple):
    """A member of a group was assigned a partition, and then fetches the committed offset."""

    group: str
    consumer: str
    """Name of the consumer in all reads of this assignment."""
    partition: int
    at: float


class Commit(NamedTuple):
    """A commit of an offset by a member of a group."""

    group: str
    partition: int
    offset: int
    at: float
    """Time of the reply. Infinity: the member crashed before it."""
    is_stored: bool = True
    """False: the outcome is unknown."""


class Denial(NamedTuple):
    """A consumer's position was rejected as out of range."""

    consumer: str
    partition: int
    detail: str


class FaultSpan(NamedTuple):
    """The time of one fault."""

    kind: str
    what: str
    began: float
    ended: float
    partitions: tuple[int, ...] = ()
    """Partitions whose clients are affected: the broker with the fault led them."""
    until: float = 0.0
    """When the cluster had recovered. 0: the run did not wait for it."""


@dataclass(slots=True)
class History:
    writes: list[Write] = field(default_factory=list)
    """Each producer's writes in the order of their replies."""
    reads: list[Read] = field(default_factory=list)
    """Reads of the consumers outside of groups, which never seek; each consumer's in their order."""
    group_reads: dict[str, list[Read]] = field(default_factory=dict)
    """By group; each consumer's reads in their order."""
    assignments: list[Assignment] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    """All records at the end, read from the start after all faults were healed."""
    faults: list[FaultSpan] = field(default_factory=list)
    clients: int = 0
    """Number of clients, the replaced ones included."""


def write_down(history: History, path: Path) -> None:
    """Write the history as one JSON document a line, for other tools."""
    kinds: list[Sequence[NamedTuple]] = [
        history.faults,
        history.writes,
        history.reads,
        *history.group_reads.values(),
        history.assignments,
        history.commits,
        history.denials,
        history.final,
    ]
    with path.open("w") as file:
        for each in chain(*kinds):
            file.write(json.dumps({"is": type(each).__name__, **each._asdict()}) + "\n")
