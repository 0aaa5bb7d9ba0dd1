"""The context of a request besides its content: the client, its listener and the API version."""

from penstock.security.access import CLUSTER, Authorizer, Operation, Principal, Resource, ResourceType


class RequestContext:
    __slots__ = ("_authorizer", "_last", "client_id", "denied", "listener", "peer", "principal", "version")

    def __init__(self, principal: Principal, listener: str, peer: str, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.listener = listener
        """The name of the listener: replies name brokers by the endpoints that this listener's clients can
        reach.
        """
        self.peer = peer
        self.client_id: str | None = None
        self.version = 0
        self.denied: frozenset[str] = frozenset()
        """Names in this request for which the authorizer denied the operation of the API."""
        self._last: RequestContext | None = None

    def for_request(self, version: int, client_id: str | None, denied: frozenset[str]) -> "RequestContext":
        """A new context for one request: an earlier request may still wait with its own."""
        context = RequestContext(self.principal, self.listener, self.peer, self._authorizer)
        context.version = version
        context.client_id = client_id
        context.denied = denied
        return context

    def undenied(self, version: int, client_id: str | None) -> "RequestContext":
        """A context for a request without denied names. Consecutive requests alike share one, as it is never
        changed.
        """
        context = self._last
        if context is None or context.version != version or context.client_id != client_id:
            context = self._last = self.for_request(version, client_id, frozenset())
        return context

    @property
    def cluster_denied(self) -> bool:
        return CLUSTER.name in self.denied

    @property
    def may_everything(self) -> bool:
        """Whether every operation is allowed, so that calling `may` for each of many resources is a waste."""
        return self._authorizer.allows_everything

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Authorize what the API's declaration cannot know in advance, such as the creation of a topic on the
        way.
        """
        return self._authorizer.authorise(self.principal, operation, Resource(resource_type, name))

    def operations_bits(self, operations: tuple[Operation, ...], resource: Resource) -> int:
        """Kafka's bit set of the operations that the principal may perform on a resource."""
        allowed = (op for op in operations if self._authorizer.authorise(self.principal, op, resource))
        return sum(1 << operation for operation in allowed)
