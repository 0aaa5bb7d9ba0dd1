"""Replication throttle: limits how fast replicas that are being added are copied.

Strategy: a debt. Copied bytes are owed and paid off at the configured rate. While anything is owed, the
follower fetches nothing more. So the rate holds over time, whatever the size of one reply is.

Rule 1: one fetch requests at most one second's worth, unless a single batch is larger.
Rule 2: a replica that is in sync is never throttled: acknowledgements wait for it.
"""

from typing import NamedTuple

from penstock.limits import LONG_MAX, REPLICA_PARTITION_BYTES, REPLICA_THROTTLE_PAUSE_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.types import TopicId

NO_RATE = LONG_MAX
"""Kafka's value for "no limit"."""


class Allowance(NamedTuple):
    """When and how much may be fetched for one replica."""

    since: float
    """Earliest time of the next fetch."""
    bytes_max: int = REPLICA_PARTITION_BYTES


class Throttle:
    """Debt of one broker, over all leaders that it copies from."""

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._paid_at = 0.0

    def spend(self, count: int, rate: int, now: float) -> None:
        self._pay(rate, now)
        self._owed_bytes += count

    def allowance(self, rate: int, now: float) -> Allowance:
        """Compute when the next fetch is allowed. The caller then checks again: the rate may have changed."""
        self._pay(rate, now)
        pause_s = min(self._owed_bytes / rate, REPLICA_THROTTLE_PAUSE_MS_MAX / 1000)
        return Allowance(now + pause_s, min(rate, REPLICA_PARTITION_BYTES))

    def _pay(self, rate: int, now: float) -> None:
        self._owed_bytes = max(0.0, self._owed_bytes - (now - self._paid_at) * rate)
        self._paid_at = now


def is_being_added(image: ClusterImage, topic_id: TopicId, partition: int, broker_id: int) -> bool:
    """Check whether a reassignment adds this replica to the broker and it is not in sync yet."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None or partition >= len(topic.partitions):
        return False
    state = topic.partitions[partition]
    return broker_id in state.adding and broker_id not in state.isr
