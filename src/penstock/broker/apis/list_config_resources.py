"""ListConfigResources: api key 74, versions 0 to 1.

Lists the topics and brokers, which always have settings, and the groups that have settings.

Behaviour
    No types requests all of them. A type that Kafka does not have rejects the whole request.
    Kinds of resource that Kafka has and Penstock has none of are listed as empty.
Versions
    0  client metrics only: always empty
    1  resource types
Differs from Kafka
    There are no client metrics or broker loggers to list.
    A group whose settings were all removed is not listed; Kafka lists it until it restarts.
"""

from collections.abc import Collection

from penstock.broker.cluster.config_resources import ConfigResourceType
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name, never_waits
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from penstock.security.access import Operation

CLIENT_METRICS_ONLY_VERSION = 0
ALL_TYPES = frozenset(ConfigResourceType)


class ListConfigResources:
    api = ServedApi(
        LIST_CONFIG_RESOURCES, Operation.DESCRIBE_CONFIGS, ON_CLUSTER, cluster_name, weigh=never_waits
    )

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    def __call__(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        if context.cluster_denied:
            return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if context.version == CLIENT_METRICS_ONLY_VERSION:
            return ListConfigResourcesResponse()
        types = frozenset(request.resource_types) or ALL_TYPES
        if not types <= ALL_TYPES:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return ListConfigResourcesResponse(config_resources=_resources(self._cluster.image, types))


def _resources(image: ClusterImage, types: Collection[int]) -> list[ListedConfigResource]:
    found: list[ListedConfigResource] = []
    if ConfigResourceType.BROKER in types:
        found += [
            ListedConfigResource(str(number), ConfigResourceType.BROKER) for number in sorted(image.brokers)
        ]
    if ConfigResourceType.GROUP in types:
        found += [
            ListedConfigResource(name, ConfigResourceType.GROUP) for name in sorted(image.group_overrides)
        ]
    if ConfigResourceType.TOPIC in types:
        found += [ListedConfigResource(name, ConfigResourceType.TOPIC) for name in sorted(image.topics)]
    return found
