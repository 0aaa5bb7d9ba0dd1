"""Where groups are asked: finds a group's shard, and gathers answers that come from several."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.topic_creation import RequestedTopic, TopicCreation
from penstock.broker.context import RequestContext
from penstock.broker.groups.chunked_commands import GroupCommand, GroupCommandQueue, MakeChunk, MakeRejection
from penstock.broker.groups.coordinator_runtime import (
    CoordinatorDependencies,
    CoordinatorErrors,
    CoordinatorRuntime,
)
from penstock.broker.router import DeferredReply
from penstock.controller.topics import TopicRequest
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.groups.group_context import ClientInfo, GroupContext, TopicsImage
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.consume_rate import ConsumeRates
from penstock.groups.offsets.expiry_rules import TrustedClock
from penstock.host.randomness import Randomness
from penstock.limits import (
    GROUP_RATE_PARTITIONS_MAX,
    GROUP_RATE_WINDOW_MS,
    GROUP_REPLIES_AT_ONCE,
    GROUPS_REPORTED_PER_TURN,
    STATE_COMMAND_BYTES_MAX,
)
from penstock.metadata.cluster_image import GROUP_TOPIC, ClusterImage
from penstock.metadata.image_changes import changed_topics

GroupQuery = Callable[[GroupStateMachine, Now], Any]
"""Reads the state and changes nothing."""
Finish = Callable[[list[Any]], Any]


class GroupLookup(NamedTuple):
    """What is to be read of one group."""

    group_id: str
    query: GroupQuery
    rejection: MakeRejection


def group_coordinator_runtime(
    cluster: MetadataService, dependencies: CoordinatorDependencies, randomness: Randomness
) -> CoordinatorRuntime[GroupStateMachine]:
    """The groups that live on this broker, which follow its metadata from now on."""

    def topics() -> TopicsImage:
        return TopicsImage(cluster.image.topics, cluster.image.topics_by_id)

    def generate_member_id() -> str:
        return str(UUID(bytes=randomness.bytes(16), version=4))

    rates = ConsumeRates(GROUP_RATE_WINDOW_MS, GROUP_RATE_PARTITIONS_MAX)

    trusted_clock = TrustedClock()

    def new_state() -> GroupStateMachine:
        context = GroupContext(
            lambda: cluster.config.groups, topics, generate_member_id, rates, trusted_clock
        )
        context.group_overrides = lambda group_id: cluster.image.overrides_of_group(group_id).overrides
        return GroupStateMachine(context, total_memory_bytes)

    def total_memory_bytes() -> int:
        return sum(state.memory_bytes for state in shards.states())

    shards = CoordinatorRuntime(GROUP_TOPIC, new_state, dependencies)

    async def follow(before: ClusterImage, after: ClusterImage) -> None:
        await shards.follow(before, after)
        changes = changed_topics(before, after)
        if changes.created or changes.deleted or changes.grown:
            shards.broadcast(lambda state, now: state.topics_changed(now))
        if changes.deleted:
            shards.broadcast(lambda state, now: state.topics_deleted(now))

    shards.open(cluster.image)
    cluster.subscribe(follow)
    return shards


class GroupCoordinator:
    def __init__(
        self, shards: CoordinatorRuntime[GroupStateMachine], cluster: MetadataService, creation: TopicCreation
    ) -> None:
        self._shards = shards
        self._cluster = cluster
        self._creation = creation
        self._queue = GroupCommandQueue(self._submit_now)
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
        (outcome,) = await self._creation.create(
            [RequestedTopic(request, settings)], waits_for_controller=False
        )
        if isinstance(outcome, ApiError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome

    # One group

    def execute(self, group_id: str, command: GroupCommand, rejection: MakeRejection) -> DeferredReply:
        """The command's answer, once it is safe to give."""
        later = GroupReply()
        self._submit(group_id, command, WaitingRequest(later.finish, rejection, later.cancel))
        return later

    def execute_chunked(
        self,
        group_id: str,
        make: MakeChunk,
        rejection: MakeRejection,
        on_durable: Callable[[], None] = lambda: None,
    ) -> DeferredReply:
        """The same for a command that takes several turns of the loop: the reply of its last piece."""
        later = GroupReply()
        pending = WaitingRequest(later.finish, rejection, later.cancel)
        self._queue.submit_chunked(group_id, make, rejection, pending, on_durable)
        return later

    def _submit(self, group_id: str, command: GroupCommand, pending: WaitingRequest) -> None:
        self._queue.submit(group_id, command, pending)

    def _submit_now(self, group_id: str, command: GroupCommand, pending: WaitingRequest) -> None:
        if not len(self._shards):
            pending.reject(ErrorCode.NOT_COORDINATOR, "no group has asked for its coordinator yet")
            return
        number = shard_of(group_id, len(self._shards))
        self._shards.execute(number, lambda state, now: command(state, pending, now), pending)

    # Several groups

    def each(
        self,
        group_ids: Sequence[str],
        command: Callable[[str], GroupCommand],
        rejection: Callable[[str], MakeRejection],
        finish: Finish,
    ) -> DeferredReply:
        """One answer made of those for each group, in the order asked."""
        combined = CombinedReply([rejection(group_id) for group_id in group_ids], finish)
        for group_id, pending in zip(group_ids, combined.pending_requests(), strict=True):
            self._submit(group_id, command(group_id), pending)
        return combined.later

    def query_each(self, questions: Sequence[GroupLookup], finish: Finish) -> DeferredReply:
        """The same, where a group may be asked more than once."""
        combined = CombinedReply([question.rejection for question in questions], finish)
        for question, pending in zip(questions, combined.pending_requests(), strict=True):
            self._submit(question.group_id, read_only_command(question.query), pending)
        return combined.later

    async def query_in_chunks(self, questions: Sequence[GroupLookup]) -> AsyncIterator[Any]:
        """The same for many: a few at a time, with a turn for everybody else between."""
        for first in range(0, len(questions), GROUPS_REPORTED_PER_TURN):
            await asyncio.sleep(0)
            some = questions[first : first + GROUPS_REPORTED_PER_TURN]
            for answer in await reply_of(self.query_each(some, list)):
                yield answer

    def execute_each_chunked(
        self,
        group_ids: Sequence[str],
        make: Callable[[str], MakeChunk],
        rejection: Callable[[str], MakeRejection],
        finish: Finish,
    ) -> DeferredReply:
        """As `each`, for commands that take several turns of the loop."""
        combined = CombinedReply([rejection(group_id) for group_id in group_ids], finish)
        for group_id, pending in zip(group_ids, combined.pending_requests(), strict=True):
            self._queue.submit_chunked(group_id, make(group_id), rejection(group_id), pending)
        return combined.later

    def query_shards(self, query: GroupQuery, rejection: MakeRejection, finish: Finish) -> DeferredReply:
        """One answer made of what every shard here says."""
        numbers = self._shards.local_shards()
        combined = CombinedReply([rejection] * len(numbers), finish)
        for number, pending in zip(numbers, combined.pending_requests(), strict=True):
            self._shards.execute(number, _shard_query(query, pending), pending)
        return combined.later

    async def query_shards_in_turn(self, query: GroupQuery, rejection: MakeRejection) -> AsyncIterator[Any]:
        """What every shard here says, one after the other, with a turn for everybody else between."""
        for number in self._shards.local_shards():
            await asyncio.sleep(0)
            later = GroupReply()
            pending = WaitingRequest(later.finish, rejection, later.cancel)
            self._shards.execute(number, _shard_query(query, pending), pending)
            yield await reply_of(later)

    # For those who watch the broker

    def coordinator_errors(self) -> CoordinatorErrors:
        return self._shards.coordinator_errors()


class GroupReply(DeferredReply):
    """A reply that did not arrive, because it cannot be told, can be followed by another."""

    __slots__ = ()

    def finish(self, outcome: Any) -> None:
        try:
            super().finish(outcome)
        except BaseException:
            self._outcome = None
            raise

    def cancel(self) -> None:
        """Not even a refusal can be told. The client may think that another try is worth it."""
        self.finish(ProtocolError("there is an answer that cannot be told"))


class CombinedReply:
    """Several answers become one."""

    def __init__(self, rejections: Sequence[MakeRejection], finish: Finish) -> None:
        self.later = GroupReply()
        self._rejections = rejections
        self._finish = finish
        self._answers: dict[int, Any] = {}
        if not rejections:
            self.later.finish(finish([]))

    def pending_requests(self) -> Iterator[WaitingRequest]:
        """One for each of the answers."""
        for number, rejection in enumerate(self._rejections):
            yield WaitingRequest(partial(self._take, number), rejection, self.later.cancel)

    def _take(self, number: int, answer: Any) -> None:
        self._answers[number] = answer
        if len(self._answers) < len(self._rejections):
            return
        try:
            self.later.finish(self._finish([self._answers[each] for each in range(len(self._answers))]))
        except Exception:
            # Whichever of them it is that cannot be told: the one who is asked to refuse refuses all.
            for each, rejection in enumerate(self._rejections):
                self._answers[each] = rejection(ErrorCode.UNKNOWN_SERVER_ERROR, "")
            raise


async def reply_of(later: DeferredReply) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later.then(lambda reply: None if answer.done() else answer.set_result(reply))
    return await answer


def _shard_query(
    query: GroupQuery, pending: WaitingRequest
) -> Callable[[GroupStateMachine, Now], CommandOutcome]:
    return lambda state, now: CommandOutcome(replies=(Reply(pending, query(state, now)),))


def read_only_command(query: GroupQuery) -> GroupCommand:
    """A command that only reads."""
    return lambda state, pending, now: CommandOutcome(replies=(Reply(pending, query(state, now)),))


def client_info(context: RequestContext) -> ClientInfo:
    """Who asks, in the form in which Kafka's tools show it."""
    return ClientInfo(context.client_id or "", f"/{context.peer}")
