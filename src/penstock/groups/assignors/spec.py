"""What an assignor is told."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.groups.consumer.assignment import Assignment
from penstock.types import TopicId


class MemberSpec(NamedTuple):
    topics: frozenset[TopicId]
    """Those it subscribes to that exist."""
    assignment: Assignment
    """What it was to have so far."""
    instance_id: str | None = None


class GroupSpec(NamedTuple):
    members: Mapping[str, MemberSpec]
    partitions: Mapping[TopicId, int]
    """How many each topic has."""

    @property
    def is_homogeneous(self) -> bool:
        """Whether everybody subscribes to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


Assignor = Callable[[GroupSpec], dict[str, Assignment]]
