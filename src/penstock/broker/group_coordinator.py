"""Where groups are asked: finds a group's shard, and gathers answers that come from several."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from penstock.broker.cluster import Cluster
from penstock.broker.context import RequestContext
from penstock.broker.coordination import Coordination, Means
from penstock.broker.router import Later
from penstock.broker.topic_creation import TopicCreation, WantedTopic
from penstock.controller.topics import TopicRequest
from penstock.coordinator.outcome import Now, Outcome, Pending, Reply
from penstock.coordinator.placement import shard_of
from penstock.errors import ApiError, ErrorCode
from penstock.groups.expiry import SteadyClock
from penstock.groups.groups import Groups
from penstock.groups.rates import Rates
from penstock.groups.surroundings import Client, Surroundings, Topics
from penstock.host.randomness import Randomness
from penstock.limits import GROUP_RATE_PARTITIONS_MAX, GROUP_RATE_WINDOW_MS, STATE_COMMAND_BYTES_MAX
from penstock.metadata.image import GROUP_TOPIC, ClusterImage, changed_topics

Command = Callable[[Groups, Pending, Now], Outcome]
Query = Callable[[Groups, Now], Any]
"""Reads the state and changes nothing."""
Refusal = Callable[[ErrorCode, str], Any]


def group_shards(cluster: Cluster, means: Means, randomness: Randomness) -> Coordination[Groups]:
    """The groups that live on this broker, which follow its metadata from now on."""

    def topics() -> Topics:
        return Topics(cluster.image.topics, cluster.image.topics_by_id)

    def draw_member_id() -> str:
        return str(UUID(bytes=randomness.bytes(16), version=4))

    rates = Rates(GROUP_RATE_WINDOW_MS, GROUP_RATE_PARTITIONS_MAX)

    steady_clock = SteadyClock()

    def new_state() -> Groups:
        surroundings = Surroundings(
            lambda: cluster.config.groups, topics, draw_member_id, rates, steady_clock
        )
        return Groups(surroundings)

    shards = Coordination(GROUP_TOPIC, new_state, means)

    async def follow(before: ClusterImage, after: ClusterImage) -> None:
        await shards.follow(before, after)
        changes = changed_topics(before, after)
        if changes.created or changes.deleted or changes.grown:
            shards.tell_all(lambda state, now: state.topics_changed(now))
        if changes.deleted:
            shards.tell_all(lambda state, now: state.topics_deleted(now))

    shards.open(cluster.image)
    cluster.subscribe(follow)
    return shards


class GroupCoordinator:
    def __init__(self, shards: Coordination[Groups], cluster: Cluster, creation: TopicCreation) -> None:
        self._shards = shards
        self._cluster = cluster
        self._creation = creation

    async def ensure_topic(self) -> None:
        """Create the topic that groups live on, when the first group asks for its coordinator."""
        if GROUP_TOPIC in self._cluster.image.topics:
            return
        config = self._cluster.config.groups
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.topic_segment_bytes),
            "max.message.bytes": str(STATE_COMMAND_BYTES_MAX),
        }
        request = TopicRequest(name=GROUP_TOPIC, partitions=config.topic_partitions)
        (outcome,) = await self._creation.create([WantedTopic(request, settings)])
        if isinstance(outcome, ApiError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome

    # One group

    def execute(self, group_id: str, command: Command, refusal: Refusal) -> Later:
        """The command's answer, once it is safe to give."""
        later = Later()
        self._submit(group_id, command, Pending(later.finish, refusal))
        return later

    def _submit(self, group_id: str, command: Command, pending: Pending) -> None:
        if not len(self._shards):
            pending.refuse(ErrorCode.NOT_COORDINATOR, "no group has asked for its coordinator yet")
            return
        number = shard_of(group_id, len(self._shards))
        self._shards.execute(number, lambda state, now: command(state, pending, now), pending)

    # Several groups

    def each(
        self,
        group_ids: Sequence[str],
        command: Callable[[str], Command],
        refusal: Callable[[str], Refusal],
        finish: Callable[[list[Any]], Any],
    ) -> Later:
        """One answer made of those for each group, in the order asked."""
        later = Later()
        answers: list[Any] = [None] * len(group_ids)
        left = len(group_ids)

        def take(number: int, answer: Any) -> None:
            nonlocal left
            answers[number] = answer
            left -= 1
            if not left:
                later.finish(finish(answers))

        for number, group_id in enumerate(group_ids):
            pending = Pending(partial(take, number), refusal(group_id))
            self._submit(group_id, command(group_id), pending)
        if not group_ids:
            later.finish(finish([]))
        return later

    def all_shards(self, query: Query, refusal: Refusal, finish: Callable[[list[Any]], Any]) -> Later:
        """One answer made of what every shard says."""
        later = Later()
        answers: list[Any] = []

        def take(answer: Any) -> None:
            answers.append(answer)
            if len(answers) == count:
                later.finish(finish(answers))

        count = len(self._shards)
        for number in range(count):
            pending = Pending(take, refusal)
            self._shards.execute(number, _answer_to(query, pending), pending)
        if not count:
            later.finish(finish([]))
        return later


def _answer_to(query: Query, pending: Pending) -> Callable[[Groups, Now], Outcome]:
    return lambda state, now: Outcome(replies=(Reply(pending, query(state, now)),))


def asking(query: Query) -> Command:
    """A command that only reads."""
    return lambda state, pending, now: Outcome(replies=(Reply(pending, query(state, now)),))


def client_of(context: RequestContext) -> Client:
    """Who asks, in the form in which Kafka's tools show it."""
    return Client(context.client_id or "", f"/{context.peer}")
