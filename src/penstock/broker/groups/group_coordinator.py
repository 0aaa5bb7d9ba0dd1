"""Where groups are asked: finds a group's shard, and gathers answers that come from several."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from penstock.broker.cluster.metadata_service import Cluster
from penstock.broker.cluster.topic_creation import TopicCreation, WantedTopic
from penstock.broker.context import RequestContext
from penstock.broker.groups.chunked_commands import Command, GroupTurns, MakePiece, Refusal
from penstock.broker.groups.coordinator_runtime import Coordination, Means, Troubles
from penstock.broker.router import Later
from penstock.controller.topics import TopicRequest
from penstock.coordinator.outcome import Now, Outcome, Pending, Reply
from penstock.coordinator.placement import shard_of
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.groups.group_context import Client, Surroundings, Topics
from penstock.groups.groups import Groups
from penstock.groups.offsets.consume_rate import Rates
from penstock.groups.offsets.expiry import SteadyClock
from penstock.host.randomness import Randomness
from penstock.limits import (
    GROUP_RATE_PARTITIONS_MAX,
    GROUP_RATE_WINDOW_MS,
    GROUP_REPLIES_AT_ONCE,
    GROUPS_REPORTED_PER_TURN,
    STATE_COMMAND_BYTES_MAX,
)
from penstock.metadata.facts import GROUP_TOPIC, ClusterImage
from penstock.metadata.image_changes import changed_topics

Query = Callable[[Groups, Now], Any]
"""Reads the state and changes nothing."""
Finish = Callable[[list[Any]], Any]


class Question(NamedTuple):
    """What is to be read of one group."""

    group_id: str
    query: Query
    refusal: Refusal


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
        surroundings.overrides_of = lambda group_id: cluster.image.overrides_of_group(group_id).overrides
        return Groups(surroundings, kept_bytes)

    def kept_bytes() -> int:
        return sum(state.weight_bytes for state in shards.states())

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
        self._turns = GroupTurns(self._submit_now)
        self.long_replies = asyncio.Semaphore(GROUP_REPLIES_AT_ONCE)
        """For answers about many groups, which take memory until they are sent."""

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
        (outcome,) = await self._creation.create([WantedTopic(request, settings)], waits=False)
        if isinstance(outcome, ApiError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome

    # One group

    def execute(self, group_id: str, command: Command, refusal: Refusal) -> Later:
        """The command's answer, once it is safe to give."""
        later = Answer()
        self._submit(group_id, command, Pending(later.finish, refusal, later.give_up))
        return later

    def execute_in_pieces(
        self, group_id: str, make: MakePiece, refusal: Refusal, on_safe: Callable[[], None] = lambda: None
    ) -> Later:
        """The same for a command that takes several turns of the loop: the reply of its last piece."""
        later = Answer()
        pending = Pending(later.finish, refusal, later.give_up)
        self._turns.submit_in_pieces(group_id, make, refusal, pending, on_safe)
        return later

    def _submit(self, group_id: str, command: Command, pending: Pending) -> None:
        self._turns.submit(group_id, command, pending)

    def _submit_now(self, group_id: str, command: Command, pending: Pending) -> None:
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
        finish: Finish,
    ) -> Later:
        """One answer made of those for each group, in the order asked."""
        gathering = Gathering([refusal(group_id) for group_id in group_ids], finish)
        for group_id, pending in zip(group_ids, gathering.clients(), strict=True):
            self._submit(group_id, command(group_id), pending)
        return gathering.later

    def ask_each(self, questions: Sequence[Question], finish: Finish) -> Later:
        """The same, where a group may be asked more than once."""
        gathering = Gathering([question.refusal for question in questions], finish)
        for question, pending in zip(questions, gathering.clients(), strict=True):
            self._submit(question.group_id, asking(question.query), pending)
        return gathering.later

    async def ask_in_turns(self, questions: Sequence[Question]) -> AsyncIterator[Any]:
        """The same for many: a few at a time, with a turn for everybody else between."""
        for first in range(0, len(questions), GROUPS_REPORTED_PER_TURN):
            await asyncio.sleep(0)
            some = questions[first : first + GROUPS_REPORTED_PER_TURN]
            for answer in await answer_of(self.ask_each(some, list)):
                yield answer

    def each_in_pieces(
        self,
        group_ids: Sequence[str],
        make: Callable[[str], MakePiece],
        refusal: Callable[[str], Refusal],
        finish: Finish,
    ) -> Later:
        """As `each`, for commands that take several turns of the loop."""
        gathering = Gathering([refusal(group_id) for group_id in group_ids], finish)
        for group_id, pending in zip(group_ids, gathering.clients(), strict=True):
            self._turns.submit_in_pieces(group_id, make(group_id), refusal(group_id), pending)
        return gathering.later

    def all_shards(self, query: Query, refusal: Refusal, finish: Finish) -> Later:
        """One answer made of what every shard here says."""
        numbers = self._shards.here()
        gathering = Gathering([refusal] * len(numbers), finish)
        for number, pending in zip(numbers, gathering.clients(), strict=True):
            self._shards.execute(number, _answer_to(query, pending), pending)
        return gathering.later

    async def all_shards_in_turns(self, query: Query, refusal: Refusal) -> AsyncIterator[Any]:
        """What every shard here says, one after the other, with a turn for everybody else between."""
        for number in self._shards.here():
            await asyncio.sleep(0)
            later = Answer()
            pending = Pending(later.finish, refusal, later.give_up)
            self._shards.execute(number, _answer_to(query, pending), pending)
            yield await answer_of(later)

    # For those who watch the broker

    def troubles(self) -> Troubles:
        return self._shards.troubles()


class Answer(Later):
    """A reply that did not arrive, because it cannot be told, can be followed by another."""

    __slots__ = ()

    def finish(self, outcome: Any) -> None:
        try:
            super().finish(outcome)
        except BaseException:
            self._outcome = None
            raise

    def give_up(self) -> None:
        """Not even a refusal can be told. The client may think that another try is worth it."""
        self.finish(ProtocolError("there is an answer that cannot be told"))


class Gathering:
    """Several answers become one."""

    def __init__(self, refusals: Sequence[Refusal], finish: Finish) -> None:
        self.later = Answer()
        self._refusals = refusals
        self._finish = finish
        self._answers: dict[int, Any] = {}
        if not refusals:
            self.later.finish(finish([]))

    def clients(self) -> Iterator[Pending]:
        """One for each of the answers."""
        for number, refusal in enumerate(self._refusals):
            yield Pending(partial(self._take, number), refusal, self.later.give_up)

    def _take(self, number: int, answer: Any) -> None:
        self._answers[number] = answer
        if len(self._answers) < len(self._refusals):
            return
        try:
            self.later.finish(self._finish([self._answers[each] for each in range(len(self._answers))]))
        except Exception:
            # Whichever of them it is that cannot be told: the one who is asked to refuse refuses all.
            for each, refusal in enumerate(self._refusals):
                self._answers[each] = refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "")
            raise


async def answer_of(later: Later) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later.then(lambda reply: None if answer.done() else answer.set_result(reply))
    return await answer


def _answer_to(query: Query, pending: Pending) -> Callable[[Groups, Now], Outcome]:
    return lambda state, now: Outcome(replies=(Reply(pending, query(state, now)),))


def asking(query: Query) -> Command:
    """A command that only reads."""
    return lambda state, pending, now: Outcome(replies=(Reply(pending, query(state, now)),))


def client_of(context: RequestContext) -> Client:
    """Who asks, in the form in which Kafka's tools show it."""
    return Client(context.client_id or "", f"/{context.peer}")
