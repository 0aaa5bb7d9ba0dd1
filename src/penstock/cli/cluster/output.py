"""Output of `penstock cluster status`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from penstock.cli.cluster.partition_moves import left_text
from penstock.cli.output import Cell, counted, table

_SHOWN_MAX: Final = 20
_PARTITION_PROBLEMS: Final = (
    ("offline", "offline (no leader)"),
    ("under_replicated", "under-replicated"),
    ("unbalanced", "unbalanced (another than the preferred one leads)"),
    ("reassigning", "being moved"),
)

JsonObject = Mapping[str, Any]


def print_status(document: JsonObject) -> None:
    brokers = document["brokers"]
    controller = document["controller"]
    led = "no controller" if controller is None else f"controller {controller}"
    counts = f"{counted(document['topics'], 'topic')}, {counted(document['partitions'], 'partition')}"
    typer.echo(f"cluster {document['cluster_id']}  {counted(len(brokers), 'broker')}, {led}, {counts}")
    if (reason := document["metadata_store_unavailable"]) is not None:
        typer.echo(f"the metadata store is unavailable: nothing can be changed now ({reason})")
    table(("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "HOLDS"), [_broker_row(each) for each in brokers])
    _print_unreachable(brokers)
    for key, title in _PARTITION_PROBLEMS:
        _print_partitions(title, document[key])
    _print_damage(document.get("damaged_here"))
    _print_risks(document["topics_at_risk"])


def _broker_row(broker: JsonObject) -> tuple[Cell, ...]:
    address = next(iter(broker["addresses"].values()), None)
    state = "drained" if broker["is_drained"] else broker["state"]
    return broker["id"], address, broker["rack"] or "-", state, broker["leads"], broker["holds"]


def _print_unreachable(brokers: Sequence[JsonObject]) -> None:
    for broker in brokers:
        # A broker of an earlier release does not report this.
        if others := broker.get("cannot_reach"):
            brokers_text = "broker" if len(others) == 1 else "brokers"
            typer.echo(f"broker {broker['id']} cannot reach {brokers_text} {ids_text(others)}")


def _print_partitions(title: str, found: JsonObject) -> None:
    if not found["count"]:
        typer.echo(f"{title}: none")
        return
    typer.echo(f"{title}: {counted(found['count'], 'partition')}")
    shown = found["partitions"][:_SHOWN_MAX]
    has_progress = any("records_left" in entry for entry in shown)
    titles: tuple[str, ...] = ("  TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC")
    if has_progress:
        titles = (*titles, "ADDED", "REMOVED", "RECORDS LEFT")
    table(titles, [_partition_row(entry, has_progress=has_progress) for entry in shown])
    _print_more(found["count"] - len(shown))


def _partition_row(entry: JsonObject, *, has_progress: bool) -> tuple[Cell, ...]:
    row = (
        f"  {entry['topic']}",
        entry["partition"],
        entry["leader"],
        ids_text(entry["replicas"]),
        ids_text(entry["in_sync"]),
    )
    if not has_progress:
        return row
    return *row, ids_text(entry["adding"]), ids_text(entry["removing"]), left_text(entry["records_left"])


def _print_damage(found: JsonObject | None) -> None:
    """Print damaged partitions; None comes from a broker whose release does not report them."""
    if found is None or not found["count"]:
        return
    typer.echo(f"damaged on the broker that was asked: {counted(found['count'], 'partition')}")
    for entry in found["partitions"][:_SHOWN_MAX]:
        typer.echo(f"  {entry['topic']}-{entry['partition']}  ({entry['reason']})")
    _print_more(found["count"] - _SHOWN_MAX)


def _print_risks(topics: Sequence[JsonObject]) -> None:
    if not topics:
        typer.echo("one lost disk would lose: nothing")
        return
    typer.echo(f"one lost disk would lose acknowledged records of {counted(len(topics), 'topic')}")
    for topic in topics[:_SHOWN_MAX]:
        typer.echo(f"  {topic['topic']}  ({topic['reason']})")
    _print_more(len(topics) - _SHOWN_MAX)


def _print_more(count: int) -> None:
    if count > 0:
        typer.echo(f"  and {count} more: see --json")


def ids_text(nodes: Sequence[int]) -> str | None:
    return ",".join(map(str, nodes)) or None
