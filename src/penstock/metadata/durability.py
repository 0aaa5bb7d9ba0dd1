"""Durability settings of the cluster, and which brokers hold all committed records under them.

Leaders, the controller and every broker that elects must agree on min.insync.replicas. So the setting counts
only where all of them read the same value: in the topic, or in the cluster-wide defaults. The settings that
one broker was started with do not count.

Without a setting the minimum is 2 where a partition has three replicas or more, and 1 where it has fewer: the
loss of one disk then loses no acknowledged record, and two brokers still work when one is down.

Eligible leaders (ELR). While the ISR is smaller than the minimum, the high watermark stands still. A replica
that leaves the ISR then, or in the change that made the ISR too small, still has all committed records. That
holds only under the minimum of that time. So changes of the minimum are counted in the topic and in the
cluster-wide defaults, and an ELR that was written under another count is void (`eligible_leaders`). One
number is compared, however many partitions the change affects.

Rule: replicas that are being added do not count, so that the minimum of a topic that is given more replicas
      does not rise before these replicas are in sync.
"""

from collections.abc import Mapping

from penstock.config.setting import SettingValue
from penstock.config.topic import FlushPolicy
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.host.metadata_store import ABSENT
from penstock.metadata.cluster_image import BrokerRegistration, ClusterImage, PartitionState, Topic
from penstock.metadata.keys import topic_id_text

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
FLUSH = "flush.policy"
BROKER_FLUSH = "log.flush.policy"

REPLICATION_FACTOR_DEFAULT = 3
MIN_ISR_DEFAULT = 2


def min_isr(image: ClusterImage, topic: Topic, state: PartitionState) -> int:
    """How many replicas must be in sync for a record to be committed."""
    replicas = len(state.replicas) - len(state.adding)
    wanted = _topic_or_cluster_setting(image, topic, MIN_ISR)
    if wanted is None:
        return MIN_ISR_DEFAULT if replicas >= REPLICATION_FACTOR_DEFAULT else 1
    assert isinstance(wanted, int)
    # A minimum above the number of replicas could never be met.
    return min(wanted, replicas)


def min_isr_changes(image: ClusterImage, topic: Topic) -> int:
    """The count of changes of the topic's minimum: another count means that another minimum may hold."""
    return topic.min_isr_changes + image.overrides_of_broker(None).min_isr_changes


def changes_min_isr(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    return before.get(MIN_ISR) != after.get(MIN_ISR)


def eligible_leaders(image: ClusterImage, topic: Topic, state: PartitionState) -> tuple[int, ...]:
    """The replicas outside the ISR that nevertheless have all committed records."""
    # An empty ISR commits nothing, whatever the minimum, so its ELR stays valid.
    holds = not state.isr or state.min_isr_changes == min_isr_changes(image, topic)
    return state.elr if holds else ()


def allows_unclean_election(image: ClusterImage, topic: Topic) -> bool:
    return _topic_or_cluster_setting(image, topic, UNCLEAN) is True


def has_acknowledged_records(
    image: ClusterImage, topic: Topic, index: int, broker: BrokerRegistration
) -> bool:
    """Whether a broker that has come back still has what it had acknowledged in its last admitted epoch."""
    live = broker.live
    assert live is not None, "only a broker with a session can have come back"
    # A missing copy outweighs a clean stop: the records are not on this disk, however it was stopped.
    if has_lost_copy(broker, topic, index):
        return False
    was_clean = live.clean_epoch != ABSENT and live.clean_epoch == broker.admitted_epoch
    return was_clean or _flushed_before_ack(image, topic, broker)


def has_lost_copy(broker: BrokerRegistration, topic: Topic, index: int) -> bool:
    """Whether the broker's copy of this partition is gone: with its disk, or this copy alone."""
    if has_lost_disk(broker):
        return True
    lost = {} if broker.live is None else broker.live.lost
    return bool(lost) and index in lost.get(topic_id_text(topic.id), ())


def has_lost_disk(broker: BrokerRegistration) -> bool:
    """Whether the broker has another disk than the one it was admitted with.

    The result does not matter for a broker that never was admitted: it has no records to lose.

    A disk whose clean-stop mark names an epoch before the last admitted one is a restored copy: every start
    removes the mark, so it cannot survive a later epoch. Other copies are recognized by the start ids that
    they lack (`controller.broker_lifecycle.is_stale_disk_copy`).
    """
    live = broker.live
    if live is None:
        return False
    is_another = live.directory_id != broker.directory_id or live.has_lost_all
    return is_another or ABSENT < live.clean_epoch < broker.admitted_epoch


def _flushed_before_ack(image: ClusterImage, topic: Topic, broker: BrokerRegistration) -> bool:
    # In order of precedence: the topic, the broker, the cluster-wide default, and what the broker reported at
    # its last admission.
    own = image.overrides_of_broker(broker.id).overrides.get(BROKER_FLUSH)
    text = topic.overrides.get(FLUSH) or own or image.overrides_of_broker(None).overrides.get(BROKER_FLUSH)
    return broker.flushes_before_ack if text is None else text == FlushPolicy.BEFORE_ACK


def _topic_or_cluster_setting(image: ClusterImage, topic: Topic, name: str) -> SettingValue | None:
    text = topic.overrides.get(name)
    if text is None:
        text = image.overrides_of_broker(None).overrides.get(name)
    return None if text is None else TOPIC_SETTINGS[name].parse(text)
