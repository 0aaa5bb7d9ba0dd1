"""Runs a scenario on one broker: the connection, the saved values, the responses as plain values."""

import time
from types import TracebackType
from typing import Any, Self

from penstock.errors import ErrorCode, ProtocolError
from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.schema import Api, Struct
from tools.differential.broker import Broker, BrokerFailed
from tools.differential.compare import Plain, labelled
from tools.differential.replies import CLOSED, NO_REPLY, plain, renamed
from tools.differential.steps import REPLY_S_MAX, FrameStep, RequestStep, ScenarioState, Step, Topic
from tools.differential.wire import Connection, ConnectionClosed, NoReply

CLIENT_ID = "differential"
_CORRELATION_ID = 7
_READY_S_MAX = 15.0
_READY_POLL_S = 0.02
_EARLIEST = -2


class Session:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._memory = ScenarioState()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disconnect()

    def prepare(self, topics: tuple[Topic, ...]) -> None:
        """Create the topics and wait until their partitions have leaders."""
        for topic in topics:
            configs = [CreatableTopicConfig(name, value) for name, value in topic.configs.items()]
            wanted = CreatableTopic(topic.name, topic.partitions, 1, [], configs)
            reply = self._request(CREATE_TOPICS, 4, CreateTopicsRequest([wanted], 10_000))
            problem = ErrorCode(reply.topics[0].error_code)
            if problem is not ErrorCode.NONE:
                raise BrokerFailed(f"{self._broker.name} did not create {topic.name}: {problem.name}")
        deadline = time.monotonic() + _READY_S_MAX
        for topic in topics:
            while not self._is_ready(topic):
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"{self._broker.name} did not make {topic.name} usable")
                time.sleep(_READY_POLL_S)
            self._remember_id(topic.name)

    def answer(self, step: Step) -> Plain:
        """The broker's response to one request, ready for comparison."""
        api, version = (step.api, step.version) if isinstance(step, RequestStep) else step.reads
        try:
            frame = self._exchange(self._frame(step), step.timeout_s)
            _, message = decode_response(api, version, frame)
        except ConnectionClosed:
            self._disconnect()
            return CLOSED
        except NoReply:
            self._disconnect()
            return NO_REPLY
        except ProtocolError as problem:
            self._disconnect()
            return f"(unreadable answer: {problem})"
        if isinstance(step, RequestStep) and step.saves is not None:
            self._memory.saved[step.saves_as or step.saves] = getattr(message, step.saves)
        names = {bytes(topic_id): name for name, topic_id in self._memory.topic_ids.items()}
        made_up = {text: name for name, text in self._memory.saved.items() if isinstance(text, str) and text}
        return labelled(renamed(plain(message, version, names), made_up))

    def _frame(self, step: Step) -> bytes:
        if isinstance(step, FrameStep):
            return step.frame
        message = step.message if isinstance(step.message, Struct) else step.message(self._memory)
        return b"".join(encode_request(step.api, step.version, _CORRELATION_ID, CLIENT_ID, message))

    def _is_ready(self, topic: Topic) -> bool:
        partitions = [ListOffsetsPartition(index, -1, _EARLIEST) for index in range(topic.partitions)]
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic.name, partitions)])
        reply = self._request(LIST_OFFSETS, 4, asked)
        return all(found.error_code == ErrorCode.NONE for found in reply.topics[0].partitions)

    def _remember_id(self, name: str) -> None:
        asked = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        self._memory.topic_ids[name] = self._request(METADATA, 12, asked).topics[0].topic_id

    def _request(self, api: Api[Any, Any], version: int, message: Struct) -> Any:
        frame = b"".join(encode_request(api, version, _CORRELATION_ID, CLIENT_ID, message))
        try:
            return decode_response(api, version, self._exchange(frame, REPLY_S_MAX))[1]
        except (ConnectionClosed, NoReply, ProtocolError) as problem:
            raise BrokerFailed(f"{self._broker.name} failed at {api.name}: {problem!r}") from problem

    def _exchange(self, frame: bytes, timeout_s: float) -> bytes:
        if self._connection is None:
            try:
                self._connection = Connection(self._broker.host, self._broker.port)
            except OSError as problem:
                raise BrokerFailed(f"{self._broker.name} cannot be reached: {problem}") from problem
        return self._connection.exchange(frame, timeout_s)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
