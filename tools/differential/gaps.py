"""Differences that are meant. Each id is a row of docs/protocol-gaps.md, which says why.

A gap covers a difference when its case and path patterns match (shell patterns; `*` also spans dots)
and, where given, the two values match too. A gap that covers nothing in a whole run is reported: it
has been closed, or its pattern is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tools.differential.compare import Difference


@dataclass(frozen=True)
class Gap:
    id: str
    case: str
    path: str = "*"
    kafka: str = "*"
    penstock: str = "*"

    def covers(self, case: str, difference: Difference) -> bool:
        return (
            fnmatchcase(case, self.case)
            and fnmatchcase(difference.path, self.path)
            and fnmatchcase(str(difference.kafka), self.kafka)
            and fnmatchcase(str(difference.penstock), self.penstock)
        )


def covering(gaps: Sequence[Gap], case: str, difference: Difference) -> Gap | None:
    """The first gap that covers the difference."""
    return next((gap for gap in gaps if gap.covers(case, difference)), None)


GAPS: tuple[Gap, ...] = ()
