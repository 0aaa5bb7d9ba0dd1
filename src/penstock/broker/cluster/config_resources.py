"""Config changes of resources: the shared part of AlterConfigs and IncrementalAlterConfigs.

A decision is a pure function of the image (`_decision`). `alter_resources` carries out one decision per
resource of a request, so that a rejected resource does not affect the other resources.

Rule 1: authorization is checked first, and a rejection does not reveal whether the resource exists.
Rule 2: a resource that a request names twice is rejected both times, since no order between them is defined.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.config.alter import (
    Alteration,
    alter_broker_overrides,
    alter_group_overrides,
    alter_topic_overrides,
)
from penstock.config.broker import BrokerConfig
from penstock.controller.configs import alter_broker_config, alter_group_config, alter_topic_config
from penstock.controller.decision import Decision
from penstock.controller.internal_topics import validate_internal_settings
from penstock.errors import ApiError, ErrorCode
from penstock.limits import GROUP_ID_BYTES_MAX, TOPICS_PER_REQUEST_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.security.access import CLUSTER, Operation, ResourceType

EVERY_BROKER = ""
"""The name of the broker resource that holds the defaults of all brokers."""


class ConfigResourceType(IntEnum):
    """Kafka's resource type numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    type: int
    """Number from the request; it may be no ConfigResourceType."""
    name: str


class ResourceChange(NamedTuple):
    resource: ConfigResource
    alterations: Sequence[Alteration]
    replaces_all: bool
    """Whether settings that the request does not name return to their defaults (AlterConfigs)."""


async def alter_resources(
    cluster: MetadataService,
    context: RequestContext,
    wanted: Sequence[ResourceChange],
    *,
    validate_only: bool,
) -> list[ApiError | None]:
    """Change the configs of each resource. Returns each error in order; None for success."""
    if len(wanted) > TOPICS_PER_REQUEST_MAX:
        detail = f"A request may change at most {TOPICS_PER_REQUEST_MAX} resources."
        return [ApiError(ErrorCode.INVALID_REQUEST, detail)] * len(wanted)
    mentions = Counter(each.resource for each in wanted)
    # One MetadataChange for the request, one commit per resource: the request waits for a current image and
    # for a controller once in total.
    metadata_change = MetadataChange(cluster)
    carry_out = metadata_change.validate_each if validate_only else metadata_change.commit_each
    outcomes: list[ApiError | None] = []
    for each in wanted:
        try:
            require_access(each.resource, context, Operation.ALTER_CONFIGS)
            _require_acceptable(each.resource, mentions[each.resource])
            (outcome,) = await carry_out([partial(_decision, cluster, each)])
            outcomes.append(outcome if isinstance(outcome, ApiError) else None)
        except ApiError as rejection:
            outcomes.append(rejection)
    return outcomes


def require_access(resource: ConfigResource, context: RequestContext, operation: Operation) -> None:
    """Check access to a resource.

    The access table has checked topic names already (`context.denied`). Configs of brokers require access to
    the cluster resource.
    """
    if resource.type == ConfigResourceType.GROUP:
        if not context.may(operation, ResourceType.GROUP, resource.name):
            raise ApiError(
                ErrorCode.GROUP_AUTHORIZATION_FAILED, f"{context.principal} may not do this to the group."
            )
        return
    if resource.type == ConfigResourceType.TOPIC:
        if resource.name in context.denied:
            raise ApiError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.principal} may not do this to the topic."
            )
    elif not context.may(operation, CLUSTER.type, CLUSTER.name):
        raise ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.principal} may not do this to the cluster."
        )


def require_supported(resource: ConfigResource) -> None:
    if resource.type in (ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.GROUP):
        return
    kinds = [kind.name for kind in ConfigResourceType if kind == resource.type]
    kind = kinds[0] if kinds else f"type {resource.type}"
    raise ApiError(
        ErrorCode.INVALID_REQUEST, f"Resources of {kind} have no settings here; TOPIC, BROKER and GROUP have."
    )


def require_group_name(resource: ConfigResource) -> None:
    if not 0 < len(resource.name.encode()) <= GROUP_ID_BYTES_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"A group has a name of 1 to {GROUP_ID_BYTES_MAX} bytes.")


def broker_id_of(resource: ConfigResource, config: BrokerConfig) -> int | None:
    """This broker's id, or None for the cluster-wide defaults. ApiError: the id of another broker."""
    node_id = config.node.node_id
    if resource.name == EVERY_BROKER:
        return None
    if resource.name != str(node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {node_id}; it was asked for the settings of broker {resource.name!r}.",
        )
    return node_id


def _require_acceptable(resource: ConfigResource, mentions: int) -> None:
    if mentions > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{resource.name!r} is given more than once.")
    require_supported(resource)
    if resource.type == ConfigResourceType.TOPIC and not resource.name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "A topic name must not be empty.")
    if resource.type == ConfigResourceType.GROUP:
        require_group_name(resource)


def _decision(cluster: MetadataService, wanted: ResourceChange, image: ClusterImage) -> Decision:
    resource, alterations, replaces_all = wanted
    config = cluster.config
    if resource.type == ConfigResourceType.TOPIC:
        topic = image.topics.get(resource.name)
        current = topic.overrides if topic is not None and not replaces_all else {}
        # Like Kafka, an invalid config is reported before an unknown topic.
        overrides = alter_topic_overrides(current, alterations, config)
        validate_internal_settings(resource.name, overrides)
        return alter_topic_config(image, resource.name, overrides)
    if resource.type == ConfigResourceType.GROUP:
        current = {} if replaces_all else image.overrides_of_group(resource.name).overrides
        overrides = alter_group_overrides(current, alterations, config)
        return alter_group_config(image, resource.name, overrides, cluster.limits.groups_with_settings_max)
    broker_id = broker_id_of(resource, config)
    current = {} if replaces_all else image.overrides_of_broker(broker_id).overrides
    try:
        overrides = alter_broker_overrides(current, alterations, config, cluster_wide=broker_id is None)
    except ApiError as rejection:
        raise ApiError(ErrorCode.INVALID_REQUEST, rejection.detail) from None  # Kafka's code for brokers
    return alter_broker_config(image, broker_id, overrides)
