"""What the decisions about groups take from outside, as plain values and calls."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.config.groups import ConsumerConfig, GroupConfig
from penstock.coordinator.timers import Timers
from penstock.groups.consumer.regex import REGEX_CHUNK_WORK_MAX
from penstock.groups.offsets.consume_rate import ConsumeRates
from penstock.groups.offsets.expiry_rules import TrustedClock
from penstock.limits import (
    GROUP_METADATA_BYTES_MAX,
    GROUP_RATE_PARTITIONS_MAX,
    GROUP_RATE_WINDOW_MS,
    GROUP_STATE_BYTES_MAX,
)
from penstock.metadata.cluster_image import Topic
from penstock.types import TopicId


class TimerKey(NamedTuple):
    kind: str
    """One of the names below: what to do when it expires."""
    group_id: str
    member_id: str = ""


class TopicsImage(NamedTuple):
    """The topics there are."""

    by_name: Mapping[str, Topic]
    by_id: Mapping[TopicId, Topic]


class ClientInfo(NamedTuple):
    """Who asks, as far as members are shown to people."""

    client_id: str
    host: str


class GroupStateLimits(NamedTuple):
    """How much groups may take, all together and one of them, and how long one of them may compute."""

    state_bytes_max: int = GROUP_STATE_BYTES_MAX
    metadata_bytes_max: int = GROUP_METADATA_BYTES_MAX
    regex_chunk_work_max: int = REGEX_CHUNK_WORK_MAX


GROUP_STATE_LIMITS: Final = GroupStateLimits()


class GroupContext:
    __slots__ = (
        "config",
        "generate_member_id",
        "group_overrides",
        "limits",
        "rates",
        "timers",
        "topics",
        "trusted_clock",
    )

    def __init__(
        self,
        config: Callable[[], GroupConfig],
        topics: Callable[[], TopicsImage],
        generate_member_id: Callable[[], str],
        rates: ConsumeRates | None = None,
        trusted_clock: TrustedClock | None = None,
        limits: GroupStateLimits = GROUP_STATE_LIMITS,
    ) -> None:
        self.config = config
        """As it is now: it can be changed while groups live."""
        self.topics = topics
        self.generate_member_id = generate_member_id
        """A text that nobody can guess, as a UUID."""
        self.rates = rates or ConsumeRates(GROUP_RATE_WINDOW_MS, GROUP_RATE_PARTITIONS_MAX)
        """One for all shards, which share its bound."""
        self.trusted_clock = trusted_clock or TrustedClock()
        """One for as long as the broker runs: a shard that is loaded again must not forget a jump."""
        self.group_overrides: Callable[[str], Mapping[str, str]] = lambda group_id: {}
        """The settings that a group was given for itself, as they are now."""
        self.limits = limits
        self.timers: Timers[TimerKey] = Timers()

    def consumer_config(self, group_id: str) -> ConsumerConfig:
        """What a group of the new protocol obeys."""
        config, overrides = self.config().consumer, self.group_overrides(group_id)
        return config.of_group(overrides) if overrides else config
