"""IncrementalAlterConfigs: api key 44, versions 0 to 1.

Sets, deletes, appends to or subtracts from single settings of a topic, of a group, of this broker or of all.

Behaviour
    Settings that are not named stay as they are. Deleting a setting that is not set succeeds, whatever its
    name.
    Appending and subtracting start from the effective value, the default included.
    One rejected setting rejects its resource; other resources are changed nevertheless.
    validate_only decides and changes nothing.
    The settings are validated before the topic's existence: both wrong gives INVALID_CONFIG.
    A broker's settings are rejected with INVALID_REQUEST where a topic's get INVALID_CONFIG.
    Broker "" holds the defaults of all brokers.
    A broker setting that this release does not know is stored and listed, and has no effect.
Versions
    1  flexible encoding
Differs from Kafka
    An operation that does not exist gives INVALID_REQUEST; Kafka replies UNKNOWN_SERVER_ERROR.
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
from penstock.protocol.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.security.access import Operation


class IncrementalAlterConfigs:
    api = ServedApi(
        INCREMENTAL_ALTER_CONFIGS, Operation.ALTER_CONFIGS, TOPIC, names_at("resources", "resource_name")
    )

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        wanted = [_resource_change(resource) for resource in request.resources]
        outcomes = await alter_resources(self._cluster, context, wanted, validate_only=request.validate_only)
        return IncrementalAlterConfigsResponse(
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
    alterations = [Alteration(entry.name, entry.value, entry.config_operation) for entry in resource.configs]
    return ResourceChange(
        ConfigResource(resource.resource_type, resource.resource_name), alterations, replaces_all=False
    )
