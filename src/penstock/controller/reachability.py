"""Which brokers reach each other, as they report it, and what the leader of a partition does about it.

A broker that gets no answer from other brokers reports them in a key of its own
(broker/cluster/peer_reachability.py). Two brokers count as connected while neither of them reports the other.
A leader whose followers report it cannot commit records, although its session lives: it still reaches the
metadata store. It then hands leadership over to an in-sync replica, or an eligible leader (ELR), to which
more replicas are connected. If there is none, the leader removes the followers that report it from the ISR,
as it would after replica.lag.time.max.ms, provided that the other members can go on without them.

The leader decides that itself, and about itself. So a leader that is paused, or too slow to answer, is not
replaced because of a report: it decides nothing until it runs again, and by then it has the fetches of its
followers, which refute the reports.

Rule 1: a report counts only while both brokers have the sessions under which it was written.
Rule 2: leadership moves only to a broker that is better connected than the leader: enough replicas with all
        committed records are connected to it, and not to the leader; or else more replicas are. So the same
        reports never move it back, and if no broker reaches any other, nothing moves.
Rule 3: leadership moves, and a follower is removed, only if enough replicas for min.insync.replicas are left.
        Otherwise the partition could not be written to afterwards either.
Rule 4: a broker that could not be reached a moment ago does not lead just because it is the preferred leader:
        a connection that comes and goes would move leadership back each time.
Rule 5: reports never make a decision safe, and are not compared. The elected replica is in the ISR or the ELR
        of the partition that the decision compares, so it has every committed record.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.controller.decision import NOTHING_TO_DO, Decision, compare_sessions
from penstock.controller.partitions import TopicPartitionState, change_partition, with_isr
from penstock.host.metadata_store import ABSENT, Compare, Delete, Put, SessionId
from penstock.metadata.cluster_image import ClusterImage, PartitionState, UnreachableBrokers
from penstock.metadata.documents import UnreachableBrokersValue, encode_document
from penstock.metadata.durability import eligible_leaders, min_isr
from penstock.metadata.keys import ClusterKeys


class FollowerContact(NamedTuple):
    """Which brokers a leader hears from. Brokers that are in neither set fetched lately."""

    cut_off: frozenset[int] = frozenset()
    """Brokers that report this leader, and that it has not heard from lately."""
    silent: frozenset[int] = frozenset()
    """Brokers that this leader has not heard from lately, `cut_off` included."""


class PeerReport(NamedTuple):
    """What a broker has to report about others: pairs of a broker id and a broker epoch, ordered."""

    unreachable: Sequence[tuple[int, int]] = ()
    recovering: Sequence[tuple[int, int]] = ()


# Reports


def unreachable_for(image: ClusterImage, broker_id: int) -> frozenset[int]:
    """The brokers that this broker reports as unreachable."""
    report = _valid_report(image, broker_id)
    epochs = {} if report is None else report.brokers
    return frozenset(node for node in epochs if _is_current(image, node, epochs))


def reporters_of(image: ClusterImage, broker_id: int) -> frozenset[int]:
    """The brokers that report this broker as unreachable."""
    return frozenset(node for node in image.unreachable if _reports(image, node, broker_id))


def report_unreachable(
    image: ClusterImage, broker_id: int, session: SessionId, report: PeerReport
) -> Decision:
    """Replace what this broker reports. Compares its session, and the report that is replaced."""
    known, own = image.unreachable.get(broker_id), image.sessions[broker_id]
    is_empty = not report.unreachable and not report.recovering
    if known is None and is_empty:
        return NOTHING_TO_DO
    value = UnreachableBrokersValue(own.epoch, dict(report.unreachable), dict(report.recovering))
    if known is not None and encode_document(known) == encode_document(value):
        return NOTHING_TO_DO
    keys = ClusterKeys(image.cluster_id)
    key = keys.unreachable(broker_id)
    compares = (
        Compare(keys.live(broker_id), own.epoch),
        Compare(key, ABSENT if known is None else known.revision),
    )
    return Decision(compares, (Delete(key) if is_empty else Put(key, encode_document(value), session),))


def out_of_reach(image: ClusterImage, state: PartitionState, broker_id: int) -> frozenset[int]:
    """The admitted replicas of a partition that are not connected to this broker."""
    return frozenset(
        node
        for node in (state.replicas if image.unreachable else ())
        if node in image.admitted and (_reports(image, node, broker_id) or _reports(image, broker_id, node))
    )


def has_stable_connections(image: ClusterImage, state: PartitionState, broker_id: int) -> bool:
    """Whether this broker is connected to all other replicas of a partition, and was so a moment ago."""
    for node in state.replicas if image.unreachable else ():
        for reporter, other in ((node, broker_id), (broker_id, node)):
            report = _valid_report(image, reporter)
            if report is not None and (
                _is_current(image, other, report.brokers) or _is_current(image, other, report.recovering)
            ):
                return False
    return True


# Decisions of a leader about itself


def hand_over(
    image: ClusterImage, partition: TopicPartitionState, broker_id: int, contact: FollowerContact
) -> Decision | None:
    """Elect another leader in place of this broker, which followers cannot reach; None: no other is better.

    The ISR loses the members that are not connected to the new leader, or the new leader would wait for them.
    Compares the partition and the sessions of this broker and of the elected one.
    """
    topic, state = partition
    have_records = (*state.isr, *eligible_leaders(image, topic, state))
    if state.leader != broker_id or contact.cut_off.isdisjoint(have_records):
        return None
    may_lead = (node for node in state.replicas if node in have_records and _may_lead(image, node))
    connected = {node: _connected(image, state, node, broker_id, contact) for node in (broker_id, *may_lead)}
    minimum = min_isr(image, topic, state)

    def suitability(node: int) -> tuple[bool, int, bool, bool]:
        # A replica without all committed records may have to copy for hours before it counts.
        has_enough = len(connected[node].intersection(have_records)) >= minimum
        # Of equals this broker, then an in-sync replica, then the first in the order of the assignment.
        return has_enough, len(connected[node]), node == broker_id, node in state.isr

    best = max(connected, key=suitability)
    if best == broker_id or len(connected[best]) < minimum:
        return None
    isr = [node for node in (*state.isr, best) if node in connected[best]]
    draft = with_isr(image, topic, msgspec.structs.replace(state, leader=best), isr)
    return change_partition(image, topic, state, draft, *compare_sessions(image, (broker_id,)))


def removable_followers(
    image: ClusterImage, partition: TopicPartitionState, contact: FollowerContact
) -> frozenset[int]:
    """The members of the ISR that cannot reach the leader, if the others can go on without them."""
    topic, state = partition
    late = contact.cut_off.intersection(state.isr)
    if not late:
        return late
    left = [node for node in state.isr if node not in late]
    # A member that is silent and has not reported may be cut off as well. Without the reported ones it would
    # be the only in-sync replica that can take over, and too few for min.insync.replicas.
    may_be_cut_off = any(node in contact.silent for node in left)
    if may_be_cut_off or len(left) < max(1, min_isr(image, topic, state)):
        return frozenset()
    return late


def _valid_report(image: ClusterImage, broker_id: int) -> UnreachableBrokers | None:
    report, session = image.unreachable.get(broker_id), image.sessions.get(broker_id)
    has_its_session = report is not None and session is not None and report.broker_epoch == session.epoch
    return report if has_its_session else None


def _reports(image: ClusterImage, reporter: int, broker_id: int) -> bool:
    """Whether `reporter` reports this broker. Costs the same however many others it reports: elections ask
    for each replica of each partition.
    """
    report = _valid_report(image, reporter)
    return report is not None and _is_current(image, broker_id, report.brokers)


def _is_current(image: ClusterImage, broker_id: int, epochs: Mapping[int, int]) -> bool:
    """Whether the broker still has the session of the broker epoch that it has in `epochs`."""
    session = image.sessions.get(broker_id)
    return session is not None and epochs.get(broker_id) == session.epoch


def _connected(
    image: ClusterImage, state: PartitionState, node: int, broker_id: int, contact: FollowerContact
) -> frozenset[int]:
    """The admitted replicas that could follow `node`, itself included, as the leader `broker_id` sees it."""
    replicas = image.admitted.intersection(state.replicas)
    if node == broker_id:
        # Reports about this leader count only if it has not heard from the reporter since.
        return replicas - contact.cut_off
    apart = out_of_reach(image, state, node)
    # A broker that the leader does not hear from can hardly be followed by it.
    return replicas - apart - ({broker_id} if node in contact.silent else set())


def _may_lead(image: ClusterImage, node: int) -> bool:
    return node in image.admitted and not image.brokers[node].is_draining
