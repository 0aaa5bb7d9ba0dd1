"""The base of every simulated client: its own host, connections, and cached metadata.

Rule: A client uses only metadata that brokers have returned. If its metadata is stale, a broker rejects the
      request, and the client refreshes the metadata and retries.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ErrorCode, ProtocolError
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.schema import Api, Request, Response
from penstock.sim.cluster.node import PORT
from penstock.sim.processes import SimProcess
from penstock.types import TopicId
from penstock.wire.async_client import AsyncClient
from penstock.wire.client_protocol import VersionMismatch

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

REQUEST_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 0.15
NO_LEADER_EPOCH: Final = -1
LATEST: Final = -1
EARLIEST: Final = -2
CONNECTION_ERRORS: Final = (OSError, ProtocolError, VersionMismatch)
"""Errors of a connection. A TimeoutError is an OSError."""


class TopicLeaders(NamedTuple):
    id: TopicId
    leaders: tuple[int, ...]
    epochs: tuple[int, ...]
    """The leader epochs."""


class KafkaClient:
    def __init__(self, cluster: "SimCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.random = Random(f"client {cluster.plan.seed} {name}")
        self.process = SimProcess(name)
        self._connections: dict[tuple[int, int], AsyncClient] = {}
        self._topics: dict[str, TopicLeaders] = {}
        cluster.clients.append(self)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run as a task of this client's process. An exception ends the simulation."""
        self.process.run(self.cluster.start, coroutine)

    async def ask(
        self,
        node_id: int,
        api: Api[Request, Response],
        message: Request,
        *,
        seconds: float = REQUEST_SECONDS,
        connection_number: int = 0,
    ) -> Response:
        """`connection_number`: selects one of several connections to the same node."""
        connection = await self.connect(node_id, connection_number)
        return await connection.ask(api, message, seconds)

    async def connect(self, node_id: int, connection_number: int) -> AsyncClient:
        known = self._connections.get((node_id, connection_number))
        if known is not None and not known.is_closed:
            return known
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(REQUEST_SECONDS):
            _, connection = await loop.create_connection(
                lambda: AsyncClient(self.name), f"node-{node_id}", PORT
            )
        await connection.greet(REQUEST_SECONDS)
        self._connections[node_id, connection_number] = connection
        return connection

    def any_broker(self) -> int:
        return self.random.choice(self.cluster.plan.nodes)

    async def pause(self, seconds: float = RETRY_SECONDS) -> None:
        await asyncio.sleep(seconds * self.random.uniform(0.5, 1.5))

    # Metadata

    async def topic(self, name: str) -> TopicLeaders | None:
        """The cached metadata of a topic, fetched if absent.

        None: the topic is unknown, or no broker replied.
        """
        if name not in self._topics:
            await self._fetch_metadata(name)
        return self._topics.get(name)

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    async def _fetch_metadata(self, name: str) -> None:
        request = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        try:
            answer = await self.ask(self.any_broker(), METADATA, request)
        except CONNECTION_ERRORS:
            return
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE:
                partitions = sorted(topic.partitions, key=lambda each: each.partition_index)
                leaders = tuple(each.leader_id for each in partitions)
                self._topics[name] = TopicLeaders(
                    topic.topic_id, leaders, tuple(each.leader_epoch for each in partitions)
                )

    async def leader(self, name: str, index: int) -> tuple[TopicLeaders, int] | None:
        """The leader. If none is known, pause and return None."""
        topic = await self.topic(name)
        if topic is not None and index < len(topic.leaders) and topic.leaders[index] > 0:
            return topic, topic.leaders[index]
        self.forget_topic(name)
        await self.pause()
        return None

    async def end(self, name: str, index: int, leader: int, epoch: int) -> int | None:
        """The high watermark that this leader returns. None: it returned an error."""
        return await self.list_offset(name, leader, ListOffsetsPartition(index, epoch, LATEST))

    async def start(self, name: str, index: int, leader: int, epoch: int) -> int | None:
        """The log start offset that this leader returns. None: it returned an error."""
        return await self.list_offset(name, leader, ListOffsetsPartition(index, epoch, EARLIEST))

    async def list_offset(self, name: str, leader: int, partition: ListOffsetsPartition) -> int | None:
        """The offset that this leader returns, -1 if no record is so new. None: it returned an error."""
        topic_request = ListOffsetsTopic(name, [partition])
        answer = await self.ask(leader, LIST_OFFSETS, ListOffsetsRequest(-1, topics=[topic_request]))
        found = answer.topics[0].partitions[0]
        return found.offset if found.error_code == ErrorCode.NONE else None

    async def coordinator(self, group: str) -> int | None:
        request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
        try:
            answer = await self.ask(self.any_broker(), FIND_COORDINATOR, request)
        except CONNECTION_ERRORS:
            return None
        found = answer.coordinators[0]
        return found.node_id if found.error_code == ErrorCode.NONE else None
