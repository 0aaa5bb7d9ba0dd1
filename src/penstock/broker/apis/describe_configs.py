"""DescribeConfigs: api key 32, versions 1 to 4.

Lists the settings of topics, of groups, of this broker or of all brokers, and where each value comes from.

Behaviour
    Without keys (null or an empty list) every setting is listed; unknown keys are left out.
    Synonyms and documentation are filled in on request.
    Broker "" lists the dynamic settings of all brokers.
    A group is described whether or not it exists.
    The error message is empty, not null, where there is nothing to add.
Versions
    3  types and documentation
Differs from Kafka
    A resource that is named twice is listed once, so that a small request cannot cause a huge reply.
    Only topics, brokers and groups have settings, and groups only those of consumers.
"""

from collections.abc import Collection, Iterable

from penstock.broker.cluster.config_resources import (
    ConfigResource,
    ConfigResourceType,
    broker_id_of,
    require_access,
    require_group_name,
    require_supported,
)
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at, never_waits
from penstock.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from penstock.controller.topics import require_legal_name
from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.security.access import Operation


class DescribeConfigs:
    api = ServedApi(
        DESCRIBE_CONFIGS,
        Operation.DESCRIBE_CONFIGS,
        TOPIC,
        names_at("resources", "resource_name"),
        weigh=never_waits,
    )

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    def __call__(self, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
        asked = {ConfigResource(each.resource_type, each.resource_name): each for each in request.resources}
        return DescribeConfigsResponse(
            results=[self._result(resource, each, request, context) for resource, each in asked.items()]
        )

    def _result(
        self,
        resource: ConfigResource,
        asked: DescribeConfigsResource,
        request: DescribeConfigsRequest,
        context: RequestContext,
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_message="", resource_type=resource.type, resource_name=resource.name
        )
        try:
            require_access(resource, context, Operation.DESCRIBE_CONFIGS)
            entries = _chosen(self._entries(resource), asked.configuration_keys)
            result.configs = [_shown(entry, request) for entry in entries]
        except ApiError as rejection:
            result.error_code, result.error_message = rejection.code, rejection.detail
        return result

    def _entries(self, resource: ConfigResource) -> list[ConfigEntry]:
        require_supported(resource)
        config = self._cluster.config
        if resource.type == ConfigResourceType.TOPIC:
            require_legal_name(resource.name)
            topic = self._cluster.image.topics.get(resource.name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return describe_topic(topic.overrides, config)
        if resource.type == ConfigResourceType.GROUP:
            require_group_name(resource)
            return describe_group(self._cluster.image.overrides_of_group(resource.name).overrides, config)
        if broker_id_of(resource, config) is None:
            return describe_cluster_defaults(config)
        return describe_broker(config)


def _chosen(entries: list[ConfigEntry], keys: Collection[str] | None) -> Iterable[ConfigEntry]:
    if not keys:
        return entries
    wanted = frozenset(keys)
    return (entry for entry in entries if entry.name in wanted)


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[DescribeConfigsSynonym(name, value, source) for name, value, source in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
