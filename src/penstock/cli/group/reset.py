"""`penstock group reset`: parses the target, computes the offsets, and commits them.

earliest, latest
offset:1234, or 1234
datetime:2026-11-15T10:00, or without the word; without a zone, the zone of this machine
duration:1h30m, duration:PT1H30M, or without the word: that long before now
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.group.client import GroupClient, GroupMember, GroupState
from penstock.cli.output import counted, json_line, note, table
from penstock.cli.positions import PositionKind, PositionSpec, parse_position
from penstock.cli.topic_metadata import find_topics
from penstock.cli.topic_requests import find_offsets, log_bounds
from penstock.errors import CommandFailed
from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.types import Offset, TopicPartition

_ISO_DURATION: Final = re.compile(
    r"P(?!$)(?:(?P<d>\d{1,9})D)?(?:T(?!$)(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,9})S)?)?",
    re.ASCII | re.IGNORECASE,
)
_ISO_UNITS_MS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS}
_KINDS: Final = {
    "offset": PositionKind.OFFSET,
    "datetime": PositionKind.TIMESTAMP,
    "duration": PositionKind.TIMESTAMP,
}
_DURATION: Final = re.compile(r"[0-9]+[a-z].*", re.ASCII)


class TopicSelection(NamedTuple):
    topic: str
    partitions: Sequence[int] | None
    """None: all partitions."""


class OffsetMove(NamedTuple):
    partition: TopicPartition
    before: int | None
    """None: nothing was committed."""
    after: int
    note: str = ""


def parse_target(text: str, now_ms: int) -> PositionSpec:
    """Parse a reset target; raise ValueError with a readable sentence for other text."""
    word, colon, rest = text.partition(":")
    if not colon or word not in _KINDS:
        return parse_position(_without_iso(text), now_ms, number_is=PositionKind.OFFSET, words=_WORDS)
    try:
        position = parse_position(_without_iso(rest), now_ms, number_is=PositionKind.OFFSET)
    except ValueError:
        position = None
    is_duration = _DURATION.fullmatch(_without_iso(rest)) is not None
    if position is None or position.kind is not _KINDS[word] or (word == "duration") != is_duration:
        raise ValueError(f"{rest!r} is no {word}: try {_EXAMPLES[word]}")
    return position


_WORDS: Final = (PositionKind.EARLIEST.value, PositionKind.LATEST.value)
_EXAMPLES: Final = {
    "offset": "offset:1234",
    "datetime": "datetime:2026-11-15T10:00",
    "duration": "duration:1h30m or duration:PT1H30M",
}


def _without_iso(text: str) -> str:
    """Convert an ISO 8601 duration to the spelling of other commands; return other text unchanged."""
    found = _ISO_DURATION.fullmatch(text)
    if found is None:
        return text
    total_ms = sum(int(number) * _ISO_UNITS_MS[unit] for unit, number in found.groupdict().items() if number)
    return f"{total_ms}ms"


def parse_selection(text: str) -> TopicSelection:
    """Parse T, or T:0,2 for some of its partitions; raise ValueError with a readable sentence otherwise."""
    topic, colon, numbers = text.partition(":")
    if not topic:
        raise ValueError(f"{text!r} names no topic")
    if not colon:
        return TopicSelection(topic, None)
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{text!r} is not TOPIC or TOPIC:PARTITION, as in orders or orders:0,2")
    return TopicSelection(topic, sorted({int(part) for part in parts}))


def plan_moves(
    position: PositionSpec,
    spans: Mapping[TopicPartition, tuple[int, int]],
    found: Mapping[TopicPartition, int | None],
    committed: Mapping[TopicPartition, int],
) -> list[OffsetMove]:
    """Plan a move for each partition of `spans`.

    `found` has the offset of the target time, or None without a record that new.
    """
    moves = []
    for partition, (start, end) in sorted(spans.items()):
        after, note = _target(position, start, end, found.get(partition))
        moves.append(OffsetMove(partition, committed.get(partition), after, note))
    return moves


def _target(position: PositionSpec, start: int, end: int, found: int | None) -> tuple[int, str]:
    if position.kind is PositionKind.EARLIEST:
        return start, ""
    if position.kind is PositionKind.LATEST:
        return end, ""
    if position.kind is PositionKind.TIMESTAMP:
        return (end, "no record is that new: the end") if found is None else (found, "")
    # The target is clamped to the log, so that a consumer does not start with OFFSET_OUT_OF_RANGE.
    if position.number < start:
        return start, f"{position.number} is gone: the start"
    if position.number > end:
        return end, f"{position.number} does not exist yet: the end"
    return position.number, ""


# Requests


def reset_offsets(
    broker: BrokerConnector,
    group_id: str,
    position: PositionSpec,
    selections: Sequence[TopicSelection],
    *,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Move the group, or only show what would move; print the moves."""
    with broker.client() as client:
        group = GroupClient(client, group_id)
        state = group.state()
        moves = _planned_moves(broker, position, selections, group.committed(), group_id)
        members = state.members if state is not None else []
        if members and not force and not dry_run:
            raise CommandFailed(_has_members(group_id, members))
        if not dry_run:
            members = _commit_moves(broker, group, moves, state, force=force)
    _print_moves(group_id, moves, members, dry_run=dry_run, as_json=as_json)


def _planned_moves(
    broker: BrokerConnector,
    position: PositionSpec,
    selections: Sequence[TopicSelection],
    committed: Mapping[TopicPartition, int],
    group_id: str,
) -> list[OffsetMove]:
    chosen = sorted(_chosen(broker, selections) if selections else committed)
    if not chosen:
        raise CommandFailed(f"group {group_id} has committed nothing: name what it shall read with --topic.")
    found: dict[TopicPartition, int | None] = {}
    if position.kind is PositionKind.TIMESTAMP:
        found = {each: at.offset for each, at in find_offsets(broker, chosen, position).items()}
    return plan_moves(position, log_bounds(broker, chosen), found, committed)


def _chosen(broker: BrokerConnector, selections: Sequence[TopicSelection]) -> set[TopicPartition]:
    found = find_topics(broker, list(dict.fromkeys(selection.topic for selection in selections)))
    existing = {topic.name: topic.numbers for topic in found}
    chosen: set[TopicPartition] = set()
    for topic, wanted in selections:
        missing = sorted(set(wanted or ()) - set(existing[topic]))
        if missing:
            raise CommandFailed(
                f"topic {topic} has no partition {missing[0]}: it has 0 to {existing[topic][-1]}."
            )
        chosen |= {TopicPartition(topic, number) for number in (wanted or existing[topic])}
    return chosen


def _commit_moves(
    broker: BrokerConnector,
    group: GroupClient,
    moves: Sequence[OffsetMove],
    state: GroupState | None,
    *,
    force: bool,
) -> list[GroupMember]:
    """Commit all offsets in one request. Removed members may have rejoined, and are then removed again."""
    offsets = {move.partition: Offset(move.after) for move in moves}
    removed: dict[str, GroupMember] = {}
    deadline = time.monotonic() + broker.timeout_s
    while True:
        if state is not None and state.members:
            if not force:
                raise CommandFailed("nothing was changed: a consumer has just joined the group.")
            # Members must be gone before the commit: the coordinator accepts such a commit only for an empty
            # group.
            group.remove(state.type, state.members)
            removed |= {member.member_id: member for member in state.members}
        if group.commit(offsets):
            return list(removed.values())
        if time.monotonic() > deadline:
            raise CommandFailed("nothing was changed: its consumers rejoin too fast. Stop them first.")
        state = group.state()


def _has_members(group: str, members: Sequence[GroupMember]) -> str:
    shown = "\n".join(f"  {member}" for member in members[:10])
    more = f"\n  and {len(members) - 10} more" if len(members) > 10 else ""
    return (
        f"group {group} has members, whose next commits would undo a reset:\n{shown}{more}\n"
        "Stop them first, or give --force: it removes them, and they rejoin at the new offsets."
    )


def _print_moves(
    group: str,
    moves: Sequence[OffsetMove],
    members: Sequence[GroupMember],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        rows = [
            {**move.partition._asdict(), "from": move.before, "to": move.after, "note": move.note or None}
            for move in moves
        ]
        names = [member.member_id for member in members]
        key = "members" if dry_run else "removed_members"
        json_line({"group": group, "dry_run": dry_run, key: names, "partitions": rows})
        return
    table(
        ("TOPIC", "PARTITION", "FROM", "TO", ""),
        [(*move.partition, move.before, move.after, move.note) for move in moves],
    )
    if dry_run:
        note("nothing was changed (--dry-run)")
    if members and dry_run:
        note(f"the group has {counted(len(members), 'member')}: without --force this would be rejected")
    elif members:
        note(f"removed {counted(len(members), 'member')}: those that still run rejoin and go on from there")
