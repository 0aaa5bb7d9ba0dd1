"""What a decision is, and how it is cut to what the store takes in one transaction.

A decision says which revisions it rests on and what to change if they still hold. Nothing is written
by whoever decides: the shell commits, and decides again on a newer image if a revision has moved.

Some changes cannot be seen until another one makes them count: partitions without their topic. Those
are `prepared`. Where a transaction holds everything they are committed with the rest; where it does
not, they go first, in pieces.

Rule 1: every piece compares all that the decision rests on. So nothing is prepared for a decision
        that can no longer be committed, and a straggler never overwrites what another made count.
Rule 2: in a cluster, what the controller decides compares the controller's term (`compare_term`). A
        broker that was controller can then no longer write, however long it slept.
Rule 3: a broker that is to lead or to be in sync is compared by its live key (`compare_sessions`): it is
        still the process that the image shows.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Compare, Put, StoreChange
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.keys import ClusterKeys


class Decision(NamedTuple):
    compares: tuple[Compare, ...]
    changes: tuple[StoreChange, ...]
    prepared: tuple[Put, ...] = ()
    """They mean nothing until `changes` are made, and may be written before."""
    is_partial: bool = False
    """Some of what was asked for is refused or done already, for which no compared revision speaks."""

    @property
    def all_changes(self) -> tuple[StoreChange, ...]:
        return self.prepared + self.changes


NOTHING_TO_DO = Decision((), ())


class NoController(ApiError):
    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_CONTROLLER, "The cluster has no controller at the moment.")


def transactions_of(decision: Decision, changes_max: int) -> list[Decision]:
    """The transactions that carry out a decision, one after the other. The last makes it count.

    ApiError: it rests on, or changes, more than one transaction takes.
    """
    keys = max(len(decision.compares), len(decision.changes))
    if keys > changes_max:
        detail = f"This concerns {keys} keys at once, and the metadata store takes {changes_max}."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    if len(decision.all_changes) <= changes_max:
        return [Decision(decision.compares, decision.all_changes)]
    prepared = decision.prepared
    first = [
        Decision(decision.compares, prepared[start : start + changes_max])
        for start in range(0, len(prepared), changes_max)
    ]
    return [*first, Decision(decision.compares, decision.changes)]


def merged(decisions: Iterable[Decision]) -> Decision:
    """One decision that is all of these. They change different keys."""
    compares: dict[Compare, None] = {}
    changes: list[StoreChange] = []
    prepared: list[Put] = []
    for decision in decisions:
        compares.update(dict.fromkeys(decision.compares))
        changes += decision.changes
        prepared += decision.prepared
    return Decision(tuple(compares), tuple(changes), tuple(prepared))


def batched(decisions: Iterable[Decision], changes_max: int) -> Iterator[list[Decision]]:
    """Decisions about different keys, as many in a row as one transaction holds.

    If `merged` of such a group meets a conflict, its halves are tried: only those decisions that the
    conflict was about have to be decided again.
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
    """That the controller is still the one whose image this is. An embedded broker needs none."""
    if image.is_embedded:
        return ()
    if image.controller is None:
        raise NoController
    return (Compare(ClusterKeys(image.cluster_id).controller, image.controller.term),)


def compare_sessions(image: ClusterImage, broker_ids: Iterable[int]) -> tuple[Compare, ...]:
    """That these brokers are still the processes the image shows. Embedded ones have no session."""
    keys = ClusterKeys(image.cluster_id)
    known = (image.brokers[broker_id] for broker_id in broker_ids)
    return tuple(
        Compare(keys.live(broker.id), broker.broker_epoch) for broker in known if not broker.is_embedded
    )
