"""Ways of dividing partitions among the members of a consumer group, by the names clients ask for.

Rule 1: an assignor is a function of what it is given; the same question has the same answer.
Rule 2: every partition of a topic that somebody subscribes to is given to exactly one of those.
Rule 3: every member is in the answer, if only with nothing.
"""

from collections.abc import Mapping
from typing import Final

from penstock.groups.assignors import range_ as range_assignor
from penstock.groups.assignors import uniform
from penstock.groups.assignors.spec import Assignor, GroupSpec, MemberSpec

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform.assign, "range": range_assignor.assign}

__all__ = ["ASSIGNORS", "Assignor", "GroupSpec", "MemberSpec"]
