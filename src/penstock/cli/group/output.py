"""Output of `penstock group describe`."""

from collections.abc import Mapping
from typing import Any, Final

import typer

from penstock.cli.output import Cell, counted, table
from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

_UNITS: Final = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "m"), (SECOND_MS, "s"))
_NOTES: Final = {
    "ok": "",
    "beyond_end": "committed beyond the end",
    "no_commit": "nothing committed yet",
    "offline": "the partition is offline",
    "unknown": "its leader did not answer",
}

JsonObject = Mapping[str, Any]


def print_group(group: JsonObject) -> None:
    members = counted(group["member_count"], "member")
    assignor = f"  {group['assignor']}" if group["assignor"] else ""
    typer.echo(f"{group['group']}  {group['type']}  {group['state']}  {members}{assignor}")
    typer.echo(_progress(group))
    typer.echo(_rebalances(group["rebalances"]))
    clients = {member["member_id"]: member["client_id"] for member in group["members"]}
    if group["partitions"]:
        titles = (
            "TOPIC",
            "PARTITION",
            "COMMITTED",
            "END",
            "BEHIND",
            "AGE",
            "RATE/S",
            "DRAINS IN",
            "CLIENT",
            "",
        )
        table(titles, [_row(partition, clients) for partition in group["partitions"]])
    if group["members"]:
        typer.echo("")
        table(
            ("MEMBER", "CLIENT", "HOST", "PARTITIONS"), [_member_row(member) for member in group["members"]]
        )


def _progress(group: JsonObject) -> str:
    unknown = group["partitions_unknown"]
    known = _known_progress(group)
    return f"{known}, and {counted(unknown, 'partition')} unknown" if unknown else known


def _known_progress(group: JsonObject) -> str:
    if not group["records_behind"]:
        return "behind: nothing"
    age, drain = duration_text(group["age_ms"]), group["drain_ms"]
    drains = "never drains at this rate" if drain is None else f"drains in {duration_text(drain)}"
    records = counted(group["records_behind"], "record")
    return f"behind: {records}, the oldest for {age}; {group['rate']:.1f} a second; {drains}"


def _rebalances(rebalances: JsonObject) -> str:
    text = f"rebalances: {rebalances['total']}"
    if rebalances["under_way_ms"] is not None:
        text += f", one under way for {duration_text(rebalances['under_way_ms'])}"
    elif rebalances["last_duration_ms"] is not None:
        text += f", the last took {duration_text(rebalances['last_duration_ms'])}"
    return f"{text} ({rebalances['last_reason']})" if rebalances["last_reason"] else text


def _row(partition: JsonObject, clients: Mapping[str, str]) -> tuple[Cell, ...]:
    lost = partition["records_lost"]
    note = f"{counted(lost, 'record')} deleted unread" if lost else _NOTES.get(partition["standing"], "")
    return (
        partition["topic"],
        partition["partition"],
        partition["committed_offset"],
        partition["log_end_offset"],
        partition["records_behind"],
        duration_text(partition["age_ms"]),
        f"{partition['rate']:.1f}",
        duration_text(partition["drain_ms"]),
        clients.get(partition["member_id"], "-"),
        note,
    )


def _member_row(member: JsonObject) -> tuple[Cell, ...]:
    held: dict[str, list[str]] = {}
    for partition in member["partitions"] or ():
        held.setdefault(partition["topic"], []).append(str(partition["partition"]))
    texts = "  ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in held.items())
    return member["member_id"], member["client_id"], member["host"], texts or None


def duration_text(milliseconds: int | None) -> str:
    """Format the two largest units: 850ms, 4.3s, 12m30s, 3d4h; - for unknown durations."""
    if milliseconds is None:
        return "-"
    if milliseconds < SECOND_MS:
        return f"{milliseconds}ms"
    if milliseconds < MINUTE_MS:
        return f"{milliseconds // 100 / 10:g}s"
    largest = next(index for index, (unit, _) in enumerate(_UNITS) if milliseconds >= unit)
    (unit, name), (smaller, smaller_name) = _UNITS[largest], _UNITS[largest + 1]
    rest = milliseconds % unit // smaller
    return f"{milliseconds // unit}{name}" + (f"{rest}{smaller_name}" if rest else "")
