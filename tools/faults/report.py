"""Report of a run: counts, silence by kind of fault, anomalies. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from tools.faults.checker import Anomaly
from tools.faults.figures import Outage, lag_s_max, outages, percentile, repeated
from tools.faults.history import History, Outcome

SHOWN_MAX: Final = 20


def report(
    history: History, found: Sequence[Anomaly], unresolved: int, not_tried: Mapping[str, str]
) -> list[str]:
    outcomes = Counter(write.outcome for write in history.writes)
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
    in_groups = sum(len(reads) for reads in history.group_reads.values())
    again = ", ".join(f"{count:,} again by {group}" for group, count in repeated(history).items())
    return [
        f"writes         {len(history.writes):,}: {told}; without an outcome {unresolved:,}",
        f"reads          {len(history.reads):,} by readers, {in_groups:,} in groups ({again}), "
        f"{len(history.final):,} at the end",
        f"clients        {history.clients:,}; {len(history.commits):,} commits, "
        f"{len(history.assignments):,} partitions assigned to members of groups",
        f"lag            {lag_s_max(history):.2f} s at most between an acknowledgement and a reader",
        f"faults         {len(history.faults):,}; silence in seconds, by kind:",
        *table(outages(history)),
        *(f"NOT TRIED      {kind}: {reason}" for kind, reason in not_tried.items()),
        f"anomalies      {len(found):,}",
        *(f"    {kind} {count:,} times" for kind, count in sorted(_kinds(found).items())),
        *(f"    {each.kind}, partition {each.partition}: {each.detail}" for each in found[:SHOWN_MAX]),
        *missing_coverage(history),
    ]


def _kinds(found: Sequence[Anomaly]) -> Counter[str]:
    return Counter(anomaly.kind for anomaly in found)


def table(found: Mapping[str, Sequence[Outage]]) -> list[str]:
    lines = [f"    {'':22} {'':>5}   {'writes':^20}   {'reads':^20}"]
    lines.append(f"    {'kind':22} {'count':>5}   {_heads()}   {_heads()}")
    for kind, each in sorted(found.items()):
        writes = _percentiles([silence.writes_s for silence in each])
        reads = _percentiles([silence.reads_s for silence in each])
        lines.append(f"    {kind:22} {len(each):5}   {writes}   {reads}")
    return lines


def _heads() -> str:
    return f"{'p50':>6} {'p99':>6} {'max':>6}"


def _percentiles(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.5):6.2f} {percentile(values, 0.99):6.2f} {max(values):6.2f}"


def missing_coverage(history: History) -> list[str]:
    """Kinds of operations that never succeeded. A run without them proves nothing."""
    acknowledged = any(write.outcome is Outcome.ACKNOWLEDGED for write in history.writes)
    done = {
        "written": acknowledged,
        "read": bool(history.reads),
        "read at the end": bool(history.final),
        "read by some group": all(history.group_reads.values()) and bool(history.group_reads),
        "committed by a group": bool(history.commits),
    }
    return [f"nothing was {what}: this run proves nothing" for what, is_done in done.items() if not is_done]
