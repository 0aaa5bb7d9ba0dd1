"""Decisions about topics. Their settings: `configs.py`.

Each function reads an image and returns a Decision: the revisions that it depends on, and the changes to make
if they still hold. Nothing is written here. A rejection is an ApiError with Kafka's code and a sentence for
the client's user. After a Conflict the caller waits for a newer image and decides again.

Rule 1: new partitions are prepared, and count from the moment their topic's key includes them. That key is
        one change, however many partitions there are.
Rule 2: creating, growing, configuring and deleting a topic all compare the revision of the topic's own key,
        and all but the deletion rewrite it: of two concurrent decisions, one is decided again. So a growth
        never leaves partitions behind without a topic.
Rule 3: what spans topics (the limit on partitions, names that collide in metrics) relies on a current image:
        one writer at a time decides, commits and applies. In a cluster that writer is the controller, whose
        term is compared.
Rule 4: new replicas may be on any registered broker, as in Kafka (`placement.py` lists which are preferred).
        Replicas on brokers that are admitted and not being drained are in sync from the beginning, and every
        partition has at least one of them. Admitted brokers are compared by their sessions and the others by
        their registrations, so that no replica goes to a broker that was unregistered meanwhile.
Rule 5: every change of min.insync.replicas is counted. A new count makes all eligible leaders recorded under
        the old one void (`metadata/durability.py`).

Not here: duplicates within a request, validate_only and the validation of settings (the handlers).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.controller.decision import Decision, compare_sessions, compare_term
from penstock.controller.placement import (
    Replicas,
    attainable_replication_factor,
    fallback_brokers,
    place_replicas,
    placement_candidates,
    validate_replicas,
)
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import ABSENT, Compare, Delete, DeleteAll, Put
from penstock.limits import (
    PARTITIONS_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    TOPIC_NAME_CHARACTERS_MAX,
)
from penstock.metadata.cluster_image import ClusterImage, Topic, metric_name
from penstock.metadata.documents import (
    PartitionValue,
    TopicValue,
    encode_document,
)
from penstock.metadata.durability import changes_min_isr
from penstock.metadata.keys import ClusterKeys, acceptable_topic_id, topic_id_text
from penstock.types import TopicId

BROKER_DEFAULT = -1
"""A count that the client leaves to the broker."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class TopicDefaults(NamedTuple):
    """The counts of a topic whose client sends -1."""

    partitions: int
    replication_factor: int
    """BROKER_DEFAULT: three, or as many as there are registered brokers."""


class ReplicaAssignment(NamedTuple):
    """Replicas of one partition, chosen by the client."""

    partition: int
    replicas: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Sequence[ReplicaAssignment] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False


class NewTopicFacts(NamedTuple):
    """Properties of a new topic that are not in the request."""

    topic_id: TopicId
    created_ms: int


def require_legal_name(name: str) -> None:
    """ApiError INVALID_TOPIC_EXCEPTION unless this is a legal topic name."""
    if not name:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "A topic name must not be empty.")
    if name in (".", ".."):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "A topic name must not be '.' or '..'.")
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        detail = f"A topic name has at most {TOPIC_NAME_CHARACTERS_MAX} characters; this has {len(name)}."
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
    if _TOPIC_NAME.fullmatch(name) is None:
        detail = f"Topic name {name!r} may hold only ASCII letters and digits, '.', '_' and '-'."
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)


def create_topic(
    image: ClusterImage, request: TopicRequest, new: NewTopicFacts, *, defaults: TopicDefaults
) -> Decision:
    """Create a topic. The caller has validated the overrides of the request."""
    assert acceptable_topic_id(new.topic_id), "the caller draws again until the id is acceptable"
    assert new.topic_id not in image.topics_by_id
    require_new_name(image, request.name)
    replicas = _replicas_for(image, request, new.topic_id, defaults)
    keys = ClusterKeys(image.cluster_id)
    value = TopicValue(
        topic_id=topic_id_text(new.topic_id),
        partitions=len(replicas),
        internal=request.internal,
        created_ms=new.created_ms,
        overrides=dict(request.overrides),
    )
    topic_key = keys.topic(request.name)
    return Decision(
        (*compare_term(image), Compare(topic_key, ABSENT), *_compare_brokers(image, replicas)),
        (Put(topic_key, encode_document(value)),),
        _new_partitions(image, new.topic_id, 0, replicas),
    )


def grow_topic(
    image: ClusterImage, name: str, count: int, assignments: Sequence[Replicas] | None = None
) -> Decision:
    """CreatePartitions: `count` is the number of partitions afterwards.

    `assignments` are the replicas of the added partitions, or None to have them placed.
    """
    topic = existing_topic(image, name)
    before = len(topic.partitions)
    if count <= before:
        noun = "partition" if before == 1 else "partitions"
        detail = f"Topic {name} has {before} {noun}; {count} would not be an increase."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, detail)
    _require_within_limits(image, before=before, after=count)
    replicas = _replicas_for_growth(image, topic, count - before, assignments)
    keys = ClusterKeys(image.cluster_id)
    return Decision(
        (*compare_term(image), compare_topic(keys, topic), *_compare_brokers(image, replicas)),
        (put_topic(keys, topic, count=count),),
        _new_partitions(image, topic.id, before, replicas),
    )


def delete_topic(
    image: ClusterImage,
    *,
    name: str | None = None,
    topic_id: TopicId | None = None,
    deletion_enabled: bool = True,
) -> Decision:
    """Delete a topic given by name or by id; the other argument is None."""
    if (name is None) == (topic_id is None):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Give either the name or the id of the topic to delete.")
    if not deletion_enabled:
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false on this broker.")
    if topic_id is None:
        topic = existing_topic(image, name or "")
    elif topic_id in image.topics_by_id:
        topic = image.topics_by_id[topic_id]
    else:
        raise unknown_topic_id(topic_id)
    keys = ClusterKeys(image.cluster_id)
    # The topic's key and its partitions go in one transaction, so no partition outlives its topic.
    changes = (Delete(keys.topic(topic.name)), DeleteAll(keys.partitions(topic.id)))
    return Decision((*compare_term(image), compare_topic(keys, topic)), changes)


def require_new_name(image: ClusterImage, name: str) -> None:
    """ApiError unless a topic of this name can be created."""
    require_legal_name(name)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name} exists already.")
    other = image.topics_by_metric_name.get(metric_name(name))
    if other is not None:
        detail = f"Topic {name} collides with topic {other}: they differ only in '.' and '_'."
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)


def _replicas_for(
    image: ClusterImage, request: TopicRequest, topic_id: TopicId, defaults: TopicDefaults
) -> Sequence[Replicas]:
    if request.assignments:
        _require_no_counts(request)
        _require_within_limits(image, before=0, after=len(request.assignments))
        replicas = _replicas_in_order(request.assignments)
        validate_replicas(image, replicas, size=len(replicas[0]))
        return replicas
    factor = request.replication_factor
    factor = defaults.replication_factor if factor == BROKER_DEFAULT else factor
    factor = attainable_replication_factor(image) if factor == BROKER_DEFAULT else factor
    _require_enough_brokers(image, factor)
    partitions = defaults.partitions if request.partitions == BROKER_DEFAULT else request.partitions
    if partitions < 1:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"A topic cannot have {partitions} partitions.")
    _require_within_limits(image, before=0, after=partitions)
    # Random, but fixed for the topic: small topics begin at different brokers.
    start = int.from_bytes(topic_id[-4:], "big")
    return place_replicas(
        placement_candidates(image),
        count=partitions,
        replication_factor=factor,
        start=start,
        fallback=fallback_brokers(image),
    )


def _replicas_for_growth(
    image: ClusterImage, topic: Topic, added: int, assignments: Sequence[Replicas] | None
) -> Sequence[Replicas]:
    factor = len(topic.partitions[0].target)
    if assignments is not None:
        if len(assignments) != added:
            detail = (
                f"The partitions added would be {added}, and those assigned to brokers {len(assignments)}."
            )
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        validate_replicas(image, assignments, size=factor)
        return assignments
    _require_enough_brokers(image, factor)
    # The target, not the replicas under reassignment: new partitions must fit the topic as it will be.
    existing = [state.target for state in topic.partitions]
    start = int.from_bytes(topic.id[-4:], "big")
    return place_replicas(
        placement_candidates(image),
        count=added,
        replication_factor=factor,
        existing=existing,
        start=start,
        fallback=fallback_brokers(image),
    )


def _require_no_counts(request: TopicRequest) -> None:
    if request.partitions != BROKER_DEFAULT or request.replication_factor != BROKER_DEFAULT:
        detail = "Partitions are assigned to brokers by hand: both counts must be left at -1."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)


def _replicas_in_order(assignments: Sequence[ReplicaAssignment]) -> list[Replicas]:
    ordered = sorted(assignments, key=lambda assignment: assignment.partition)
    if [assignment.partition for assignment in ordered] != list(range(len(ordered))):
        detail = f"The assigned partitions must be 0 to {len(ordered) - 1}, each once."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
    return [assignment.replicas for assignment in ordered]


def _require_enough_brokers(image: ClusterImage, factor: int) -> None:
    if factor < 1:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, f"A partition cannot have {factor} replicas.")
    brokers = len(image.brokers)
    if factor > brokers:
        registered = "1 is" if brokers == 1 else f"{brokers} are"
        detail = f"Replication factor {factor} needs {factor} brokers; {registered} registered."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
    if not placement_candidates(image):
        detail = "Every broker is gone, not admitted yet, or being drained: none can lead a new partition."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)


def _require_within_limits(image: ClusterImage, *, before: int, after: int) -> None:
    if after > PARTITIONS_PER_TOPIC_MAX:
        detail = f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions; {after} were asked for."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, detail)
    total = image.partition_count - before + after
    if total > PARTITIONS_MAX:
        detail = f"The cluster has at most {PARTITIONS_MAX} partitions; this would make {total}."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, detail)


def existing_topic(image: ClusterImage, name: str) -> Topic:
    """The topic. ApiError UNKNOWN_TOPIC_OR_PARTITION: it does not exist."""
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.")
    return topic


def unknown_topic_id(topic_id: TopicId) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id_text(topic_id)}.")


def compare_topic(keys: ClusterKeys, topic: Topic) -> Compare:
    return Compare(keys.topic(topic.name), topic.revision)


def put_topic(
    keys: ClusterKeys, topic: Topic, *, count: int | None = None, overrides: Mapping[str, str] | None = None
) -> Put:
    """The put of a topic's key with another count of partitions, or with other overrides."""
    overrides = topic.overrides if overrides is None else overrides
    value = TopicValue(
        topic_id=topic_id_text(topic.id),
        partitions=len(topic.partitions) if count is None else count,
        internal=topic.internal,
        created_ms=topic.created_ms,
        overrides=dict(overrides),
        min_isr_changes=topic.min_isr_changes + changes_min_isr(topic.overrides, overrides),
    )
    return Put(keys.topic(topic.name), encode_document(value))


def _compare_brokers(image: ClusterImage, replicas: Iterable[Replicas]) -> tuple[Compare, ...]:
    """Compares that admitted brokers are the same processes, and that the others are registered."""
    used = {node for nodes in replicas for node in nodes}
    keys = ClusterKeys(image.cluster_id)
    fenced = (image.brokers[node] for node in sorted(used - image.admitted))
    return (
        *compare_sessions(image, sorted(used & image.admitted)),
        *(Compare(keys.broker(broker.id), broker.revision) for broker in fenced),
    )


def _new_partitions(
    image: ClusterImage, topic_id: TopicId, first: int, replicas: Iterable[Replicas]
) -> tuple[Put, ...]:
    """Puts of the new partitions. Every replica that can be in sync is in the ISR: the partition is empty."""
    keys = ClusterKeys(image.cluster_id)
    # Most partitions have one of a few replica lists, so each list is encoded once.
    values: dict[Replicas, bytes] = {}
    made = []
    for index, nodes in enumerate(replicas, first):
        if nodes not in values:
            values[nodes] = encode_document(_new_partition(image, nodes))
        made.append(Put(keys.partition(topic_id, index), values[nodes]))
    return tuple(made)


def _new_partition(image: ClusterImage, replicas: Replicas) -> PartitionValue:
    # A draining broker would be replaced as leader at once, and a leader adds no draining broker to the ISR.
    isr = tuple(node for node in replicas if node in image.admitted and not image.brokers[node].is_draining)
    if not isr:
        detail = (
            f"A partition is assigned to brokers {list(replicas)}, and each of them is gone, not admitted "
            "yet, or being drained."
        )
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
    return PartitionValue(replicas, leader=isr[0], leader_epoch=0, isr=isr, partition_epoch=0)
