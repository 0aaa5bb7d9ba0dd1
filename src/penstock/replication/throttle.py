"""How fast replicas that are being added may be copied.

Strategy: a debt. What was copied is owed and paid off at the rate; as long as something is owed, nothing more
is asked for. So the rate holds over time, whatever the size of one answer is.

Rule 1: what is asked for in one answer is not more than a second's worth, if batches are not larger.
Rule 2: a replica that is in sync is never held back: those who wait for acknowledgements wait for it.
"""

from typing import NamedTuple

from penstock.limits import LONG_MAX, REPLICA_PARTITION_BYTES, REPLICA_THROTTLE_PAUSE_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.types import TopicId

NO_RATE = LONG_MAX
"""As Kafka writes that there is no limit."""


class Allowance(NamedTuple):
    """Of one replica."""

    since: float
    """It may be asked for from then on."""
    bytes_max: int = REPLICA_PARTITION_BYTES


class Throttle:
    """Of one broker, over all leaders that it copies from."""

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._paid_at = 0.0

    def spend(self, count: int, rate: int, now: float) -> None:
        self._pay(rate, now)
        self._owed_bytes += count

    def allowance(self, rate: int, now: float) -> Allowance:
        """Asked again when it may be asked for: the rate may be another by then."""
        self._pay(rate, now)
        pause_s = min(self._owed_bytes / rate, REPLICA_THROTTLE_PAUSE_MS_MAX / 1000)
        return Allowance(now + pause_s, min(rate, REPLICA_PARTITION_BYTES))

    def _pay(self, rate: int, now: float) -> None:
        self._owed_bytes = max(0.0, self._owed_bytes - (now - self._paid_at) * rate)
        self._paid_at = now


def is_being_added(image: ClusterImage, topic_id: TopicId, partition: int, broker_id: int) -> bool:
    """Whether a reassignment gives the broker this replica, and it is not in sync yet."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None or partition >= len(topic.partitions):
        return False
    state = topic.partitions[partition]
    return broker_id in state.adding and broker_id not in state.isr
