"""A consumer of the classic protocol, for groups that move between the protocols."""

from collections.abc import Mapping

from penstock.errors import ErrorCode
from penstock.groups.embedded_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    encode_assignment,
)
from penstock.protocol.compiler import encoder
from penstock.protocol.messages.join_group import JoinGroupRequestProtocol
from tests.unit.groups.consumer.consumer_support import ConsumerGroupHarness, PendingRequest


def subscription(*topics: str, owned: Mapping[str, set[int]] | None = None) -> bytes:
    said = [ConsumerTopicPartitions(name, sorted(indexes)) for name, indexes in (owned or {}).items()]
    value = ConsumerProtocolSubscription(list(topics), None, said)
    return b"\0\1" + bytes(encoder(ConsumerProtocolSubscription, 1, False)(value)[0])


def assignment(**topics: set[int]) -> bytes:
    named = [ConsumerTopicPartitions(name, sorted(indexes)) for name, indexes in topics.items()]
    return encode_assignment(ConsumerProtocolAssignment(named))


def assigned(data: bytes) -> dict[str, set[int]]:
    decoded = decode_assignment(data)
    assert decoded is not None
    return {each.topic: set(each.partitions) for each in decoded.assigned_partitions}


class Classic:
    """A cooperative consumer of the classic protocol."""

    def __init__(
        self, harness: ConsumerGroupHarness, name: str, instance_id: str | None = None, *topics: str
    ) -> None:
        self.harness = harness
        self.name = name
        self.instance_id = instance_id
        self.topics = topics or ("a",)
        self.member_id = ""
        self.generation = -1
        self.owned: dict[str, set[int]] = {}
        self.joined: PendingRequest | None = None
        self.synced: PendingRequest | None = None

    def join(self) -> PendingRequest:
        asked = self._ask()
        if asked.pending.is_completed and asked.code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = asked.reply.member_id
            asked = self._ask()
        self.joined = asked
        self.learn()
        return asked

    def _ask(self) -> PendingRequest:
        protocols = [JoinGroupRequestProtocol("range", subscription(*self.topics, owned=self.owned))]
        return self.harness.join_classic(
            self.name, self.member_id, protocols=protocols, group_instance_id=self.instance_id
        )

    def learn(self) -> None:
        joined = self.joined
        if joined is not None and joined.pending.is_completed and not joined.code:
            self.member_id, self.generation = joined.reply.member_id, joined.reply.generation_id

    def sync(self, given: dict[str, bytes] | None = None) -> ErrorCode:
        """In a classic group the leader is waited for; then the answer comes later."""
        self.synced = self.harness.sync_classic(self.member_id, self.generation, given)
        return self.collect()

    def collect(self) -> ErrorCode:
        synced = self.synced
        if synced is None or not synced.pending.is_completed:
            return ErrorCode.NONE
        self.synced = None
        if not synced.code:
            self.owned = assigned(synced.reply.assignment)
        return synced.code

    def beat(self) -> ErrorCode:
        return self.harness.beat_classic(self.member_id, self.generation)

    def live(self) -> None:
        """What a client does between two polls."""
        code = self.beat()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.owned = {}
            self.member_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else self.member_id
        if code and self.join().pending.is_completed:
            self.sync()

    def partitions(self, name: str = "a") -> set[int]:
        return self.owned.get(name, set())
