"""AlterConfigs: api key 33, versions 0 to 2.

Replaces all settings of a topic, of a group, of this broker or of all brokers.

Behaviour
    A setting that the request does not name returns to its default; an empty list clears all settings.
    Each resource is changed, or rejected, on its own. validate_only decides and changes nothing.
    The settings are validated before the topic's existence: both wrong gives INVALID_CONFIG.
    A broker's settings are rejected with INVALID_REQUEST where a topic's get INVALID_CONFIG.
    Broker "" holds the defaults of all brokers.
    A broker setting that this release does not know is stored and listed, and has no effect.
Versions
    2  flexible encoding
Differs from Kafka
    A resource that is named twice is rejected twice; Kafka 4.2 never replies to such a request.
    At most 100 broker settings that this release does not know are stored for each broker.
    Only topics, brokers and groups have settings, and groups only those of consumers.
    At most 10,000 resources in one request.
"""

from penstock.broker.cluster.config_resources import ConfigResource, ResourceChange, alter_resources
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at
from penstock.config.alter import Alteration
from penstock.errors import ErrorCode
from penstock.protocol.messages.alter_configs import (
    ALTER_CONFIGS,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from penstock.security.access import Operation


class AlterConfigs:
    api = ServedApi(ALTER_CONFIGS, Operation.ALTER_CONFIGS, TOPIC, names_at("resources", "resource_name"))

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        wanted = [_resource_change(resource) for resource in request.resources]
        outcomes = await alter_resources(self._cluster, context, wanted, validate_only=request.validate_only)
        return AlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=rejection.code if rejection else ErrorCode.NONE,
                    error_message=rejection.detail if rejection else None,
                    resource_type=each.resource.type,
                    resource_name=each.resource.name,
                )
                for each, rejection in zip(wanted, outcomes, strict=True)
            ]
        )


def _resource_change(resource: AlterConfigsResource) -> ResourceChange:
    alterations = [Alteration(entry.name, entry.value) for entry in resource.configs]
    return ResourceChange(
        ConfigResource(resource.resource_type, resource.resource_name), alterations, replaces_all=True
    )
