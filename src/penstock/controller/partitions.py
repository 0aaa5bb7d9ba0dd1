"""State changes of one partition: drafts, the ELR, epochs and compares.

Strategy: a draft is the wanted state of a partition with its epochs unchanged. `with_isr` keeps the eligible
leaders correct when the ISR changes. `change_partition` makes a draft a decision: it increments the
epochs and adds the compares. So no other file that decides writes an epoch or an ELR.

Rule 1: the partition epoch grows by one with every change. The leader epoch grows with every change of the
        leader, also to no leader: records of one leader epoch were written by one leader only. The leader
        epoch also grows when a replica is removed. A follower that has not yet learned of its removal keeps
        fetching, and would count as in sync if it were made a replica again; with the new epoch it learns of
        both changes and starts with an empty copy. And the leader epoch grows when a replica finds its copy
        damaged: what it fetched for that copy must not count for the next copy.
Rule 2: a replica that leaves the ISR while the ISR is, or becomes, smaller than the minimum is an eligible
        leader. When the ISR reaches the minimum again, no replica outside it is eligible: the high watermark
        advances without them.
Rule 3: a decision compares the partition; the session of a newly elected leader; and, where eligible leaders
        are read or written, the two keys that hold the topic's settings, which determine the minimum.
Rule 4: an unclean election compares the settings too, and the sessions of all members of the ISR and the ELR.
        It commits only while the settings still allow it and none of those members has come back: a decision
        may reach the store late, after a client was told that unclean elections are off.
"""

from collections.abc import Iterable, Iterator

import msgspec

from penstock.controller.decision import Decision, compare_sessions
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import ABSENT, Compare, Put
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, PartitionState, Topic
from penstock.metadata.documents import encode_document
from penstock.metadata.durability import eligible_leaders, min_isr, min_isr_changes
from penstock.metadata.keys import ClusterKeys

TopicPartitionState = tuple[Topic, PartitionState]
"""A partition in the image. `replication.partition.Partition` is a replica on this broker."""


def every_partition(image: ClusterImage) -> Iterator[TopicPartitionState]:
    for topic in image.topics.values():
        for state in topic.partitions:
            yield topic, state


def existing_partition(image: ClusterImage, name: str, index: int) -> TopicPartitionState:
    state = image.partition(name, index)
    if state is None:
        detail = f"There is no partition {index} of topic {name!r}."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return image.topics[name], state


def with_isr(
    image: ClusterImage,
    topic: Topic,
    draft: PartitionState,
    isr: Iterable[int],
    *,
    ineligible: frozenset[int] = frozenset(),
) -> PartitionState:
    """The draft with another ISR. Nodes in `ineligible` have lost records, and do not become eligible
    leaders.
    """
    wanted = set(isr)
    in_sync = tuple(node for node in draft.replicas if node in wanted)
    # At the minimum or above, the high watermark moves without the replicas that left: none of them stays
    # eligible.
    if len(in_sync) >= max(1, min_isr(image, topic, draft)):
        return msgspec.structs.replace(draft, isr=in_sync, elr=(), last_known_elr=(), min_isr_changes=0)
    # Below the minimum, nothing is committed from now on, so members that leave now keep all committed
    # records.
    candidates = dict.fromkeys((*eligible_leaders(image, topic, draft), *draft.isr))
    out = [node for node in candidates if node not in wanted and node in draft.replicas]
    elr = tuple(node for node in out if node not in ineligible)
    known = dict.fromkeys((*draft.last_known_elr, *draft.elr, *out))
    last_known = tuple(
        node for node in known if node not in elr and node not in wanted and node in draft.replicas
    )
    return msgspec.structs.replace(
        draft,
        isr=in_sync,
        elr=elr,
        last_known_elr=last_known,
        min_isr_changes=min_isr_changes(image, topic) if elr else 0,
    )


def change_partition(
    image: ClusterImage,
    topic: Topic,
    before: PartitionState,
    draft: PartitionState,
    *extra_compares: Compare,
    bumps_leader_epoch: bool = False,
) -> Decision:
    """The decision that changes `before` to the draft, if every revision it depends on still holds."""
    assert draft != before or bumps_leader_epoch, "a decision changes the state or the leader epoch"
    has_new_leader = draft.leader != before.leader
    # Without a new epoch, fetches from a removed or damaged copy could still put the replica into the ISR.
    has_new_epoch = bumps_leader_epoch or has_new_leader or not set(before.replicas).issubset(draft.replicas)
    elected = (draft.leader,) if has_new_leader and draft.leader != NO_NODE else ()
    keys = ClusterKeys(image.cluster_id)
    key = keys.partition(topic.id, before.index)
    compares = [*extra_compares, Compare(key, before.revision), *compare_sessions(image, elected)]
    have_records = (*before.isr, *eligible_leaders(image, topic, before))
    is_unclean = any(node not in have_records for node in elected)
    if is_unclean:
        compares += _compare_presence(image, have_records)
    # The ELR is valid only under the minimum that it was computed with.
    if is_unclean or before.elr or draft.elr:
        compares += compare_settings(image, topic)
    value = msgspec.structs.replace(
        draft,
        leader_epoch=before.leader_epoch + has_new_epoch,
        partition_epoch=before.partition_epoch + 1,
    )
    return Decision(tuple(dict.fromkeys(compares)), (Put(key, encode_document(value)),))


def compare_settings(image: ClusterImage, topic: Topic) -> tuple[Compare, Compare]:
    """Compares that the topic's own settings and the cluster-wide defaults are those of the image."""
    keys = ClusterKeys(image.cluster_id)
    return (
        Compare(keys.topic(topic.name), topic.revision),
        Compare(keys.broker_config(None), image.overrides_of_broker(None).revision),
    )


def _compare_presence(image: ClusterImage, broker_ids: Iterable[int]) -> tuple[Compare, ...]:
    """Compares that each of these brokers still has the session of the image, or still has none."""
    keys, sessions = ClusterKeys(image.cluster_id), image.sessions
    return tuple(
        Compare(keys.live(node), sessions[node].epoch if node in sessions else ABSENT) for node in broker_ids
    )
