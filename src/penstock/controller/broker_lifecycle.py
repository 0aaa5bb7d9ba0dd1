"""The life of a broker in the cluster: registered, admitted, drained, fenced, unregistered.

A broker registers itself: one transaction says where it listens (a lasting key) and that it is there (a
key that ends with its session, and whose revision is the broker's epoch). The controller admits it: it
writes that epoch into the lasting key. Until then the broker leads nothing and is in sync nowhere.
Fencing deletes the key of the session; what follows from it is `elections.repaired`.

Admission comes after everything that rested on what the broker had is put right. Its log may lack
records that it once acknowledged: because the disk is another one, or an older copy of it; because the
copy of a partition is missing there, or damaged; or because it stopped uncleanly without flushing first.
The registration keeps the disk, the epoch and the process of the last admission, so that the difference
is seen however often the broker started in between.

Every process draws an id, which is on its disk before it registers. A disk that does not know the process
which was admitted last is a copy from before that: whatever was written since is not on it.

Rule 1: before it is admitted, a broker leaves every ISR of which another admitted broker is a member.
Rule 2: if it has lost records, it leaves every ISR and every ELR, wherever anybody else is left in
        either who has not come back without them.
Rule 3: if its disk is another one, or its copy of a partition is gone, it leaves them also where nobody
        else is left. Then nobody has what was committed, and nobody leads until a person or the topic's
        settings say it may be lost.
Rule 4: nobody who is not admitted gets into an ISR or an ELR. So what was put right for an epoch stays
        right until that epoch is admitted, and the admission compares only that it is still there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.controller.decision import NOTHING_TO_DO, Decision, compare_term
from penstock.controller.elections import repaired
from penstock.controller.partitions import Partition, change_partition, every_partition, with_isr
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import ABSENT, Compare, Delete, Put, SessionId
from penstock.limits import BROKERS_MAX
from penstock.metadata import levels
from penstock.metadata.cluster_image import (
    BrokerRegistration,
    ClusterImage,
    Endpoint,
    PartitionState,
    Topic,
    without,
)
from penstock.metadata.documents import (
    BrokerSessionValue,
    BrokerValue,
    ControllerValue,
    EndpointValue,
    encode,
)
from penstock.metadata.durability import eligible_leaders, has_acknowledged_records, has_lost_copy
from penstock.metadata.keys import ClusterKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationRequest:
    """What a process says of itself when it joins."""

    broker_id: int
    incarnation: str
    """Drawn anew for every session."""
    directory_id: str
    """Drawn when the data directory was made."""
    clean_epoch: int = ABSENT
    """The broker epoch that was stopped cleanly on this data directory, and was admitted; or ABSENT."""
    flushes_before_ack: bool = True
    """What it does for topics that leave it to the broker."""
    start_ids: tuple[str, ...] = ()
    """Of the processes that this disk knows of, at least since the last admission; the last is our own."""
    lock: str = ""
    """Names our lock on the data directory, among all locks there ever were. Empty: it has no name."""
    lost: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By topic id: the partitions of which this disk had a copy, and has none now."""
    has_lost_all: bool = False
    """Those are too many to name."""
    rack: str | None = None
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, int] = field(default_factory=dict)


def register(
    image: ClusterImage, request: RegistrationRequest, session: SessionId, *, is_first: bool = False
) -> Decision:
    """Join the cluster. Compares that nobody is there under this id, and the registration it replaces.

    `is_first`: of a process that has just started and has its data directory for itself. Whoever was there
    with the lock that it has now is dead, and is not waited for. Whoever had another lock may live: the
    directory of one of the two is a copy.
    """
    assert request.incarnation
    assert request.directory_id
    keys = ClusterKeys(image.cluster_id)
    live = image.sessions.get(request.broker_id)
    if live is not None:
        if live.incarnation == request.incarnation:
            return NOTHING_TO_DO
        if not is_first or not request.lock or live.lock != request.lock:
            detail = (
                f"Broker {request.broker_id} is there already: "
                "another process has this id, or had it just now."
            )
            raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, detail)
    _require_level(image, request)
    known = image.brokers.get(request.broker_id)
    if known is None and len(image.brokers) >= BROKERS_MAX:
        detail = (
            f"The cluster has {len(image.brokers)} brokers, and takes {BROKERS_MAX}: "
            "unregister those that are gone for good."
        )
        raise ApiError(ErrorCode.POLICY_VIOLATION, detail)
    value = BrokerValue(
        rack=request.rack,
        endpoints={name: EndpointValue(at.host, at.port) for name, at in request.endpoints.items()},
        incarnation=request.incarnation,
        features=dict(request.features),
        # These say what the last admission knew: whether that still holds is seen by comparing.
        admitted_epoch=known.admitted_epoch if known else ABSENT,
        directory_id=known.directory_id if known else "",
        flushes_before_ack=known.flushes_before_ack if known else True,
        is_new=known.is_new if known else True,
        start_id=known.start_id if known else "",
    )
    presence = BrokerSessionValue(
        request.incarnation,
        request.directory_id,
        request.clean_epoch,
        request.flushes_before_ack,
        start_id=request.start_ids[-1] if request.start_ids else "",
        lock=request.lock,
        has_lost_all=request.has_lost_all or is_stale_disk_copy(known, request.start_ids),
        lost=dict(request.lost),
    )
    broker_key, live_key = keys.broker(request.broker_id), keys.live(request.broker_id)
    return Decision(
        (
            Compare(broker_key, known.revision if known else ABSENT),
            Compare(live_key, live.epoch if live is not None else ABSENT),
            # Who does not know the next level is counted before it is reached, or refused after.
            Compare(keys.features, image.features.revision),
        ),
        (Put(broker_key, encode(value)), Put(live_key, encode(presence), session)),
    )


def is_stale_disk_copy(known: BrokerRegistration | None, start_ids: tuple[str, ...]) -> bool:
    """Whether a disk that knows of these processes was left before the last admission of its broker."""
    return known is not None and bool(known.start_id) and known.start_id not in start_ids


def _require_level(image: ClusterImage, request: RegistrationRequest) -> None:
    known = request.features.get(levels.FEATURE, levels.OLDEST)
    if known < image.level:
        detail = f"The cluster is at level {image.level}, and this broker knows {known} at most: upgrade it."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, detail)


def become_controller(image: ClusterImage, broker_id: int, session: SessionId) -> Decision:
    """Become the controller. Compares that there is none, and the broker's own presence."""
    if image.controller is not None:
        detail = f"Broker {image.controller.broker_id} is the controller."
        raise ApiError(ErrorCode.NOT_CONTROLLER, detail)
    broker = _registered(image, broker_id)
    keys = ClusterKeys(image.cluster_id)
    return Decision(
        (Compare(keys.controller, ABSENT), Compare(keys.live(broker_id), _epoch(broker))),
        (Put(keys.controller, encode(ControllerValue(broker_id)), session),),
    )


def resign_controller(image: ClusterImage, broker_id: int) -> Decision:
    """Stop being the controller, if it is this broker. Compares the term."""
    if image.controller is None or image.controller.broker_id != broker_id:
        return NOTHING_TO_DO
    key = ClusterKeys(image.cluster_id).controller
    return Decision((Compare(key, image.controller.term),), (Delete(key),))


def awaits_admission(broker: BrokerRegistration) -> bool:
    """Its session is that of the process which said where it listens, and is not admitted."""
    live = broker.live
    return live is not None and not broker.is_admitted and live.incarnation == broker.incarnation


def prepare_admission(
    image: ClusterImage, broker: BrokerRegistration, partition: Partition
) -> Decision | None:
    """Put right what rests on records that a returning broker may lack; None: this is right."""
    topic, state = partition
    if broker.id not in (state.leader, *state.isr, *state.elr, *state.last_known_elr):
        return None
    draft = _prepared_for_admission(image, broker, topic, repaired(image, topic, state))
    return None if draft == state else change_partition(image, topic, state, draft, *compare_term(image))


def admit(image: ClusterImage, broker: BrokerRegistration) -> Decision:
    """Let it lead and be in sync. Compares its presence, its registration and the term."""
    assert awaits_admission(broker)
    assert broker.live is not None
    for partition in every_partition(image):
        assert prepare_admission(image, broker, partition) is None, "first all is put right"
    admitted = msgspec.structs.replace(
        broker,
        admitted_epoch=broker.live.epoch,
        directory_id=broker.live.directory_id,
        flushes_before_ack=broker.live.flushes_before_ack,
        start_id=broker.live.start_id,
    )
    return _put_registration(image, admitted, *compare_term(image), _compare_session(image, broker))


def fence(image: ClusterImage, broker_id: int, epoch: int) -> Decision:
    """End the presence of a broker that is found to be gone. Compares that it is the same epoch.

    Its process, if it lives, finds its key deleted and registers anew.
    """
    broker = _registered(image, broker_id)
    if _epoch(broker) != epoch:
        detail = f"Broker {broker_id} is in epoch {broker.broker_epoch}, not {epoch}."
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, detail)
    presence = _compare_session(image, broker)
    return Decision((*compare_term(image), presence), (Delete(presence.key),))


def depose_controller(image: ClusterImage, broker_id: int, epoch: int) -> Decision:
    """End the presence and the term of a controller that is found to be gone. Anybody may.

    Compares that it is the same epoch and the same term. It is no more than what the end of its session
    would do, somewhat earlier.
    """
    fenced = fence(image, broker_id, epoch)
    if image.controller is None or image.controller.broker_id != broker_id:
        raise ApiError(ErrorCode.NOT_CONTROLLER, f"Broker {broker_id} is not the controller.")
    return fenced._replace(changes=(*fenced.changes, Delete(ClusterKeys(image.cluster_id).controller)))


def drain(image: ClusterImage, broker_id: int, *, is_draining: bool = True) -> Decision:
    """Give it no more leaders and replicas, and take its leaders; or end that.

    Compares its registration and its presence. A new process of the broker begins undrained.
    """
    broker = _registered(image, broker_id)
    if broker.is_draining == is_draining:
        return NOTHING_TO_DO
    if not broker.is_alive:
        detail = f"Broker {broker_id} is not there: it leads nothing that could be taken."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    drained = msgspec.structs.replace(broker, is_draining=is_draining)
    return _put_registration(image, drained, _compare_session(image, broker))


def drain_by_operator(image: ClusterImage, broker_id: int) -> Decision:
    """The same for a person. Refused where nobody would be left to lead and to be given replicas."""
    others = [node for node in image.admitted if node != broker_id and not image.brokers[node].is_draining]
    if not others and not _registered(image, broker_id).is_draining:
        detail = f"Broker {broker_id} cannot be drained: no other broker is there to take over."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    return drain(image, broker_id)


def undrain(image: ClusterImage, broker_id: int) -> Decision:
    return drain(image, broker_id, is_draining=False)


def finish_joining(image: ClusterImage, broker: BrokerRegistration) -> Decision:
    """It has its share of partitions. What people move from now on stays where they put it."""
    return _put_registration(image, msgspec.structs.replace(broker, is_new=False), *compare_term(image))


def adopt(image: ClusterImage, broker_id: int, *, incarnation: str, directory_id: str) -> Decision:
    """Make an embedded broker, which is stopped, a member of a cluster to be, with the disk it has.

    Compares its registration. It then registers like any other, and is known by its disk.
    """
    broker = _registered(image, broker_id)
    if not broker.is_embedded:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is in a cluster already.")
    assert incarnation
    assert directory_id
    adopted = msgspec.structs.replace(broker, incarnation=incarnation, directory_id=directory_id)
    return _put_registration(image, adopted)


def is_drained(image: ClusterImage, broker_id: int) -> bool:
    """Whether it leads nothing that somebody else could lead."""
    others = frozenset(
        node for node in image.admitted if node != broker_id and not image.brokers[node].is_draining
    )
    return not any(
        state.leader == broker_id and not others.isdisjoint(state.isr) for _, state in every_partition(image)
    )


def unregister(image: ClusterImage, broker_id: int) -> Decision:
    """Forget a broker. Compares its registration, that it is not there, and the term."""
    broker = _registered(image, broker_id)
    if broker.is_alive:
        detail = f"Broker {broker_id} is there. Stop it first."
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
    """An ISR with an admitted member has lost this broker in `repaired`."""
    if has_acknowledged_records(image, topic, draft.index, broker):
        return draft
    node, is_gone = broker.id, has_lost_copy(broker, topic, draft.index)
    others = without((*draft.isr, *eligible_leaders(image, topic, draft)), (node,))
    if not others and not is_gone:
        return draft
    if node in draft.isr:
        draft = with_isr(image, topic, draft, without(draft.isr, (node,)))
    known = draft.last_known_elr
    if node in draft.elr:
        known = (*without(known, (node,)), node)
    return msgspec.structs.replace(
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
    value = BrokerValue(
        rack=broker.rack,
        endpoints={name: EndpointValue(at.host, at.port) for name, at in broker.endpoints.items()},
        incarnation=broker.incarnation,
        is_draining=broker.is_draining,
        features=dict(broker.features),
        admitted_epoch=broker.admitted_epoch,
        directory_id=broker.directory_id,
        flushes_before_ack=broker.flushes_before_ack,
        is_new=broker.is_new,
        start_id=broker.start_id,
    )
    key = ClusterKeys(image.cluster_id).broker(broker.id)
    return Decision((*extra_compares, Compare(key, broker.revision)), (Put(key, encode(value)),))
