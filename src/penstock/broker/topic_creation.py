"""Changing topics for a request: one decision for each topic, and how a new topic comes about.

Strategy: a request about many topics is decided topic by topic, each on the image that the ones
before it leave behind, and committed in groups: one transaction for a group, not one for a topic.
A topic that is refused leaves the others of its group alone.

Rule 1: the decisions of one call are about different topics. The handlers sort out duplicates.
Rule 2: the id of a topic is drawn when it is decided, against the image it will be added to.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.broker.cluster import Cluster, Decide
from penstock.broker.context import RequestContext
from penstock.config.alter import replace_topic
from penstock.controller.decision import Decision, together
from penstock.controller.topics import NewTopic, TopicDefaults, TopicRequest, create_topic
from penstock.errors import ApiError, ErrorCode
from penstock.host.clock import Clock
from penstock.host.randomness import Randomness
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.metadata.image import INTERNAL_TOPICS, ClusterImage, Topic, apply
from penstock.metadata.keys import TOPIC_ID_BYTES, acceptable_topic_id
from penstock.security.access import CLUSTER, Operation, ResourceType
from penstock.types import TopicId

# Enough that a commit costs little for each topic; few enough that other requests soon get a turn.
DECISIONS_PER_CHANGE = 50


class WantedTopic(NamedTuple):
    request: TopicRequest
    """With no overrides: they are made from the settings."""
    settings: Mapping[str, str | None] = {}
    """As the client gave them."""


class TopicCreation:
    def __init__(self, cluster: Cluster, clock: Clock, randomness: Randomness) -> None:
        self._cluster = cluster
        self._clock = clock
        self._randomness = randomness

    async def create(
        self, wanted: Sequence[WantedTopic], *, validate_only: bool = False
    ) -> list[Topic | ApiError]:
        """Each topic as it was created, or would have been, or why not; in the order asked."""
        decides = [self._decide(topic) for topic in wanted]
        outcomes = await change_each(self._cluster, decides, validate_only=validate_only)
        return [
            outcome if isinstance(outcome, ApiError) else outcome.topics[topic.request.name]
            for topic, outcome in zip(wanted, outcomes, strict=True)
        ]

    async def create_missing(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        """Create topics as the broker's defaults say. Answers those that cannot be created."""
        # Those beyond what one request may create stay missing, and clients ask for them again.
        partitions = self._cluster.config.topic_creation.partitions_default
        names = names[: max(1, PARTITIONS_PER_TOPIC_MAX // partitions)]
        outcomes = await self.create([WantedTopic(TopicRequest(name=name)) for name in names])
        return {
            name: outcome.code
            for name, outcome in zip(names, outcomes, strict=True)
            # Another request may have been faster: then it is there, and that is all that was wanted.
            if isinstance(outcome, ApiError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS
        }

    def _decide(self, wanted: WantedTopic) -> Decide:
        return lambda image: self._decision(image, wanted)

    def _decision(self, image: ClusterImage, wanted: WantedTopic) -> Decision:
        config = self._cluster.config
        overrides: dict[str, str] = {}
        refusal: ApiError | None = None
        try:
            overrides = replace_topic(_given(wanted.settings), config)
        except ApiError as problem:
            refusal = problem

        def validate(_: Mapping[str, str]) -> None:
            # Kafka looks at the name first: a topic that exists is not told about its settings.
            if refusal is not None:
                raise refusal

        name = wanted.request.name
        return create_topic(
            image,
            replace(wanted.request, overrides=overrides, internal=name in INTERNAL_TOPICS),
            NewTopic(self._draw_id(image), self._clock.wall_ms()),
            defaults=TopicDefaults(
                config.topic_creation.partitions_default, config.topic_creation.replication_factor_default
            ),
            validate_overrides=validate,
        )

    def _draw_id(self, image: ClusterImage) -> TopicId:
        while True:
            drawn = TopicId(self._randomness.bytes(TOPIC_ID_BYTES))
            if acceptable_topic_id(drawn) and drawn not in image.topics_by_id:
                return drawn


def may_create_topic(context: RequestContext, name: str) -> bool:
    """By a right on the cluster or on the topic."""
    return context.may(Operation.CREATE, CLUSTER.type, CLUSTER.name) or context.may(
        Operation.CREATE, ResourceType.TOPIC, name
    )


def _given(settings: Mapping[str, str | None]) -> list[tuple[str, str]]:
    given = []
    for name, value in settings.items():
        if value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{name}: a value is required")
        given.append((name, value))
    return given


class _Trial(NamedTuple):
    decision: Decision
    image: ClusterImage
    """As it will be when the decision is committed, revisions aside. Not made for independent ones."""
    refusals: dict[int, ApiError]


async def change_each(
    cluster: Cluster,
    decides: Sequence[Decide],
    *,
    validate_only: bool = False,
    independent: bool = False,
    at_once: int = DECISIONS_PER_CHANGE,
) -> list[ClusterImage | ApiError]:
    """For each decision an image that shows it carried out, or why it was not.

    `independent`: no decision of these could turn out differently for another of them. That saves
    making an image for each. `at_once` of them share a transaction of the store.
    """
    outcomes: list[ClusterImage | ApiError] = []
    imagined = await cluster.current_image() if validate_only else cluster.image
    for first in range(0, len(decides), at_once):
        group = decides[first : first + at_once]
        if validate_only:
            trial = _try_group(imagined, group, independent=False)
            imagined = trial.image
            outcomes += _outcomes(trial, imagined, len(group))
            # Nothing is waited for here, so other requests have to be let in.
            await asyncio.sleep(0)
        else:
            outcomes += await _change_group(cluster, group, independent=independent)
    return outcomes


async def _change_group(
    cluster: Cluster, group: Sequence[Decide], *, independent: bool
) -> list[ClusterImage | ApiError]:
    trials: list[_Trial] = []

    def decide(image: ClusterImage) -> Decision:
        trials.append(_try_group(image, group, independent=independent))
        for refusal in trials[-1].refusals.values():
            if refusal.code is ErrorCode.NOT_CONTROLLER:
                raise refusal  # which is of all of them, and may be over in a moment
        return trials[-1].decision

    try:
        image = await cluster.change(decide)
    except ApiError as problem:
        return [problem] * len(group)
    # An earlier one met a conflict, and all was decided again.
    return _outcomes(trials[-1], image, len(group))


def _try_group(image: ClusterImage, group: Sequence[Decide], *, independent: bool) -> _Trial:
    decisions: list[Decision] = []
    refusals: dict[int, ApiError] = {}
    for number, decide in enumerate(group):
        try:
            decision = decide(image)
        except ApiError as refusal:
            refusals[number] = refusal
            continue
        decisions.append(decision)
        if not independent:
            image = apply(image, decision.everything, image.revision + 1)
    return _Trial(together(decisions)._replace(is_partial=bool(refusals)), image, refusals)


def _outcomes(trial: _Trial, image: ClusterImage, count: int) -> list[ClusterImage | ApiError]:
    return [trial.refusals.get(number, image) for number in range(count)]
