"""What a handler knows beside the request itself: who asks, from where, in which version."""

from penstock.security.access import CLUSTER, Authorizer, Operation, Principal, Resource, ResourceType


class RequestContext:
    __slots__ = ("_authorizer", "_last", "client_id", "denied", "listener", "peer", "principal", "version")

    def __init__(self, principal: Principal, listener: str, peer: str, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.listener = listener
        """The name of the listener: replies name brokers as that listener's clients reach them."""
        self.peer = peer
        self.client_id: str | None = None
        self.version = 0
        self.denied: frozenset[str] = frozenset()
        """Names that the access table asked for and the authoriser refused, for this request."""
        self._last: RequestContext | None = None

    def for_request(self, version: int, client_id: str | None, denied: frozenset[str]) -> "RequestContext":
        """A context of its own for one request: an earlier one may still be waiting with its own."""
        context = RequestContext(self.principal, self.listener, self.peer, self._authorizer)
        context.version = version
        context.client_id = client_id
        context.denied = denied
        return context

    def undenied(self, version: int, client_id: str | None) -> "RequestContext":
        """The same, where nothing was refused: alike requests share one, for nobody changes it."""
        context = self._last
        if context is None or context.version != version or context.client_id != client_id:
            context = self._last = self.for_request(version, client_id, frozenset())
        return context

    @property
    def cluster_denied(self) -> bool:
        return CLUSTER.name in self.denied

    @property
    def may_everything(self) -> bool:
        """True where asking `may` about each of many things would be a waste."""
        return self._authorizer.allows_everything

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """For what the access table cannot know beforehand, such as creating a topic on the way."""
        return self._authorizer.authorise(self.principal, operation, Resource(resource_type, name))

    def operations_bits(self, operations: tuple[Operation, ...], resource: Resource) -> int:
        """Kafka's bit set of what the principal may do to a resource."""
        allowed = (op for op in operations if self._authorizer.authorise(self.principal, op, resource))
        return sum(1 << operation for operation in allowed)
