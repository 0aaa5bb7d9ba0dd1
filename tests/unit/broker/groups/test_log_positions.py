"""Where logs begin and end, asked of leaders that answer, refuse, or are silent."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.broker.cluster.peer_requests import PeerRequests, PeerUnavailable
from penstock.broker.groups.log_positions import (
    OFFLINE,
    UNKNOWN,
    LogPositionLookup,
    span_of,
)
from penstock.broker.replication.replica_fetchers import InterBrokerLink
from penstock.errors import ErrorCode
from penstock.groups.offsets.lag import LogSpan
from penstock.metadata.cluster_image import (
    BrokerRegistration,
    BrokerSession,
    ClusterImage,
    PartitionState,
    Topic,
)
from penstock.metadata.documents import Endpoint
from penstock.protocol.messages.log_positions import (
    LOG_POSITIONS,
    FoundPosition,
    LogPositionsRequest,
    LogPositionsResponse,
    WantedPosition,
)
from penstock.types import NO_TIMESTAMP, Offset, TopicId

TOPIC = TopicId(b"t" * 16)


def led_by(*leaders: int) -> ClusterImage:
    states = tuple(
        PartitionState((1, 2, 3), leader, 0, (1, 2, 3), 0, index=index, revision=1)
        for index, leader in enumerate(leaders)
    )
    topic = Topic("t", TOPIC, internal=False, created_ms=0, overrides={}, partitions=states, revision=1)
    return ClusterImage(cluster_id="c", topics={"t": topic}, topics_by_id={TOPIC: topic})


class CannedReplies:
    """Other brokers, as far as they answer."""

    def __init__(self, silent: set[int] = frozenset(), without_times_after: int = 100) -> None:  # type: ignore[assignment]
        """After so many questions those for times get no answer, as if reading took too long."""
        self._silent = silent
        self._without_times_after = without_times_after
        self.asked: list[tuple[int, int]] = []
        self.answer = FoundPosition(ErrorCode.NONE, 3, 9, 77)

    async def ask(self, node: int, api: Any, request: LogPositionsRequest, timeout_ms: int) -> Any:
        self.asked.append((node, len(request.partitions)))
        if node in self._silent:
            raise PeerUnavailable(node, "it is silent")
        if len(self.asked) > self._without_times_after:
            raise TimeoutError
        wants_times = request.partitions[0].offset >= 0
        answer = self.answer if wants_times else replace(self.answer, timestamp=-1)
        return LogPositionsResponse(partitions=[answer] * len(request.partitions))


def positions(image: ClusterImage, peers: CannedReplies) -> LogPositionLookup:
    return LogPositionLookup(1, lambda: image, None, None, peers)  # type: ignore[arg-type]


async def test_each_leader_is_asked_for_what_it_leads() -> None:
    peers = CannedReplies()
    wanted = [WantedPosition(TOPIC, index, Offset(5)) for index in (0, 1, 2)]
    found = await positions(led_by(2, 3, 2), peers).find(wanted)
    assert found == [FoundPosition(ErrorCode.NONE, 3, 9, 77)] * 3
    assert sorted(peers.asked) == [(2, 2), (3, 1)]


async def test_what_a_silent_leader_leads_is_unknown_and_the_rest_is_not() -> None:
    wanted = [WantedPosition(TOPIC, index, Offset(5)) for index in (0, 1, 2)]
    found = await positions(led_by(2, 3, 2), CannedReplies(silent={2})).find(wanted)
    assert [found[0], found[2]] == [UNKNOWN, UNKNOWN]
    assert span_of(found[1]) == LogSpan(Offset(3), Offset(9))


async def test_a_partition_without_a_leader_is_offline_and_nobody_is_asked() -> None:
    peers = CannedReplies()
    assert await positions(led_by(-1), peers).find([WantedPosition(TOPIC, 0)]) == [OFFLINE]
    assert await positions(led_by(2), peers).find([WantedPosition(TOPIC, 9)]) == [OFFLINE]
    assert peers.asked == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [(ErrorCode.KAFKA_STORAGE_ERROR, OFFLINE), (ErrorCode.NOT_LEADER_OR_FOLLOWER, UNKNOWN)],
)
async def test_a_leader_may_not_know_either(code: ErrorCode, expected: FoundPosition) -> None:
    peers = CannedReplies()
    peers.answer = FoundPosition(code)
    assert await positions(led_by(2), peers).find([WantedPosition(TOPIC, 0)]) == [expected]


async def test_many_partitions_are_asked_for_in_several_questions() -> None:
    peers = CannedReplies()
    image = led_by(*[2] * 2_500)
    found = await positions(image, peers).find([WantedPosition(TOPIC, index) for index in range(2_500)])
    assert len(found) == 2_500
    assert peers.asked == [(2, 1_000), (2, 1_000), (2, 500)]


async def test_of_many_partitions_the_ends_are_known_though_times_come_late() -> None:
    peers = CannedReplies(without_times_after=4)
    image = led_by(*[2] * 2_500)
    wanted = [WantedPosition(TOPIC, index, Offset(5)) for index in range(2_500)]
    found = await positions(image, peers).find(wanted)
    assert [span_of(each) for each in found] == [LogSpan(Offset(3), Offset(9))] * 2_500
    assert [each.timestamp for each in found] == [77] * 1_000 + [NO_TIMESTAMP] * 1_500


async def test_times_are_only_asked_for_where_records_wait() -> None:
    peers = CannedReplies()
    image = led_by(*[2] * 2_500)
    wanted = [WantedPosition(TOPIC, index, Offset(5 if index < 3 else 9)) for index in range(2_500)]
    await positions(image, peers).find(wanted)
    assert peers.asked == [(2, 1_000), (2, 1_000), (2, 500), (2, 3)]


class Known:
    """A cluster with one other broker, at an address."""

    def __init__(self, port: int) -> None:
        self.config = self
        self.node = self
        self.node_id = 1
        self.become(port, epoch=5)

    def become(self, port: int, epoch: int) -> None:
        endpoints = {"PLAINTEXT": Endpoint("127.0.0.1", port)}
        broker = BrokerRegistration(
            None, endpoints, "i", id=2, revision=1, live=BrokerSession("i", "d", epoch=epoch)
        )
        self.image = ClusterImage(cluster_id="c", brokers={2: broker})


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """Where connections are taken, and nothing is ever said."""
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in connections:
        writer.close()


async def test_a_silent_broker_is_waited_for_once_and_asked_again_when_it_is_new(silent_port: int) -> None:
    cluster = Known(silent_port)
    peers = PeerRequests(cluster, InterBrokerLink("PLAINTEXT"))  # type: ignore[arg-type]
    loop, durations = asyncio.get_running_loop(), []
    for epoch in (5, 5, 6):
        cluster.become(silent_port, epoch)
        began = loop.time()
        with pytest.raises(PeerUnavailable, match="broker 2: no answer from"):
            await peers.ask(2, LOG_POSITIONS, LogPositionsRequest(), 200)
        durations.append(loop.time() - began)
    assert durations[0] >= 0.2
    assert durations[1] < 0.1, "its failure is remembered"
    assert durations[2] >= 0.2, "another session of it may answer"


async def test_a_silent_leader_holds_up_one_page_and_not_the_next(silent_port: int) -> None:
    peers: Any = PeerRequests(Known(silent_port), InterBrokerLink("PLAINTEXT"))  # type: ignore[arg-type]
    found, loop, durations = positions(led_by(2), peers), asyncio.get_running_loop(), []
    for _ in range(3):
        began = loop.time()
        assert await found.find([WantedPosition(TOPIC, 0)]) == [UNKNOWN]
        durations.append(loop.time() - began)
    assert durations[0] >= 1.0
    assert max(durations[1:]) < 0.5


async def test_a_broker_that_is_not_registered_or_not_there_is_not_asked() -> None:
    cluster = Known(1)
    peers = PeerRequests(cluster, InterBrokerLink("ELSEWHERE"))  # type: ignore[arg-type]
    for node in (2, 9):
        with pytest.raises(PeerUnavailable, match="not running"):
            await peers.ask(node, LOG_POSITIONS, LogPositionsRequest(), 200)
