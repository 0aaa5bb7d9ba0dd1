"""Topic creation: topics of a CreateTopics request, and topics that are created automatically.

Rule: the decision draws the topic id, and checks it against the image that the topic is added to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.config.alter import Alteration, alter_topic_overrides
from penstock.controller.decision import Decide, Decision
from penstock.controller.topics import (
    NewTopicFacts,
    TopicDefaults,
    TopicRequest,
    create_topic,
    require_new_name,
)
from penstock.errors import ApiError, ErrorCode
from penstock.host.clock import Clock
from penstock.host.randomness import Randomness
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.metadata.cluster_image import INTERNAL_TOPICS, ClusterImage, Topic
from penstock.metadata.keys import TOPIC_ID_BYTES, acceptable_topic_id
from penstock.security.access import CLUSTER, Operation, ResourceType
from penstock.types import TopicId

_PASSING = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Transient errors of automatic creation. A producer treats these codes on a topic as final, so it receives
LEADER_NOT_AVAILABLE instead and retries."""


class RequestedTopic(NamedTuple):
    request: TopicRequest
    """Without overrides: `TopicCreation` makes them from `settings`."""
    settings: Mapping[str, str | None] = {}
    """Topic configs as the client sent them."""


class TopicCreation:
    def __init__(self, cluster: MetadataService, clock: Clock, randomness: Randomness) -> None:
        self._cluster = cluster
        self._clock = clock
        self._randomness = randomness

    async def create(
        self,
        requested: Sequence[RequestedTopic],
        *,
        validate_only: bool = False,
        waits_for_controller: bool = True,
    ) -> list[Topic | ApiError]:
        """Create topics, or only validate. Returns each topic or its error, in the order of the request.

        `waits_for_controller`: wait for a controller while the cluster has none.
        """
        decides = [self._decide(topic) for topic in requested]
        metadata_change = MetadataChange(self._cluster, waits_for_controller=waits_for_controller)
        outcomes = await (
            metadata_change.validate_each(decides) if validate_only else metadata_change.commit_each(decides)
        )
        return [
            outcome if isinstance(outcome, ApiError) else _made(outcome, topic.request.name)
            for topic, outcome in zip(requested, outcomes, strict=True)
        ]

    async def create_missing(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create missing topics with the broker's defaults. Returns the errors of those that failed."""
        # Topics beyond the limit of one request stay missing, and clients request them again.
        partitions = self._cluster.config.topic_creation.partitions_default
        names = names[: max(1, PARTITIONS_PER_TOPIC_MAX // partitions)]
        outcomes = await self.create(
            [RequestedTopic(TopicRequest(name=name)) for name in names], waits_for_controller=False
        )
        return {
            name: ErrorCode.LEADER_NOT_AVAILABLE if outcome.code in _PASSING else outcome.code
            for name, outcome in zip(names, outcomes, strict=True)
            # Another request may have created the topic at the same time: that is success.
            if isinstance(outcome, ApiError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }

    def _decide(self, requested: RequestedTopic) -> Decide:
        return lambda image: self._decision(image, requested)

    def _decision(self, image: ClusterImage, requested: RequestedTopic) -> Decision:
        config = self._cluster.config
        name = requested.request.name
        # Checked before the configs: like Kafka, a request for an existing topic gets TOPIC_ALREADY_EXISTS
        # and not an error about its configs.
        require_new_name(image, name)
        overrides = alter_topic_overrides({}, _alterations(requested.settings), config)
        return create_topic(
            image,
            replace(requested.request, overrides=overrides, internal=name in INTERNAL_TOPICS),
            NewTopicFacts(self._draw_id(image), self._clock.wall_ms()),
            defaults=TopicDefaults(
                config.topic_creation.partitions_default, config.topic_creation.replication_factor_default
            ),
        )

    def _draw_id(self, image: ClusterImage) -> TopicId:
        while True:
            drawn = TopicId(self._randomness.bytes(TOPIC_ID_BYTES))
            if acceptable_topic_id(drawn) and drawn not in image.topics_by_id:
                return drawn


def may_create_topic(context: RequestContext, name: str) -> bool:
    """Check for CREATE on the cluster or on the topic."""
    return context.may(Operation.CREATE, CLUSTER.type, CLUSTER.name) or context.may(
        Operation.CREATE, ResourceType.TOPIC, name
    )


def _made(image: ClusterImage, name: str) -> Topic | ApiError:
    found = image.topics.get(name)
    if found is None:  # the image may also include a later deletion of the topic
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} was deleted again at once.")
    return found


def _alterations(settings: Mapping[str, str | None]) -> list[Alteration]:
    for name, value in settings.items():
        if value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{name}: a value is required")
    return [Alteration(name, value) for name, value in settings.items()]
