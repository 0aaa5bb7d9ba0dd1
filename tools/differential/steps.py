"""Parts of a scenario: the topics that exist at its beginning, and the requests in their order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.schema import Api, Struct
from penstock.types import TopicId

REPLY_S_MAX = 10.0
NO_REPLY_S = 0.7
"""How long a request waits if no response is one of the expected outcomes."""


@dataclass
class ScenarioState:
    """Values from responses of one broker that later requests to it need."""

    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    """Numbers, and generated texts such as member ids."""

    def actual_name(self, name: str) -> str:
        """The broker's id for the member `name` of the scenario; the name itself before there is an id."""
        return str(self.saved.get(name, name))


Message = Struct | Callable[[ScenarioState], Struct]


@dataclass(frozen=True)
class RequestStep:
    """A request that the codec can encode.

    `eventually`: the request is repeated while the responses differ, because brokers apply some changes late.
    `saves`: a field of the response that later requests use, saved under its own name or as `saves_as`.
    """

    name: str
    api: Api[Any, Any]
    version: int
    message: Message
    eventually: bool = False
    saves: str | None = None
    saves_as: str | None = None
    timeout_s: float = REPLY_S_MAX


@dataclass(frozen=True)
class FrameStep:
    """A raw frame that the codec would not encode. `reads` tells how to decode a response."""

    name: str
    frame: bytes
    reads: tuple[Api[Any, Any], int]
    timeout_s: float = NO_REPLY_S


Step = RequestStep | FrameStep


@dataclass(frozen=True)
class Topic:
    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: tuple[Step, ...]
    topics: tuple[Topic, ...] = ()
