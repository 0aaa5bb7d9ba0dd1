"""Routes a request frame to its handler and encodes the reply.

The routes that are registered here are what ApiVersions lists, except those that only brokers use. A handler
is called with the decoded request and its context, and replies in one of four ways:

    a response message       written at once
    None                     nothing is written (produce with acks=0)
    a `DeferredReply`        written when it is finished, if it ends with a message; requests behind it
                             continue meanwhile
    a coroutine              awaited; requests behind it on the same connection wait

Replies are sent in the order of their requests, whatever the handlers do; see protocol/connection.py.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from enum import Enum
from typing import Any, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.quotas import Quotas
from penstock.broker.served_api import ServedApi
from penstock.errors import ProtocolError
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.compiler import Decoder, decoder
from penstock.protocol.frames import RequestHeader, encode_response, parse_request_header
from penstock.protocol.messages.produce import ProduceResponse
from penstock.protocol.produce_reply import encode_plain_reply
from penstock.protocol.schema import Api, Struct
from penstock.security.access import Authorizer
from penstock.types import Buffer


class DeferredReply:
    """A reply that is finished later. `finish` and `then` may be called in either order."""

    __slots__ = ("_outcome", "_then", "abandon")

    def __init__(self, abandon: Callable[[], None] | None = None) -> None:
        self.abandon = abandon
        """Called if the client disconnects before the reply is finished."""
        self._outcome: ReplyOutcome | None = None
        self._then: Callable[[ReplyOutcome], None] | None = None

    def finish(self, outcome: "ReplyOutcome") -> None:
        assert self._outcome is None, "a reply is finished once"
        self._outcome = outcome
        if self._then is not None:
            self._then(outcome)

    def then(self, callback: "Callable[[ReplyOutcome], None]") -> None:
        self._then = callback
        if self._outcome is not None:
            callback(self._outcome)


class NoReply(Enum):
    """The outcome of a request that expects no reply."""

    DONE = 0


ReplyOutcome = Struct | NoReply | ProtocolError
"""The reply, no reply, or the reason to close the connection."""


HandlerResult = Struct | None | DeferredReply | Coroutine[Any, Any, Struct]
ApiHandler = Callable[[Any, RequestContext], HandlerResult | Awaitable[Struct]]


class Route(NamedTuple):
    api: ServedApi
    handle: ApiHandler
    check: Callable[[Any], None] | None = None
    """Raises ProtocolError for a decoded request that must not reach its handler."""

    @property
    def messages(self) -> Api[Struct, Struct]:
        return self.api.messages


class Router:
    def __init__(
        self,
        routes: Iterable[Route],
        authorizer: Authorizer,
        quotas: Quotas,
        image: Callable[[], ClusterImage],
    ) -> None:
        self._authorizer = authorizer
        self._quotas = quotas
        self._image = image
        self._routes: dict[int, Route] = {}
        self._decoders: dict[tuple[int, int], Decoder[Struct]] = {}
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        key = route.messages.key
        assert key not in self._routes, f"two handlers for {route.messages.name}"
        self._routes[key] = route

    def supported(self) -> list[tuple[int, int, int]]:
        """(api key, oldest version, newest version) for ApiVersions, derived from the routes."""
        return [
            (
                key,
                route.messages.versions[0]
                if route.api.oldest_advertised is None
                else route.api.oldest_advertised,
                route.messages.versions[1],
            )
            for key, route in sorted(self._routes.items())
            if route.api.is_advertised
        ]

    def decode(self, header: RequestHeader, frame: memoryview, position: int) -> Struct:
        """Decode a request. ProtocolError: close the connection."""
        key, version = header.api_key, header.api_version
        decode = self._decoders.get((key, version)) or self._decoder_of(key, version)
        return decode(frame, position)[0]

    def weigh(self, frame: memoryview) -> int:
        """The weight of a request if its reply were deferred. The request is not handled."""
        header, position = parse_request_header(frame)
        if not self.supports(header.api_key, header.api_version):
            return 0  # rejected as soon as it is handled
        request = self.decode(header, frame, position)
        return self._routes[header.api_key].api.weigh(request, len(frame))

    def dispatch(
        self, header: RequestHeader, request: Struct, request_bytes: int, connection: RequestContext
    ) -> tuple[Route, Any, int]:
        """Authorize, charge and handle a decoded request.

        Returns the route, the handler's result, and for how many milliseconds the client must pause.
        """
        key, version = header.api_key, header.api_version
        route = self._routes[key]
        # Without an authorizer the names in the request need not be extracted at all.
        if not self._authorizer.allows_everything:
            denied = route.api.denied_names(request, self._image(), connection.principal, self._authorizer)
            context = connection.for_request(version, header.client_id, denied)
        else:
            context = connection.undenied(version, header.client_id)
        throttle_ms = self._quotas.charge(context, key, request_bytes)
        return route, route.handle(request, context), throttle_ms

    def supports(self, api_key: int, version: int) -> bool:
        route = self._routes.get(api_key)
        return route is not None and route.messages.has_version(version)

    def _decoder_of(self, key: int, version: int) -> Decoder[Struct]:
        route = self._routes.get(key)
        if route is None:
            raise ProtocolError(f"api key {key} is not served")
        if not route.messages.has_version(version):
            raise ProtocolError(f"{route.messages.name} version {version} is not served")
        found = decoder(route.messages.request, version, route.messages.is_flexible(version))
        # The check runs within decoding, before the request is charged or waits for memory.
        if route.check is not None:
            found = _checked(found, route.check)
        self._decoders[key, version] = found
        return found


def _checked(decode: Decoder[Struct], check: Callable[[Any], None]) -> Decoder[Struct]:
    def checked(frame: Buffer, position: int) -> tuple[Struct, int]:
        request, end = decode(frame, position)
        check(request)
        return request, end

    return checked


def encode_reply(route: Route, header: RequestHeader, reply: Struct) -> list[Buffer]:
    # Produce replies are the most frequent ones, so their usual form has an encoder of its own.
    if type(reply) is ProduceResponse:
        frame = encode_plain_reply(header.api_version, header.correlation_id, reply)
        if frame is not None:
            return [frame]
    return encode_response(route.messages, header.api_version, header.correlation_id, reply)
