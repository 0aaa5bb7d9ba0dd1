"""A group that changes its protocol while it is empty keeps its offsets as long as if it had not."""

from penstock.coordinator.outcome import CommandOutcome, Now, StateRecord, WaitingRequest
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller
from penstock.groups.group_context import ClientInfo, GroupContext, TopicsImage
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata, PartitionCommit, commit_records
from penstock.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.types import NO_EPOCH, Offset, TopicPartition
from tests.unit.groups.consumer.consumer_support import CLASSIC_SESSION_MS, GROUP, REBALANCE_MS, config, topic

RETENTION_S = config().offsets.retention_ms // 1000
READ = topic("a", 1)


class Shard:
    """Groups with a log, from which they can be read back."""

    def __init__(self) -> None:
        self.log: list[tuple[StateRecord, int]] = []
        self.now = Now(1_700_000_000_000, 0.0)
        self.groups = self._new_groups()

    def _new_groups(self) -> GroupStateMachine:
        topics = TopicsImage({READ.name: READ}, {READ.id: READ})
        settings = config()
        groups = GroupStateMachine(GroupContext(lambda: settings, lambda: topics, lambda: "drawn"))
        for record, timestamp_ms in self.log:
            groups.replay(record, timestamp_ms)
        for outcome in groups.on_loaded(self.now):
            assert not outcome.records
        return groups

    def take(self, outcome: CommandOutcome) -> None:
        for record in outcome.records:
            self.log.append((record, self.now.wall_ms))
            self.groups.replay(record, self.now.wall_ms)
        for pending, content in outcome.replies:
            pending.complete(content)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now = Now(self.now.wall_ms + 1000, self.now.monotonic + 1)
            for outcome in self.groups.expire(self.now):
                self.take(outcome)

    def restart(self) -> None:
        self.groups = self._new_groups()

    def report(self, epoch: int) -> None:
        request = ConsumerGroupHeartbeatRequest(GROUP, "m", epoch)
        if not epoch:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names, request.topic_partitions = [READ.name], []
        caller = ConsumerCaller(
            1, ClientInfo("c", "/c"), WaitingRequest(lambda reply: None, lambda code, detail: code)
        )
        self.take(self.groups.consumer_heartbeat(request, caller, self.now))

    def ask_for_an_id(self) -> None:
        """As the first of two joins of a classic member, of which the second never comes."""
        protocols = [JoinGroupRequestProtocol("range", b"")]
        request = JoinGroupRequest(
            GROUP, CLASSIC_SESSION_MS, REBALANCE_MS, protocol_type="consumer", protocols=protocols
        )
        caller = ClassicCaller(
            9, ClientInfo("c", "/c"), WaitingRequest(lambda reply: None, lambda code, detail: code)
        )
        self.take(self.groups.join(request, caller, self.now))

    def commit(self) -> None:
        committed = OffsetAndMetadata(Offset(7), NO_EPOCH, "", self.now.wall_ms)
        self.take(
            CommandOutcome(commit_records(GROUP, [PartitionCommit(TopicPartition(READ.name, 0), committed)]))
        )

    @property
    def has_offset(self) -> bool:
        return self.groups.offsets.find(GROUP, READ.name, 0) is not None


def emptied() -> Shard:
    """An offset was committed; the last member left later, and a classic one was about to come."""
    shard = Shard()
    shard.report(0)
    shard.commit()
    for _ in range(RETENTION_S):
        shard.wait(1)
        shard.report(1)
    shard.report(-1)
    shard.ask_for_an_id()
    return shard


def test_offsets_are_kept_for_the_whole_time_after_the_last_member_left() -> None:
    shard = emptied()
    shard.wait(RETENTION_S - 1)
    assert shard.has_offset
    shard.wait(RETENTION_S + 1)
    assert not shard.has_offset
    assert not list(shard.groups.list())


def test_a_restart_does_not_shorten_that_time() -> None:
    shard = emptied()
    shard.wait(1)
    shard.restart()
    shard.wait(RETENTION_S - 2)
    assert shard.has_offset
    shard.wait(RETENTION_S + 2)
    assert not shard.has_offset
