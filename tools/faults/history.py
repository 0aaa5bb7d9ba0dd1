"""What clients of a cluster did and saw, in their own words.

Every value that is written is unique. A write is acknowledged, refused, or nobody knows: then it may be there
and may not. Times are of one clock.
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
    REFUSED = "refused"
    """The broker said that it will not be there."""
    UNKNOWN = "unknown"


class Write(NamedTuple):
    producer: str
    """A client that began anew is another producer."""
    partition: int
    value: str
    began: float
    ended: float
    outcome: Outcome
    offset: int | None = None
    """Where it was stored, as the broker said."""


class Read(NamedTuple):
    consumer: str
    """Somebody who reads on from where he was. A member of a group is another one whenever he is given the
    partition: what is between is up to the group."""
    partition: int
    offset: int
    value: str
    at: float


class Given(NamedTuple):
    """A member of a group was given a partition, and then asks where the group was."""

    group: str
    consumer: str
    """As whom it reads this partition from now on."""
    partition: int
    at: float


class Commit(NamedTuple):
    """A member wanted a place of its group to be stored."""

    group: str
    partition: int
    offset: int
    at: float
    """When it was told what became of it. Infinity: never."""
    is_stored: bool = True
    """Else nobody knows."""


class Denial(NamedTuple):
    """A consumer was told that its place is not there."""

    consumer: str
    partition: int
    detail: str


class FaultSpan(NamedTuple):
    """When something was wrong."""

    kind: str
    what: str
    began: float
    ended: float
    partitions: tuple[int, ...] = ()
    """Those whose clients had to notice: the victim led them."""
    until: float = 0.0
    """When everything was well again. 0: this was not waited for."""


@dataclass(slots=True)
class History:
    writes: list[Write] = field(default_factory=list)
    """Of each producer, in the order it was told."""
    reads: list[Read] = field(default_factory=list)
    """Of each consumer that was assigned its partitions and never seeks, in the order it got them."""
    group_reads: dict[str, list[Read]] = field(default_factory=dict)
    """By group, of each consumer in the order it got them."""
    given: list[Given] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    """What is there at the end, read from the start when everything had healed."""
    faults: list[FaultSpan] = field(default_factory=list)
    clients: int = 0
    """How many clients there were, one after another."""


def write_down(history: History, path: Path) -> None:
    """One thing in each line, of each kind in its order, to look at with other tools."""
    kinds: list[Sequence[NamedTuple]] = [
        history.faults,
        history.writes,
        history.reads,
        *history.group_reads.values(),
        history.given,
        history.commits,
        history.denials,
        history.final,
    ]
    with path.open("w") as file:
        for each in chain(*kinds):
            file.write(json.dumps({"is": type(each).__name__, **each._asdict()}) + "\n")
