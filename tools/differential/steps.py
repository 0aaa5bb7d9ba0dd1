"""What a scenario is made of: topics that are there when it begins, and questions in order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.schema import Api, Struct
from penstock.types import TopicId

REPLY_S_MAX = 10.0
NO_REPLY_S = 0.7
"""How long is waited where silence is one of the answers."""


@dataclass
class ScenarioState:
    """What one broker has said that later questions to it depend on."""

    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    """Numbers, and texts that the broker made up, such as the ids of members."""

    def actual_name(self, name: str) -> str:
        """What the broker calls whom the scenario calls `name`; the name itself before it has said so."""
        return str(self.saved.get(name, name))


Message = Struct | Callable[[ScenarioState], Struct]


@dataclass(frozen=True)
class RequestStep:
    """A request that the codec can write.

    `eventually`: brokers may take a moment to come to the same answer, so the question is repeated
    while the answers differ. `saves`: a field of the answer that later questions use, remembered by its
    name or as `saves_as`.
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
    """A frame as it stands, for what no codec would write. `reads` says how to read an answer."""

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
