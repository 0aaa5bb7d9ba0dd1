"""Authorization: Kafka's operations and resources, and the authorizer interface.

Until users are supported, every principal is ANONYMOUS and everything is allowed. The authorization checks
are already made where they will be needed.
"""

from enum import IntEnum
from typing import NamedTuple, Protocol


class Operation(IntEnum):
    """Kafka's codes: they are also the bits of 'authorized operations' in replies."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """Kafka's codes of resource types."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    """A resource that an operation accesses."""

    type: ResourceType
    name: str


CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")

TOPIC_OPERATIONS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


class Principal(NamedTuple):
    """Identity of a client."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


class Authorizer(Protocol):
    """Decides whether a principal may perform an operation on a resource."""

    @property
    def allows_everything(self) -> bool:
        """True lets the hot path skip the collection of the resources of a request."""
        ...

    def authorise(self, principal: Principal, operation: Operation, resource: Resource) -> bool: ...


class AllowEverything:
    """Authorizer that allows every operation."""

    allows_everything = True

    def authorise(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return True
