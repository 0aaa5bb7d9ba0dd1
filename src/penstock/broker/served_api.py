"""One API as this broker serves it: its messages, what it does to which resources, what a request weighs.

Each file in `apis/` declares its own, as `api` of the handler's class. The router derives from it what
ApiVersions lists, and asks the authorizer about every name that a request names before the handler runs.

Rule 1: `names` yields what the request itself names. A resource that only the handler can know (a topic
        that is created on the way, every topic there is) is checked by the handler, through its context.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock.limits import DECODED_BYTES_PER_BYTE, DECODED_REQUEST_BYTES
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.schema import Api, Struct
from penstock.security.access import CLUSTER, Authorizer, Operation, Principal, Resource, ResourceType
from penstock.types import TopicId

TOPIC, GROUP, ON_CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER

NameExtractor = Callable[[Any, ClusterImage], Iterable[str]]
"""The resources that a request names, on a given image of the cluster."""
Weigh = Callable[[Any, int], int]
"""What a request counts as while it waits for its answer, from the request and the size of its frame."""


def weigh_by_size(request: Any, frame_bytes: int) -> int:
    return DECODED_REQUEST_BYTES + DECODED_BYTES_PER_BYTE * frame_bytes


def never_waits(request: Any, frame_bytes: int) -> int:
    """The weight of requests whose handler always answers at once."""
    return 0


def weigh_parked(request: Any, frame_bytes: int) -> int:
    """The weight of a group member's request that waits for other members.

    What the request said belongs to the group by then, and is bounded there.
    """
    return DECODED_REQUEST_BYTES


class ServedApi(NamedTuple):
    messages: Api[Struct, Struct]
    operation: Operation
    resource_type: ResourceType
    names: NameExtractor
    weigh: Weigh = weigh_by_size
    oldest_advertised: int | None = None
    """Lower than the oldest version that is served, where old clients draw conclusions from the range."""
    is_advertised: bool = True
    """Whether ApiVersions lists the API for clients."""

    def denied_names(
        self, request: Any, image: ClusterImage, principal: Principal, authorizer: Authorizer
    ) -> frozenset[str]:
        """The names in `request` on which the principal may not do this operation."""
        return frozenset(
            name
            for name in self.names(request, image)
            if not authorizer.authorise(principal, self.operation, Resource(self.resource_type, name))
        )


def no_names(request: Any, image: ClusterImage) -> Iterable[str]:
    return ()


def cluster_name(request: Any, image: ClusterImage) -> Iterable[str]:
    return (CLUSTER.name,)


def names_at(*path: str) -> NameExtractor:
    """The names found by following attributes, through lists on the way."""

    def names(request: Any, image: ClusterImage) -> Iterator[str]:
        found = [request]
        for step in path:
            values = [getattr(value, step) for value in found]
            found = [item for value in values for item in (value if isinstance(value, list) else [value])]
        return (name for name in found if name)

    return names


def topics_named(list_field: str, name_field: str) -> NameExtractor:
    """Topics given by name or, in versions that have no names, by id."""

    def names(request: Any, image: ClusterImage) -> Iterator[str]:
        for topic in getattr(request, list_field) or ():
            name = getattr(topic, name_field) or _name_of(image, topic.topic_id)
            if name:
                yield name

    return names


def _name_of(image: ClusterImage, topic_id: TopicId) -> str | None:
    topic = image.topics_by_id.get(topic_id)
    return topic.name if topic else None
