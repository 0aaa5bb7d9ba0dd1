"""Declaration of one API: its messages, the operation it performs on which resources, and a request's weight.

Each file in `apis/` declares its API as `api` of the handler's class. The router derives from it what
ApiVersions lists, and has the authorizer check every name in a request before the handler runs.

Rule 1: `names` yields what the request itself names. A resource that only the handler can know (a topic that
        is created on the way, all existing topics) is checked by the handler, through its context.
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
"""The resources that a request names, given an image of the cluster."""
Weigh = Callable[[Any, int], int]
"""The memory weight of a request that waits for its reply, from the request and the size of its frame."""


def weigh_by_size(request: Any, frame_bytes: int) -> int:
    return DECODED_REQUEST_BYTES + DECODED_BYTES_PER_BYTE * frame_bytes


def never_waits(request: Any, frame_bytes: int) -> int:
    """The weight of requests whose handler always replies at once."""
    return 0


def weigh_parked(request: Any, frame_bytes: int) -> int:
    """The weight of a group member's request that waits for other members.

    By then the group holds the request's content, and the group bounds it.
    """
    return DECODED_REQUEST_BYTES


class ServedApi(NamedTuple):
    messages: Api[Struct, Struct]
    operation: Operation
    resource_type: ResourceType
    names: NameExtractor
    weigh: Weigh = weigh_by_size
    oldest_advertised: int | None = None
    """Lower than the oldest version that is served, for old clients that infer features from the version
    range.
    """
    is_advertised: bool = True
    """Whether ApiVersions lists the API for clients."""

    def denied_names(
        self, request: Any, image: ClusterImage, principal: Principal, authorizer: Authorizer
    ) -> frozenset[str]:
        """The names in `request` on which the principal may not perform this operation."""
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
    """Names found by following attributes, through lists on the way."""

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
