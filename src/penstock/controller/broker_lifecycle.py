"""The life cycle of a broker in the cluster: registered, admitted, drained, fenced, unregistered.

A broker registers itself in one transaction. The transaction writes two keys: a permanent one with the
broker's endpoints, and a session key, which ends with the broker's session and whose revision is the broker
epoch. The controller then admits the broker by writing that epoch into the permanent key. Until then the
broker leads no partition and is in no ISR. Fencing deletes the session key; `elections.repaired` decides what
follows from that.

The controller admits a broker only after every partition state that relied on the broker's old records has
been corrected. The broker's log may lack records that it once acknowledged: because the disk was replaced, or
is an older copy; because the copy of a partition is missing or damaged; or because the broker stopped
uncleanly without flushing first. The registration keeps the disk, the epoch and the process of the last
admission, so the difference is detected however often the broker started in between.

Every process draws a start id and writes it to its disk before it registers. A disk that does not hold the
start id of the process that was admitted last is a copy from before that admission: records written since
then are not on it.

Rule 1: before a broker is admitted, it leaves every ISR that has another admitted member.
Rule 2: a broker that has lost records leaves the ISR and the ELR of every partition in which either of the
        two has another member left that has not itself come back without its records.
Rule 3: if the broker's disk is another one, or its copy of the partition is gone, it leaves the ISR and the
        ELR even where no other broker is left. Then no broker has the committed records, and the partition
        has no leader until an operator, or the topic's settings, allow the loss.
Rule 4: a broker that is not admitted is never added to an ISR or an ELR. So what was corrected for an epoch
        stays correct until that epoch is admitted, and the admission compares only that the session still
        exists.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.controller.decision import NOTHING_TO_DO, Decision, compare_term
from penstock.controller.elections import repaired
from penstock.controller.partitions import TopicPartitionState, change_partition, every_partition, with_isr
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import ABSENT, Compare, Delete, Put, SessionId
from penstock.limits import BROKERS_MAX
from penstock.metadata import levels
from penstock.metadata.cluster_image import (
    BrokerRegistration,
    ClusterImage,
    PartitionState,
    Topic,
    without,
)
from penstock.metadata.documents import (
    BrokerSessionValue,
    BrokerValue,
    ControllerValue,
    Endpoint,
    encode_document,
)
from penstock.metadata.durability import eligible_leaders, has_acknowledged_records, has_lost_copy
from penstock.metadata.keys import ClusterKeys


class RegistrationRequest(BrokerSessionValue, frozen=True, kw_only=True):
    """What a process reports about itself when it joins. `register` sets `start_id`."""

    broker_id: int
    start_ids: tuple[str, ...] = ()
    """Start ids of the processes that this disk has recorded, at least since the last admission; the last id
    is this process's.
    """
    rack: str | None = None
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, int] = {}


def register(
    image: ClusterImage, request: RegistrationRequest, session: SessionId, *, is_first: bool = False
) -> Decision:
    """Join the cluster.

    Compares the registration that is replaced, and that no other session holds this broker id (or, if
    `is_first` allows it, that the old session is still the one in the image).

    `is_first`: the process has just started and holds the lock on its data directory. An earlier process that
    held the same named lock is dead, so its session is replaced without waiting for it to expire. An earlier
    process with another lock may be alive: one of the two data directories is a copy.
    """
    assert request.incarnation
    assert request.directory_id
    keys = ClusterKeys(image.cluster_id)
    live = image.sessions.get(request.broker_id)
    if live is not None:
        if live.incarnation == request.incarnation:
            # A retry of a registration that was committed, although its reply was lost.
            return NOTHING_TO_DO
        if not is_first or not request.lock or live.lock != request.lock:
            detail = (
                f"Broker {request.broker_id} has a session already: "
                "another process has this id, or had it a moment ago."
            )
            raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, detail)
    _require_level(image, request)
    # A broker that is registered already may always return; only new ids count against the limit.
    known = image.brokers.get(request.broker_id)
    if known is None and len(image.brokers) >= BROKERS_MAX:
        detail = (
            f"The cluster has {len(image.brokers)} brokers, and takes {BROKERS_MAX}: "
            "unregister those that are gone for good."
        )
        raise ApiError(ErrorCode.POLICY_VIOLATION, detail)
    # The fields that are kept describe the last admission. Comparing them with the session shows whether the
    # broker still has that disk.
    value = replace(
        known or BrokerValue(rack=None, endpoints={}, is_new=True),
        rack=request.rack,
        endpoints=request.endpoints,
        incarnation=request.incarnation,
        is_draining=False,
        features=request.features,
    )
    presence = replace(
        request,
        start_id=request.start_ids[-1] if request.start_ids else "",
        has_lost_all=request.has_lost_all or is_stale_disk_copy(known, request.start_ids),
    )
    broker_key, live_key = keys.broker(request.broker_id), keys.live(request.broker_id)
    return Decision(
        (
            Compare(broker_key, known.revision if known else ABSENT),
            Compare(live_key, live.epoch if live is not None else ABSENT),
            # A broker that does not support the next level either registers first, and blocks the upgrade, or
            # is rejected afterwards.
            Compare(keys.features, image.features.revision),
        ),
        (Put(broker_key, encode_document(value)), Put(live_key, encode_document(presence), session)),
    )


def register_standalone(
    image: ClusterImage, broker_id: int, *, rack: str | None, endpoints: Mapping[str, Endpoint]
) -> Decision:
    """Register a broker that is alone, or update its endpoints. Members of a cluster: `register`."""
    key = ClusterKeys(image.cluster_id).broker(broker_id)
    known = image.brokers.get(broker_id)
    value = encode_document(BrokerValue(rack, endpoints, features={levels.FEATURE: levels.NEWEST}))
    if known is not None and encode_document(known) == value:
        return NOTHING_TO_DO
    return Decision((Compare(key, known.revision if known else ABSENT),), (Put(key, value),))


def bump_leader_epochs(image: ClusterImage) -> Decision:
    """Begin a new leader epoch of every partition of a broker that is alone.

    After an unclean stop, records that were once below the high watermark may be lost. A client that
    remembers the epoch in which it read them detects the loss with OffsetForLeaderEpoch.
    """
    assert image.is_embedded, "in a cluster the controller does, one by one"
    keys = ClusterKeys(image.cluster_id)
    compares, changes = [], []
    for topic in image.topics.values():
        for state in topic.partitions:
            key = keys.partition(topic.id, state.index)
            compares.append(Compare(key, state.revision))
            bumped = replace(
                state, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1
            )
            changes.append(Put(key, encode_document(bumped)))
    return Decision(tuple(compares), tuple(changes))


def is_stale_disk_copy(known: BrokerRegistration | None, start_ids: tuple[str, ...]) -> bool:
    """Whether the disk with these start ids was copied before the last admission of its broker."""
    return known is not None and bool(known.start_id) and known.start_id not in start_ids


def _require_level(image: ClusterImage, request: RegistrationRequest) -> None:
    known = request.features.get(levels.FEATURE, levels.OLDEST)
    if known < image.level:
        detail = f"The cluster is at level {image.level}, and this broker knows {known} at most: upgrade it."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, detail)


def become_controller(image: ClusterImage, broker_id: int, session: SessionId) -> Decision:
    """Become the controller. Compares that there is no controller, and the broker's own session."""
    if image.controller is not None:
        detail = f"Broker {image.controller.broker_id} is the controller."
        raise ApiError(ErrorCode.NOT_CONTROLLER, detail)
    broker = _registered(image, broker_id)
    keys = ClusterKeys(image.cluster_id)
    return Decision(
        (Compare(keys.controller, ABSENT), Compare(keys.live(broker_id), _epoch(broker))),
        (Put(keys.controller, encode_document(ControllerValue(broker_id)), session),),
    )


def awaits_admission(broker: BrokerRegistration) -> bool:
    """Whether the broker's session belongs to the process that wrote the registration, and is not yet
    admitted.
    """
    live = broker.live
    return live is not None and not broker.is_admitted and live.incarnation == broker.incarnation


def prepare_admission(
    image: ClusterImage, broker: BrokerRegistration, partition: TopicPartitionState
) -> Decision | None:
    """Correct a partition whose state relies on records that a returning broker may lack; None: it is
    correct.
    """
    topic, state = partition
    if broker.id not in (state.leader, *state.isr, *state.elr, *state.last_known_elr):
        return None
    draft = _prepared_for_admission(image, broker, topic, repaired(image, topic, state))
    if draft == state:
        return None
    # The session is compared: another process of this broker may have the records again that this one lacks.
    return change_partition(image, topic, state, draft, *compare_term(image), _compare_session(image, broker))


def admit(image: ClusterImage, broker: BrokerRegistration) -> Decision:
    """Allow the broker to lead and to be in sync. Compares its session, its registration and the term."""
    assert awaits_admission(broker)
    assert broker.live is not None
    for partition in every_partition(image):
        assert prepare_admission(image, broker, partition) is None, "first all is put right"
    admitted = replace(
        broker,
        admitted_epoch=broker.live.epoch,
        directory_id=broker.live.directory_id,
        flushes_before_ack=broker.live.flushes_before_ack,
        start_id=broker.live.start_id,
    )
    return _put_registration(image, admitted, *compare_term(image), _compare_session(image, broker))


def fence(image: ClusterImage, broker_id: int, epoch: int) -> Decision:
    """End the session of a broker that was found dead. Compares that the broker epoch is still `epoch`.

    If the broker's process is alive after all, it finds its session key deleted and registers again.
    """
    broker = _registered(image, broker_id)
    if _epoch(broker) != epoch:
        detail = f"Broker {broker_id} is in epoch {broker.broker_epoch}, not {epoch}."
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, detail)
    presence = _compare_session(image, broker)
    return Decision((*compare_term(image), presence), (Delete(presence.key),))


def depose_controller(image: ClusterImage, broker_id: int, epoch: int) -> Decision:
    """End the session and the term of a controller that was found dead. Any broker may do this.

    Compares that the broker epoch and the term are unchanged. The effect is what the expiry of the session
    would have, somewhat earlier.
    """
    fenced = fence(image, broker_id, epoch)
    if image.controller is None or image.controller.broker_id != broker_id:
        raise ApiError(ErrorCode.NOT_CONTROLLER, f"Broker {broker_id} is not the controller.")
    return fenced._replace(changes=(*fenced.changes, Delete(ClusterKeys(image.cluster_id).controller)))


def drain(image: ClusterImage, broker_id: int, *, is_draining: bool = True) -> Decision:
    """Start or end draining: a draining broker gets no more leaders and replicas, and its leaders move.

    Compares the registration and the session. A new process of the broker starts undrained.
    """
    broker = _registered(image, broker_id)
    if broker.is_draining == is_draining:
        return NOTHING_TO_DO
    if not broker.is_alive:
        detail = (
            f"Broker {broker_id} has no session, so it leads nothing that another broker could take over."
        )
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    drained = replace(broker, is_draining=is_draining)
    # The session is compared: a drain decided for one process must not apply to its successor.
    return _put_registration(image, drained, _compare_session(image, broker))


def drain_by_operator(image: ClusterImage, broker_id: int) -> Decision:
    """Drain on an operator's request. Rejected if no other broker would be left to lead and to hold new
    replicas.
    """
    others = [node for node in image.admitted if node != broker_id and not image.brokers[node].is_draining]
    if not others and not _registered(image, broker_id).is_draining:
        detail = f"Broker {broker_id} cannot be drained: no other broker could take over."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    return drain(image, broker_id)


def finish_joining(image: ClusterImage, broker: BrokerRegistration) -> Decision:
    """End the join: the broker has its share of partitions. Moves made by operators from now on are not
    undone.
    """
    return _put_registration(image, replace(broker, is_new=False), *compare_term(image))


def adopt(image: ClusterImage, broker_id: int, *, incarnation: str, directory_id: str) -> Decision:
    """Make a stopped embedded broker a member of a future cluster, with the disk that it has.

    Compares the registration. The broker then registers like any other, and is recognized by its directory
    id.
    """
    broker = _registered(image, broker_id)
    if not broker.is_embedded:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is in a cluster already.")
    assert incarnation
    assert directory_id
    adopted = replace(broker, incarnation=incarnation, directory_id=directory_id)
    return _put_registration(image, adopted)


def is_drained(image: ClusterImage, broker_id: int) -> bool:
    """Whether the broker leads no partition that another admitted, undrained in-sync replica could lead."""
    others = frozenset(
        node for node in image.admitted if node != broker_id and not image.brokers[node].is_draining
    )
    return not any(
        state.leader == broker_id and not others.isdisjoint(state.isr) for _, state in every_partition(image)
    )


def unregister(image: ClusterImage, broker_id: int) -> Decision:
    """Remove a broker from the cluster. Compares its registration, that it has no session, and the term."""
    broker = _registered(image, broker_id)
    if broker.is_alive:
        detail = f"Broker {broker_id} is running. Stop it first."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    held = sum(broker_id in state.replicas for _, state in every_partition(image))
    if held:
        detail = f"Broker {broker_id} holds {held} replicas. Assign them to other brokers first."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    keys = ClusterKeys(image.cluster_id)
    registered = Compare(keys.broker(broker_id), broker.revision)
    changes = (Delete(registered.key), Delete(keys.broker_config(broker_id)))
    return Decision((*compare_term(image), registered, _compare_session(image, broker)), changes)


def _prepared_for_admission(
    image: ClusterImage, broker: BrokerRegistration, topic: Topic, draft: PartitionState
) -> PartitionState:
    """The corrected draft. If the ISR has an admitted member, `repaired` has removed this broker already."""
    if has_acknowledged_records(image, topic, draft.index, broker):
        return draft
    node, is_gone = broker.id, has_lost_copy(broker, topic, draft.index)
    # With no other broker left in ISR or ELR, a broker that lost only its unflushed tail stays: no better
    # copy exists.
    others = without((*draft.isr, *eligible_leaders(image, topic, draft)), (node,))
    if not others and not is_gone:
        return draft
    if node in draft.isr:
        draft = with_isr(image, topic, draft, without(draft.isr, (node,)))
    known = draft.last_known_elr
    # The broker may still be the best choice for an unclean election, unless its copy is gone.
    if node in draft.elr:
        known = (*without(known, (node,)), node)
    return replace(
        draft,
        elr=without(draft.elr, (node,)),
        last_known_elr=without(known, (node,)) if is_gone else known,
    )


def _registered(image: ClusterImage, broker_id: int) -> BrokerRegistration:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id}.")
    return broker


def _epoch(broker: BrokerRegistration) -> int:
    if broker.live is None:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker.id} has no session.")
    return broker.live.epoch


def _compare_session(image: ClusterImage, broker: BrokerRegistration) -> Compare:
    return Compare(ClusterKeys(image.cluster_id).live(broker.id), broker.broker_epoch)


def _put_registration(image: ClusterImage, broker: BrokerRegistration, *extra_compares: Compare) -> Decision:
    key = ClusterKeys(image.cluster_id).broker(broker.id)
    return Decision((*extra_compares, Compare(key, broker.revision)), (Put(key, encode_document(broker)),))
