"""The settings that say what an acknowledged record survives, as the cluster holds them.

min.insync.replicas is what leaders, the controller and whoever elects must agree on, so it counts only
where all of them see it: in the topic, or in the default for all brokers. What one broker was started
with does not count.

Without a setting it is 2 where there are three replicas or more, and 1 where there are fewer: one lost
disk then loses nothing that was acknowledged, and two brokers still work when one is gone.

Eligible leaders (ELR). While fewer are in sync than the minimum, the high watermark stands still. Who
leaves the in-sync replicas then, or in the step that made them fewer, still has all that was committed.
That is so under the minimum of that time: its changes are counted in the topic and in the default of
the cluster, and an ELR that was written under another count is void (`eligible_leaders`). One number is
compared, however many partitions the change is about.

Rule: replicas that are being added do not count, so that a topic which is given more replicas is not
held to more of them before they are there.
"""

from collections.abc import Mapping

from penstock.config.setting import SettingValue
from penstock.config.topic import FlushPolicy
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.host.metadata_store import ABSENT
from penstock.metadata.cluster_image import BrokerRegistration, ClusterImage, PartitionState, Topic

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
FLUSH = "flush.policy"
BROKER_FLUSH = "log.flush.policy"

REPLICATION_FACTOR_DEFAULT = 3
MIN_ISR_DEFAULT = 2


def min_isr(image: ClusterImage, topic: Topic, state: PartitionState) -> int:
    """How many must be in sync for anything to be committed."""
    replicas = len(state.replicas) - len(state.adding)
    wanted = _topic_or_cluster_setting(image, topic, MIN_ISR)
    if wanted is None:
        return MIN_ISR_DEFAULT if replicas >= REPLICATION_FACTOR_DEFAULT else 1
    assert isinstance(wanted, int)
    return min(wanted, replicas)


def min_isr_changes(image: ClusterImage, topic: Topic) -> int:
    """Another number whenever another minimum may hold for the topic."""
    return topic.min_isr_changes + image.overrides_of_broker(None).min_isr_changes


def changes_min_isr(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    return before.get(MIN_ISR) != after.get(MIN_ISR)


def eligible_leaders(image: ClusterImage, topic: Topic, state: PartitionState) -> tuple[int, ...]:
    """Who is not in sync, and has all that was committed nevertheless."""
    # While nobody is in sync nothing is committed, whatever the minimum.
    holds = not state.isr or state.min_isr_changes == min_isr_changes(image, topic)
    return state.elr if holds else ()


def allows_unclean_election(image: ClusterImage, topic: Topic) -> bool:
    return _topic_or_cluster_setting(image, topic, UNCLEAN) is True


def has_acknowledged_records(
    image: ClusterImage, topic: Topic, index: int, broker: BrokerRegistration
) -> bool:
    """Whether a broker that has come back still has what it had acknowledged when it was admitted."""
    live = broker.live
    assert live is not None, "only who is there can have come back"
    if has_lost_copy(broker, topic, index):
        return False
    was_clean = live.clean_epoch != ABSENT and live.clean_epoch == broker.admitted_epoch
    return was_clean or _flushed_before_ack(image, topic, broker)


def has_lost_copy(broker: BrokerRegistration, topic: Topic, index: int) -> bool:
    """What it had of this partition is gone: with its disk, or this copy alone."""
    return has_lost_disk(broker) or (broker.live is not None and index in broker.live.lost.get(topic.id, ()))


def has_lost_disk(broker: BrokerRegistration) -> bool:
    """It has not the disk that it was admitted with. Who never was admitted has nothing to lose.

    A disk that says of itself that it stopped cleanly, in an epoch before the last, is a copy that was put
    back: whoever starts takes that mark away, so it is not there after a later epoch. Other copies are
    known by what they lack (`controller.brokers.is_stale_disk_copy`).
    """
    live = broker.live
    if live is None:
        return False
    is_another = live.directory_id != broker.directory_id or live.has_lost_all
    return is_another or ABSENT < live.clean_epoch < broker.admitted_epoch


def _flushed_before_ack(image: ClusterImage, topic: Topic, broker: BrokerRegistration) -> bool:
    own = image.overrides_of_broker(broker.id).overrides.get(BROKER_FLUSH)
    text = topic.overrides.get(FLUSH) or own or image.overrides_of_broker(None).overrides.get(BROKER_FLUSH)
    return broker.flushes_before_ack if text is None else text == FlushPolicy.BEFORE_ACK


def _topic_or_cluster_setting(image: ClusterImage, topic: Topic, name: str) -> SettingValue | None:
    text = topic.overrides.get(name)
    if text is None:
        text = image.overrides_of_broker(None).overrides.get(name)
    return None if text is None else TOPIC_SETTINGS[name].parse(text)
