"""Differences between two images, for the parts of the broker that follow the cluster's metadata.

Strategy: an unchanged value is the same object in both images, so most of an image is skipped by identity
checks: first of the topics, then of the partitions of a changed topic.
"""

from operator import attrgetter
from typing import NamedTuple

import msgspec

from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic


class GrownTopic(msgspec.Struct, frozen=True):
    topic: Topic
    partitions_before: int


class TopicChanges(msgspec.Struct, frozen=True):
    """Changes of topics between two images. Each list is ordered by name.

    A topic that was deleted and created again under the same name is in both `created` and `deleted`.
    """

    created: tuple[Topic, ...]
    deleted: tuple[Topic, ...]
    grown: tuple[GrownTopic, ...]
    reconfigured: tuple[Topic, ...]


def changed_topics(before: ClusterImage, after: ClusterImage) -> TopicChanges:
    created, deleted, grown, reconfigured = [], [], [], []
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is topic:
            continue
        if old is None or old.id != topic.id:
            created.append(topic)
            continue
        if len(topic.partitions) > len(old.partitions):
            grown.append(GrownTopic(topic, len(old.partitions)))
        if topic.overrides != old.overrides:
            reconfigured.append(topic)
    # By id, not by name: a topic recreated under its name counts as deleted too.
    if before.topics is not after.topics:
        deleted = [topic for id_, topic in before.topics_by_id.items() if id_ not in after.topics_by_id]
    by_name = attrgetter("name")
    return TopicChanges(
        created=tuple(sorted(created, key=by_name)),
        deleted=tuple(sorted(deleted, key=by_name)),
        grown=tuple(sorted(grown, key=lambda entry: entry.topic.name)),
        reconfigured=tuple(sorted(reconfigured, key=by_name)),
    )


class PartitionChange(NamedTuple):
    topic: Topic
    """The topic in the new image; for a deleted partition, in the old image."""
    before: PartitionState | None
    """None: the partition is new."""
    after: PartitionState | None
    """None: the partition was deleted."""


def changed_partitions(before: ClusterImage, after: ClusterImage) -> list[PartitionChange]:
    """Every partition that changed, in the order of topics and then of indexes."""
    if before.topics is after.topics:
        return []
    changes: list[PartitionChange] = []
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is topic:
            continue
        known: tuple[PartitionState, ...] = ()
        if old is not None and old.id == topic.id:
            known = old.partitions
        if topic.partitions is known:
            continue
        changes += [
            PartitionChange(topic, was, now)
            for was, now in zip(known, topic.partitions, strict=False)
            if was is not now
        ]
        changes += [PartitionChange(topic, None, now) for now in topic.partitions[len(known) :]]
    for topic_id, topic in before.topics_by_id.items():
        if topic_id not in after.topics_by_id:
            changes += [PartitionChange(topic, was, None) for was in topic.partitions]
    return changes
