"""The input of an assignor."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.groups.consumer.assignment import Assignment
from penstock.types import TopicId


class MemberSpec(NamedTuple):
    topics: frozenset[TopicId]
    """Subscribed topics that exist."""
    assignment: Assignment
    """Previous target assignment."""
    instance_id: str | None = None


class GroupSpec(NamedTuple):
    members: Mapping[str, MemberSpec]
    partitions: Mapping[TopicId, int]
    """Number of partitions by topic."""

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


Assignor = Callable[[GroupSpec], dict[str, Assignment]]
