"""Checks a history for anomalies. Pure functions.

The anomalies are those of Jepsen's test of Kafka, and some more. Penstock has no transactions yet, so an
aborted read is here the value of a rejected write.

    inconsistent-offsets    two values were read at one offset
    duplicate               one value is at two offsets
    lost-write              an acknowledged value is missing, although a record at a higher offset was read
    unseen                  an acknowledged value is missing at the end
    vanished-read           a consumer read a value that is missing at the end
    rejected-read           the value of a rejected write was read (Jepsen: aborted read, G1a)
    poll-skip               a consumer skipped a record
    nonmonotonic-poll       a consumer went back
    nonmonotonic-send       a producer's later write is at a lower offset than its earlier write
    wrong-offset            a value is at another offset than the acknowledgement said
    denied-position         a consumer's position was out of range for the broker
    group-missed            no member of a group read this record
    committed-offset-back   a member of a group began below an offset that the group had committed
    traceback               a broker logged a traceback or a failed assertion
    ended                   a broker's process ended, and no fault had killed it

A member of a group that is assigned a partition begins at the committed offset, so skips and steps back
between two members are no anomaly; a record that no member read is one (group-missed). Lag, and how often a
group read a record again, are figures and no anomalies (`figures.py`).

These anomalies of Jepsen's list need several operations in one transaction, and do not apply:
precommitted-read, int-poll-skip, int-nonmonotonic-poll, int-nonmonotonic-send, int-send-skip, and the cycles
G0 and G1c with their process and realtime variants.

Rule: every read counts, whatever became of its consumer: a broker never shows an unsafe record to a consumer.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Final, NamedTuple

from tools.faults.history import Commit, History, Outcome, Read, Write

NO_PARTITION: Final = -1
UNEXPECTED: Final = re.compile(r"Traceback \(most recent call last\)|AssertionError")
LOG_LINE_SHOWN_MAX: Final = 2_000


class Anomaly(NamedTuple):
    kind: str
    partition: int
    detail: str


def anomalies(history: History) -> list[Anomaly]:
    observed = _observed(history)
    found = [
        *_inconsistent(observed),
        *_duplicates(observed),
        *_missing(history, observed),
        *_vanished(history),
        *_refused(history, observed),
        *_polls(history, observed),
        *_sends(history, observed),
        *_elsewhere(history, observed),
        *_denied(history),
        *_missed_by_groups(history),
        *_begun_too_early(history),
    ]
    return sorted(found)


def log_anomalies(name: str, log: str) -> list[Anomaly]:
    """Tracebacks and failed assertions in a broker's log."""
    lines = (line for line in log.splitlines() if UNEXPECTED.search(line))
    return [
        Anomaly("traceback", NO_PARTITION, f"{name}: {line.strip()[:LOG_LINE_SHOWN_MAX]}") for line in lines
    ]


class _ObservedRecords:
    """The values that were read at each offset of one partition."""

    def __init__(self) -> None:
        self.values: dict[int, set[str]] = defaultdict(set)
        self.offsets: dict[str, set[int]] = defaultdict(set)

    def add(self, read: Read) -> None:
        self.values[read.offset].add(read.value)
        self.offsets[read.value].add(read.offset)

    @property
    def highest(self) -> int:
        return max(self.values, default=-1)


def _by_consumers(history: History) -> Iterator[Read]:
    return chain(history.reads, *history.group_reads.values())


def _observed(history: History) -> dict[int, _ObservedRecords]:
    observed: dict[int, _ObservedRecords] = defaultdict(_ObservedRecords)
    for read in chain(_by_consumers(history), history.final):
        observed[read.partition].add(read)
    return observed


def _inconsistent(observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    for partition, seen in observed.items():
        for offset, values in seen.values.items():
            if len(values) > 1:
                detail = f"offset {offset} had {', '.join(sorted(values))}"
                yield Anomaly("inconsistent-offsets", partition, detail)


def _duplicates(observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    for partition, seen in observed.items():
        for value, offsets in seen.offsets.items():
            if len(offsets) > 1:
                yield Anomaly("duplicate", partition, f"{value} is at {', '.join(map(str, sorted(offsets)))}")


def _missing(history: History, observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    there = {(read.partition, read.value) for read in history.final}
    highest = {partition: seen.highest for partition, seen in observed.items()}
    for write in history.writes:
        if write.outcome is not Outcome.ACKNOWLEDGED or (write.partition, write.value) in there:
            continue
        is_passed = write.offset is not None and write.offset <= highest.get(write.partition, -1)
        kind = "lost-write" if is_passed else "unseen"
        yield Anomaly(kind, write.partition, f"{write.value}, acknowledged at offset {write.offset}")


def _vanished(history: History) -> Iterator[Anomaly]:
    there = {(read.partition, read.value) for read in history.final}
    gone = {(read.partition, read.value): read for read in _by_consumers(history)}.items()
    for key, read in gone:
        if key not in there:
            yield Anomaly(
                "vanished-read", read.partition, f"{read.value} at {read.offset}, to {read.consumer}"
            )


def _refused(history: History, observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    for write in history.writes:
        if write.outcome is Outcome.REJECTED and write.value in observed[write.partition].offsets:
            yield Anomaly("rejected-read", write.partition, f"{write.value} was rejected and is there")


def _polls(history: History, observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    # Offsets without a record are no gap.
    index = {
        partition: {offset: number for number, offset in enumerate(sorted(seen.values))}
        for partition, seen in observed.items()
    }
    for (consumer, partition), reads in _by_consumer(_by_consumers(history)).items():
        for before, after in pairwise(reads):
            step = index[partition][after.offset] - index[partition][before.offset]
            if step == 1:
                continue
            kind = "poll-skip" if step > 1 else "nonmonotonic-poll"
            yield Anomaly(kind, partition, f"{consumer} got {after.offset} after {before.offset}")


def _by_consumer(reads: Iterable[Read]) -> dict[tuple[str, int], list[Read]]:
    found: dict[tuple[str, int], list[Read]] = defaultdict(list)
    for read in reads:
        found[read.consumer, read.partition].append(read)
    return found


def _sends(history: History, observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    latest: dict[tuple[str, int], tuple[int, str]] = {}
    for write in sorted(history.writes, key=_began):
        offset = _offset(write, observed)
        if offset is None:
            continue
        key = (write.producer, write.partition)
        before = latest.get(key)
        if before is not None and offset < before[0]:
            detail = f"{write.value} is at {offset}, before {before[1]} at {before[0]}"
            yield Anomaly("nonmonotonic-send", write.partition, detail)
        latest[key] = max((offset, write.value), before or (offset, write.value))


def _began(write: Write) -> float:
    return write.began


def _offset(write: Write, observed: dict[int, _ObservedRecords]) -> int | None:
    return min(observed[write.partition].offsets.get(write.value, ()), default=None)


def _elsewhere(history: History, observed: dict[int, _ObservedRecords]) -> Iterator[Anomaly]:
    for write in history.writes:
        offset = _offset(write, observed)
        if write.offset is not None and offset is not None and offset != write.offset:
            detail = f"{write.value} is at {offset}, and was acknowledged at {write.offset}"
            yield Anomaly("wrong-offset", write.partition, detail)


def _denied(history: History) -> Iterator[Anomaly]:
    for denial in history.denials:
        yield Anomaly("denied-position", denial.partition, f"{denial.consumer}: {denial.detail}")


# Groups


def _missed_by_groups(history: History) -> Iterator[Anomaly]:
    for group, reads in history.group_reads.items():
        got = {(read.partition, read.offset) for read in reads}
        for read in history.final:
            if (read.partition, read.offset) not in got:
                yield Anomaly("group-missed", read.partition, f"{group}: {read.value} at {read.offset}")


def _begun_too_early(history: History) -> Iterator[Anomaly]:
    begun: dict[tuple[str, int], int] = {}
    for read in chain(*history.group_reads.values()):
        begun.setdefault((read.consumer, read.partition), read.offset)
    commits: dict[tuple[str, int], list[Commit]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.partition].append(commit)
    for assigned in history.assignments:
        first = begun.get((assigned.consumer, assigned.partition))
        of_group = commits[assigned.group, assigned.partition]
        stored = [commit for commit in of_group if commit.is_stored and commit.at <= assigned.at]
        if first is None or not stored:
            continue
        best = max(stored, key=_committed_offset)
        # The member before may have committed an older offset late, which Kafka allows.
        is_replaced = any(commit.offset == first and commit.at > best.at for commit in of_group)
        if first < best.offset and not is_replaced:
            detail = f"{assigned.consumer} began at {first}, and {best.offset} was committed"
            yield Anomaly("committed-offset-back", assigned.partition, detail)


def _committed_offset(commit: Commit) -> int:
    return commit.offset
