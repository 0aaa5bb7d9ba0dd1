"""The short way to encode an answer gives the same bytes as the long one, or none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.limits import TOPIC_NAME_CHARACTERS_MAX
from penstock.protocol import produce_reply
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
from penstock.protocol.produce_reply import TOPICS_KEPT_MAX, encode_plain_reply
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
    is_long = version < 13 and len(name) > TOPIC_NAME_CHARACTERS_MAX
    if version < 9 or answer.error_code or is_long:
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


def test_not_every_topic_that_ever_was_is_kept() -> None:
    for number in range(TOPICS_KEPT_MAX + 2):
        assert encode_plain_reply(10, 1, reply_of(ANSWER, name=f"t{number}")) is not None
    assert len(produce_reply._layouts) <= TOPICS_KEPT_MAX


@pytest.mark.parametrize("code", [0, 3])
def test_a_name_as_long_as_its_request_is_not_kept(code: int) -> None:
    """Nobody has to have made a topic of that name: the refusal repeats it."""
    produce_reply._layouts.clear()
    for number in range(20):
        name = f"{number}" + "x" * 100_000
        encode_plain_reply(10, 1, reply_of(msgspec.structs.replace(ANSWER, error_code=code), name=name))
    kept_bytes = sum(len(name) + len(form.topic) for name, form in produce_reply._layouts.items())
    assert kept_bytes < 10_000


def test_the_names_of_refusals_are_not_kept_at_all() -> None:
    produce_reply._layouts.clear()
    encode_plain_reply(
        10, 1, reply_of(msgspec.structs.replace(ANSWER, error_code=3), name="nobody-made-this")
    )
    assert produce_reply._layouts == {}
