"""Group coordinator of one broker: passes commands to shards and combines the replies of several shards."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
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
from penstock.chunks import chunks
from penstock.controller.topics import TopicRequest
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.group_context import ClientInfo, GroupContext, TopicsImage
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.consume_rate import ConsumeRates
from penstock.groups.offsets.expiry_rules import TrustedClock
from penstock.host.randomness import Randomness
from penstock.limits import (
    GROUP_RATE_PARTITIONS_MAX,
    GROUP_RATE_WINDOW_MS,
    GROUP_REPLIES_AT_ONCE,
    GROUPS_REPORTED_PER_CHUNK,
    STATE_COMMAND_BYTES_MAX,
)
from penstock.metadata.cluster_image import GROUP_TOPIC, ClusterImage
from penstock.metadata.image_changes import changed_topics
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest
from penstock.protocol.messages.leave_group import LeaveGroupRequest
from penstock.protocol.messages.sync_group import SyncGroupRequest

GroupQuery = Callable[[GroupStateMachine, Now], Any]
"""Reads the state of a shard and changes nothing."""
Finish = Callable[[list[Any]], Any]
ReplyType = TypeVar("ReplyType")
ClassicRequest = TypeVar(
    "ClassicRequest", HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
)


class GroupLookup(NamedTuple):
    """A query of one group."""

    group_id: str
    query: GroupQuery
    rejection: MakeRejection


def group_coordinator_runtime(
    cluster: MetadataService, dependencies: CoordinatorDependencies, randomness: Randomness
) -> CoordinatorRuntime[GroupStateMachine]:
    """Make the runtime of the group shards and subscribe it to the image."""

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
            shards.broadcast(lambda state, now: state.schedule_expiry_scan(now))

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
        """Limits replies about many groups, which take memory until they are sent."""

    async def ensure_topic(self) -> None:
        """Create the group topic (`GROUP_TOPIC`), when a client first looks for a group coordinator."""
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
        """Execute a command. The reply completes when the records it depends on are committed."""
        later = GroupReply()
        self._queue.submit(group_id, command, WaitingRequest(later.finish, rejection, later.cancel))
        return later

    def execute_classic(
        self,
        request: ClassicRequest,
        context: RequestContext,
        handle: Callable[[GroupStateMachine, ClassicRequest, ClassicCaller, Now], CommandOutcome],
        rejection: Callable[[ErrorCode, str], ReplyType],
    ) -> ReplyType | DeferredReply:
        """Handle a request of a client of the classic protocol."""
        if request.group_id in context.denied:
            return rejection(ErrorCode.GROUP_AUTHORIZATION_FAILED, "")
        if not request.group_id:
            return rejection(ErrorCode.INVALID_GROUP_ID, "")
        version, client = context.version, client_info(context)

        def command(state: GroupStateMachine, pending: WaitingRequest, now: Now) -> CommandOutcome:
            return handle(state, request, ClassicCaller(version, client, pending), now)

        return self.execute(request.group_id, command, rejection)

    def execute_chunked(
        self,
        group_id: str,
        make: MakeChunk,
        rejection: MakeRejection,
        on_durable: Callable[[], None] = lambda: None,
    ) -> DeferredReply:
        """Execute a command in chunks. The reply is that of the last chunk."""
        later = GroupReply()
        pending = WaitingRequest(later.finish, rejection, later.cancel)
        self._queue.submit_chunked(group_id, make, rejection, pending, on_durable)
        return later

    def _submit_now(self, group_id: str, command: GroupCommand, pending: WaitingRequest) -> None:
        if not len(self._shards):
            pending.reject(ErrorCode.NOT_COORDINATOR, "no group has asked for its coordinator yet")
            return
        number = shard_of(group_id, len(self._shards))
        self._execute_on(number, command, pending)

    def _execute_on(self, shard: int, command: GroupCommand, pending: WaitingRequest) -> None:
        self._shards.execute(shard, lambda state, now: command(state, pending, now), pending)

    # Several groups

    def query_each(self, questions: Sequence[GroupLookup], finish: Finish) -> DeferredReply:
        """Run queries and combine the results in order. Several queries may name the same group."""
        combined = CombinedReply([question.rejection for question in questions], finish)
        for question, pending in zip(questions, combined.pending_requests(), strict=True):
            self._queue.submit(question.group_id, _read_only_command(question.query), pending)
        return combined.later

    async def query_in_chunks(self, questions: Sequence[GroupLookup]) -> AsyncIterator[Any]:
        """Run many queries, GROUPS_REPORTED_PER_CHUNK at a time, and yield to the event loop in between."""
        for some in chunks(questions, GROUPS_REPORTED_PER_CHUNK):
            await asyncio.sleep(0)
            for answer in await reply_of(self.query_each(some, list)):
                yield answer

    def execute_each_chunked(
        self,
        group_ids: Sequence[str],
        make: Callable[[str], MakeChunk],
        rejection: Callable[[str], MakeRejection],
        finish: Finish,
    ) -> DeferredReply:
        """Execute a chunked command on each group and combine the replies, in the order of `group_ids`."""
        combined = CombinedReply([rejection(group_id) for group_id in group_ids], finish)
        for group_id, pending in zip(group_ids, combined.pending_requests(), strict=True):
            self._queue.submit_chunked(group_id, make(group_id), rejection(group_id), pending)
        return combined.later

    async def query_shards(self, query: GroupQuery, rejection: MakeRejection) -> AsyncIterator[Any]:
        """Run a query on every shard of this broker, one per iteration of the event loop."""
        command = _read_only_command(query)
        for number in self._shards.local_shards():
            await asyncio.sleep(0)
            later = GroupReply()
            pending = WaitingRequest(later.finish, rejection, later.cancel)
            self._execute_on(number, command, pending)
            yield await reply_of(later)

    # Metrics

    def coordinator_errors(self) -> CoordinatorErrors:
        return self._shards.coordinator_errors()


class GroupReply(DeferredReply):
    """Deferred reply that can be completed again with an error if encoding the first outcome failed."""

    __slots__ = ()

    def finish(self, outcome: Any) -> None:
        try:
            super().finish(outcome)
        except BaseException:
            self._outcome = None  # not delivered: the caller may complete this reply with a rejection
            raise

    def cancel(self) -> None:
        """Complete with ProtocolError, when not even a rejection could be encoded.

        The broker then closes the connection, and the client may retry.
        """
        self.finish(ProtocolError("the reply cannot be encoded"))


class CombinedReply:
    """Collector of several replies, which completes one combined reply."""

    def __init__(self, rejections: Sequence[MakeRejection], finish: Finish) -> None:
        self.later = GroupReply()
        self._rejections = rejections
        self._finish = finish
        self._answers: dict[int, Any] = {}
        if not rejections:
            self.later.finish(finish([]))

    def pending_requests(self) -> Iterator[WaitingRequest]:
        """One pending request per expected reply."""
        for number, rejection in enumerate(self._rejections):
            yield WaitingRequest(partial(self._take, number), rejection, self.later.cancel)

    def _take(self, number: int, answer: Any) -> None:
        self._answers[number] = answer
        if len(self._answers) < len(self._rejections):
            return
        try:
            self.later.finish(self._finish([self._answers[each] for each in range(len(self._answers))]))
        except Exception:
            # It is unknown which reply cannot be encoded. The caller now rejects the last pending request; so
            # replace all replies by rejections, and that rejection completes the combined reply.
            for each, rejection in enumerate(self._rejections):
                self._answers[each] = rejection(ErrorCode.UNKNOWN_SERVER_ERROR, "")
            raise


async def reply_of(later: DeferredReply) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later.then(lambda reply: None if answer.done() else answer.set_result(reply))
    return await answer


def _read_only_command(query: GroupQuery) -> GroupCommand:
    """Wrap a query as a command without records."""
    return lambda state, pending, now: CommandOutcome(replies=(Reply(pending, query(state, now)),))


def client_info(context: RequestContext) -> ClientInfo:
    """Client id and host of a request, in the form that Kafka's tools print."""
    return ClientInfo(context.client_id or "", f"/{context.peer}")
