"""The short way to encode an answer gives the same bytes as the long one, or none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.frames import encode_response
from penstock.protocol.messages.produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.protocol.produce_reply import encode_plain_reply
from penstock.types import TopicId

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
VERSIONS = st.integers(*PRODUCE.versions)
ANSWER = PartitionProduceResponse(3, 0, 41, -1, 7)


def reply_of(
    *answers: PartitionProduceResponse, name: str = "orders", throttle_ms: int = 0
) -> ProduceResponse:
    topic = TopicProduceResponse(name, TopicId(b"\x07" * 16), list(answers))
    return ProduceResponse([topic], throttle_ms)


@given(
    version=VERSIONS,
    correlation_id=INT32,
    answer=st.builds(PartitionProduceResponse, INT32, st.sampled_from((0, 0, 3, -1)), INT64, INT64, INT64),
    name=st.text(st.characters(codec="utf-8"), max_size=300),
    throttle_ms=INT32,
)
def test_the_bytes_are_those_of_the_general_encoder(
    version: int, correlation_id: int, answer: PartitionProduceResponse, name: str, throttle_ms: int
) -> None:
    reply = reply_of(answer, name=name, throttle_ms=throttle_ms)
    frame = encode_plain_reply(version, correlation_id, reply)
    if version < 9 or answer.error_code:
        assert frame is None
    else:
        assert [frame] == encode_response(PRODUCE, version, correlation_id, reply)


@pytest.mark.parametrize(
    "reply",
    [
        ProduceResponse(),
        ProduceResponse([*reply_of(ANSWER).responses, *reply_of(ANSWER).responses]),
        reply_of(),
        reply_of(ANSWER, ANSWER),
        reply_of(msgspec.structs.replace(ANSWER, error_code=3)),
        reply_of(msgspec.structs.replace(ANSWER, error_message="no")),
        reply_of(msgspec.structs.replace(ANSWER, record_errors=[BatchIndexAndErrorMessage(0, "no")])),
        reply_of(msgspec.structs.replace(ANSWER, current_leader=LeaderIdAndEpoch(2, 5))),
        msgspec.structs.replace(reply_of(ANSWER), node_endpoints=[NodeEndpoint(2, "other", 9092)]),
    ],
    ids=["none", "topics", "no partition", "partitions", "code", "message", "records", "leader", "endpoints"],
)
def test_what_says_more_is_left_to_the_general_encoder(reply: ProduceResponse) -> None:
    assert encode_plain_reply(10, 1, reply) is None
