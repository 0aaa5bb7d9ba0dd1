"""From a frame to its handler: what is advertised is what is served, and what is refused is not called."""

from typing import Any

import pytest

from penstock.broker.apis.log_positions import LogPositions
from penstock.broker.apis.metadata import Metadata
from penstock.broker.apis.produce import Produce
from penstock.broker.context import RequestContext
from penstock.broker.router import DeferredReply, Route, Router
from penstock.broker.served_api import never_waits
from penstock.errors import ProtocolError
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.frames import encode_request, parse_request_header
from penstock.protocol.messages.log_positions import LOG_POSITIONS
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.protocol.messages.produce import PRODUCE
from penstock.security.access import ANONYMOUS, AllowEverything, Authorizer
from tests.unit.broker.support import denying

REPLY = MetadataResponse()


class Charging:
    """Counts, and asks for a pause."""

    def __init__(self) -> None:
        self.charged: list[tuple[int, int]] = []

    def charge(self, context: RequestContext, api_key: int, request_bytes: int) -> int:
        self.charged.append((api_key, request_bytes))
        return 40


class Desk:
    def __init__(self, authorizer: Authorizer | None = None) -> None:
        self.asked: list[tuple[MetadataRequest, RequestContext]] = []
        self.quotas = Charging()
        authorizer = authorizer or AllowEverything()
        image = ClusterImage(cluster_id="c")
        self.router = Router([Route(Metadata.api, self.handle)], authorizer, self.quotas, lambda: image)
        self.connection = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", authorizer)

    def handle(self, request: MetadataRequest, context: RequestContext) -> Any:
        self.asked.append((request, context))
        return REPLY

    def dispatch(self, frame: bytes) -> Any:
        header, position = parse_request_header(memoryview(frame))
        request = self.router.decode(header, memoryview(frame), position)
        return self.router.dispatch(header, request, len(frame), self.connection)


def frame_of(*topics: str, version: int = 12) -> bytes:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics])
    return b"".join(encode_request(METADATA, version, 1, "tests", request))[4:]


def test_what_a_request_would_be_counted_as_is_known_without_asking_its_handler() -> None:
    desk = Desk()
    small, large = (desk.router.weigh(memoryview(frame_of(*["topic"] * count))) for count in (1, 100))
    assert 0 < small < large
    assert desk.asked == []


def test_what_is_refused_or_always_answered_at_once_is_counted_as_nothing() -> None:
    desk = Desk()
    unknown = bytearray(frame_of("a"))
    unknown[2:4] = (99).to_bytes(2, "big")
    assert desk.router.weigh(memoryview(unknown)) == 0
    image = ClusterImage(cluster_id="c")
    route = Route(Metadata.api._replace(weigh=never_waits), desk.handle)
    router = Router([route], AllowEverything(), desk.quotas, lambda: image)
    assert router.weigh(memoryview(frame_of("a"))) == 0


def test_a_request_reaches_its_handler_decoded_and_counted() -> None:
    desk = Desk()
    frame = frame_of("a", "b")
    _, answer, throttle_ms = desk.dispatch(frame)
    (request, context), *others = desk.asked
    assert not others
    assert [topic.name for topic in request.topics or []] == ["a", "b"]
    assert (context.version, context.client_id, context.denied) == (12, "tests", frozenset())
    assert answer is REPLY
    assert throttle_ms == 40
    assert desk.quotas.charged == [(METADATA.key, len(frame))]


def test_the_handler_is_told_what_the_principal_may_not_see() -> None:
    desk = Desk(denying("secret"))
    desk.dispatch(frame_of("open", "secret"))
    assert desk.asked[0][1].denied == {"secret"}


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, PRODUCE.key, "api key 0 is not served"),
        (0, 999, "api key 999 is not served"),
        (2, 99, "Metadata version 99 is not served"),
        (2, 0xFFFF, "Metadata version -1 is not served"),
    ],
)
def test_what_is_not_served_is_refused_before_it_is_decoded(at: int, value: int, reason: str) -> None:
    desk = Desk()
    frame = bytearray(frame_of("a"))
    frame[at : at + 2] = value.to_bytes(2, "big")
    with pytest.raises(ProtocolError, match=reason):
        desk.dispatch(bytes(frame))
    assert desk.asked == []
    assert desk.quotas.charged == []


def test_a_broken_body_never_reaches_the_handler() -> None:
    desk = Desk()
    with pytest.raises(ProtocolError):
        desk.dispatch(frame_of("a")[:-8])
    assert desk.asked == []


def test_what_is_advertised_is_what_is_registered() -> None:
    desk = Desk()
    assert desk.router.supported() == [(METADATA.key, *METADATA.versions)]
    desk.router.add(Route(Produce.api, desk.handle))
    assert (PRODUCE.key, 0, PRODUCE.versions[1]) in desk.router.supported()
    assert not desk.router.supports(PRODUCE.key, 0)
    desk.router.add(Route(LogPositions.api, desk.handle))
    assert LOG_POSITIONS.key not in [key for key, _, _ in desk.router.supported()]
    assert desk.router.supports(LOG_POSITIONS.key, 0)
    with pytest.raises(AssertionError, match="two handlers"):
        desk.router.add(Route(Produce.api, desk.handle))


def test_a_deferred_reply_is_delivered_once_before_or_after_it_is_awaited() -> None:
    told: list[object] = []
    early, late = DeferredReply(), DeferredReply()
    early.finish(REPLY)
    early.then(told.append)
    late.then(told.append)
    late.finish(REPLY)
    assert told == [REPLY, REPLY]
    with pytest.raises(AssertionError, match="finished once"):
        late.finish(REPLY)
