"""Decisions, and how a decision is split into transactions that the metadata store accepts.

A decision names the revisions that it depends on and the changes to make if these revisions still hold. The
function that decides writes nothing: its caller commits, and decides again on a newer image if a revision has
changed.

Some changes have no effect until another change makes them count: partitions whose topic key does not exist
yet. Such changes are `prepared`. If one transaction can hold the whole decision, the prepared changes are
committed with the rest. Otherwise they are committed first, in chunks.

Rule 1: every chunk compares everything that the decision depends on. So nothing is prepared for a decision
        that can no longer be committed, and a delayed chunk never overwrites partitions that another decision
        has made count.
Rule 2: in a cluster, every decision of the controller compares the controller's term (`compare_term`). A
        broker that was the controller can then no longer write, however long it was suspended.
Rule 3: a broker that is to lead or to be in sync is compared by its session key (`compare_sessions`): it must
        still be the process that the image names.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.chunks import chunks
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Compare, Put, StoreChange
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.keys import ClusterKeys


class Decision(NamedTuple):
    compares: tuple[Compare, ...]
    changes: tuple[StoreChange, ...]
    prepared: tuple[Put, ...] = ()
    """Changes that have no effect until `changes` are made, and may be written before them."""
    is_partial: bool = False
    """Part of the request is rejected or done already, and no compared revision covers that part."""

    @property
    def all_changes(self) -> tuple[StoreChange, ...]:
        return self.prepared + self.changes


NOTHING_TO_DO = Decision((), ())

Decide = Callable[[ClusterImage], Decision]
"""Makes a decision on an image. Raises the ApiError of a rejection."""


class NoController(ApiError):
    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_CONTROLLER, "The cluster has no controller at the moment.")


def transactions_of(decision: Decision, changes_max: int) -> list[Decision]:
    """The transactions that carry out a decision, in order. The last one makes the decision count.

    ApiError if the decision compares or changes more keys than one transaction accepts.
    """
    keys = max(len(decision.compares), len(decision.changes))
    if keys > changes_max:
        detail = f"This concerns {keys} keys at once, and the metadata store takes {changes_max}."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    if len(decision.all_changes) <= changes_max:
        return [Decision(decision.compares, decision.all_changes)]
    # Every chunk repeats all compares, so a conflict stops the remaining chunks.
    first = [Decision(decision.compares, tuple(some)) for some in chunks(decision.prepared, changes_max)]
    return [*first, Decision(decision.compares, decision.changes)]


def merged(decisions: Iterable[Decision]) -> Decision:
    """One decision that combines these. They change different keys."""
    compares: dict[Compare, None] = {}
    changes: list[StoreChange] = []
    prepared: list[Put] = []
    for decision in decisions:
        compares.update(dict.fromkeys(decision.compares))
        changes += decision.changes
        prepared += decision.prepared
    return Decision(tuple(compares), tuple(changes), tuple(prepared))


def batched(decisions: Iterable[Decision], changes_max: int) -> Iterator[list[Decision]]:
    """Decisions about different keys, grouped so that each group fits one transaction.

    If the `merged` decision of a group meets a conflict, the caller tries its halves: only the decisions that
    conflict have to be decided again.
    """
    group: list[Decision] = []
    compares: set[Compare] = set()
    changes = 0
    for decision in decisions:
        assert not decision.prepared, "these are small"
        if group and (
            changes + len(decision.changes) > changes_max
            or len(compares.union(decision.compares)) > changes_max
        ):
            yield group
            group, compares, changes = [], set(), 0
        group.append(decision)
        compares.update(decision.compares)
        changes += len(decision.changes)
    if group:
        yield group


def compare_term(image: ClusterImage) -> tuple[Compare, ...]:
    """Compares that the controller of this image still holds its term. An embedded broker needs none."""
    if image.is_embedded:
        return ()
    if image.controller is None:
        raise NoController
    return (Compare(ClusterKeys(image.cluster_id).controller, image.controller.term),)


def compare_sessions(image: ClusterImage, broker_ids: Iterable[int]) -> tuple[Compare, ...]:
    """Compares that these brokers are still the processes of the image. Embedded brokers have no session."""
    keys = ClusterKeys(image.cluster_id)
    known = (image.brokers[broker_id] for broker_id in broker_ids)
    return tuple(
        Compare(keys.live(broker.id), broker.broker_epoch) for broker in known if not broker.is_embedded
    )
