"""The assignors: they divide partitions among the members of a consumer group. Clients request them by
name.

Rule 1: an assignor is a pure function: equal input gives equal output.
Rule 2: every partition of a subscribed topic is assigned to exactly one subscriber.
Rule 3: every member is in the result, if only with an empty assignment.
"""

from collections.abc import Mapping
from typing import Final

from penstock.groups.assignors import range_ as range_assignor
from penstock.groups.assignors import uniform
from penstock.groups.assignors.spec import Assignor, GroupSpec, MemberSpec

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform.assign, "range": range_assignor.assign}

__all__ = ["ASSIGNORS", "Assignor", "GroupSpec", "MemberSpec"]
