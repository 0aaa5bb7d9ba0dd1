"""The inputs of group decisions from outside the groups, as plain values and callables."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.config.groups import ConsumerConfig, GroupConfig
from penstock.coordinator.outcome import Now
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
    """What to do on expiry: a constant such as `SESSION` in `classic/rebalance.py`."""
    group_id: str
    member_id: str = ""


class TopicsImage(NamedTuple):
    """All topics of the cluster."""

    by_name: Mapping[str, Topic]
    by_id: Mapping[TopicId, Topic]


class ClientInfo(NamedTuple):
    """Identity of a client, as the describe APIs return it."""

    client_id: str
    host: str


class GroupStateLimits(NamedTuple):
    """Limits on the memory of all groups, on the metadata of one group, and on one chunk of regex work."""

    state_bytes_max: int = GROUP_STATE_BYTES_MAX
    metadata_bytes_max: int = GROUP_METADATA_BYTES_MAX
    regex_chunk_work_max: int = REGEX_CHUNK_WORK_MAX


GROUP_STATE_LIMITS: Final = GroupStateLimits()


class GroupContext:
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
        """Returns the current configuration, which can change while groups exist."""
        self.topics = topics
        self.generate_member_id = generate_member_id
        """Returns an id that cannot be guessed, like a UUID."""
        self.rates = rates or ConsumeRates(GROUP_RATE_WINDOW_MS, GROUP_RATE_PARTITIONS_MAX)
        """Shared by all shards, because its bound is for all of them."""
        self.trusted_clock = trusted_clock or TrustedClock()
        """Lives as long as the broker: reloading a shard must not lose the record of a clock jump."""
        self.group_overrides: Callable[[str], Mapping[str, str]] = lambda group_id: {}
        """Returns the current dynamic configuration of one group."""
        self.limits = limits
        self.timers: Timers[TimerKey] = Timers()

    def set_timer(self, key: TimerKey, delay_ms: int, now: Now) -> None:
        self.timers.set(key, now.monotonic + delay_ms / 1000)

    def consumer_config(self, group_id: str) -> ConsumerConfig:
        """Effective configuration of a group of the consumer protocol."""
        config, overrides = self.config().consumer, self.group_overrides(group_id)
        return config.of_group(overrides) if overrides else config
