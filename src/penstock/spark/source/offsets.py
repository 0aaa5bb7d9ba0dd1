"""Positions of a query in its topics: JSON forms, ranges, and how much one batch reads.

A position is one offset for each partition, exclusive: every record below it is done. Spark keeps positions
as JSON in its checkpoint, in the form of the official Kafka source, so that either source can continue from
the other's checkpoint. A stream's position also has the ids of its topics, because offsets have a meaning
only within one topic id, and the leader epochs in which it was reached, which show whether a log was
truncated since. Both are stored beside the topics, under names that no topic can have and without
partitions, so that the official source reads nothing from them:

    {"orders":{"0":1200,"1":1150},"orders#id=6f72646572732720...":{},"orders#epochs=0:7,1:9":{}}

The functions are pure: replies of the cluster are arguments.

Rule 1: Equal positions have equal texts. Spark compares texts to see whether there are new records.
Rule 2: The epoch of a partition changes only with its offset. Otherwise an election would look like records.
Rule 3: Lost records are reported, not skipped silently: `plan_stream_batch` returns them, and its caller
        decides.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from penstock.errors import ConfigError
from penstock.types import NO_TOPIC_ID, Offset, TopicId, TopicPartition

PartitionOffsets = Mapping[TopicPartition, int]


class StreamPosition(NamedTuple):
    """A position, and the ids of the topics of its offsets, where they are known."""

    offsets: PartitionOffsets
    ids: Mapping[str, TopicId] = {}
    epochs: Mapping[TopicPartition, int] = {}
    """Epochs of the leaders that reported these offsets: no record below an offset has a larger epoch."""


class OffsetRange(NamedTuple):
    """The range of offsets that one task reads."""

    partition: TopicPartition
    start: Offset
    end: Offset
    topic_id: TopicId = NO_TOPIC_ID
    """The id of the topic that was planned for; a task reads no other. Not all brokers have topic ids."""

    @property
    def size(self) -> int:
        """The number of offsets, which equals the number of records unless some were compacted away."""
        return self.end - self.start


class ReadPlan(NamedTuple):
    """Ranges to read, and the losses that were noticed while planning."""

    ranges: list[OffsetRange]
    losses: list[str]
    """Sentences about records that can no longer be read."""


# JSON

_ID: Final = "#id="
"""The separator between a topic's name and its id. No topic name can contain it."""
_EPOCHS: Final = "#epochs="


def to_document(position: PartitionOffsets) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for partition in sorted(position):
        document.setdefault(partition.topic, {})[str(partition.partition)] = position[partition]
    return document


def from_document(document: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Parse a position. ConfigError if the document is none, for example from another source's checkpoint."""
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, offsets in document.items()
            for number, offset in offsets.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"the checkpoint says {document!r}, which is no position in topics; it belongs to another "
            "source. Give this query a checkpointLocation of its own"
        ) from None


def stream_position_document(mark: StreamPosition) -> dict[str, dict[str, int]]:
    ids: dict[str, dict[str, int]] = {
        f"{topic}{_ID}{mark.ids[topic].hex()}": {} for topic in sorted(mark.ids)
    }
    epochs: dict[str, dict[str, int]] = {
        f"{topic}{_EPOCHS}{','.join(f'{number}:{epoch}' for number, epoch in by_number.items())}": {}
        for topic, by_number in to_document(mark.epochs).items()
    }
    return to_document(mark.offsets) | ids | epochs


def parse_stream_position(document: Mapping[str, Any]) -> StreamPosition:
    """Parse a position with topic ids and leader epochs. ConfigError if the document is none."""
    offsets = from_document(document)
    try:
        return StreamPosition(
            offsets,
            {topic: TopicId(bytes.fromhex(text)) for topic, text in _named(document, _ID)},
            {
                TopicPartition(topic, int(number)): int(epoch)
                for topic, text in _named(document, _EPOCHS)
                for number, epoch in (each.split(":") for each in text.split(","))
            },
        )
    except ValueError:
        raise ConfigError(
            f"the checkpoint has ids of topics or leader epochs that are none: {document!r}"
        ) from None


def _named(document: Mapping[str, Any], separator: str) -> list[tuple[str, str]]:
    """The topics and texts of the names that contain the separator."""
    names = [name for name, partitions in document.items() if separator in name and not partitions]
    return [(topic, text) for topic, _, text in (name.rpartition(separator) for name in names)]


# From one position to another


def plan_stream_batch(
    start: PartitionOffsets,
    end: PartitionOffsets,
    earliest: PartitionOffsets,
    *,
    from_earliest: Iterable[str] = (),
) -> ReadPlan:
    """The ranges between two positions. `earliest` is where each partition of `end` begins now.

    Topics in `from_earliest` were deleted and recreated: their offsets in `start` belong to the old topic,
    and partitions that the new topic does not have contribute nothing.
    """
    reset = frozenset(from_earliest)
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for partition in sorted(end):
        until, first = end[partition], earliest.get(partition)
        if partition in start and partition.topic not in reset:
            ranges.append(OffsetRange(partition, Offset(start[partition]), Offset(until)))
            losses += truncation_losses({partition: start[partition]}, end)
        elif first is not None:
            ranges.append(OffsetRange(partition, Offset(first), Offset(max(first, until))))
            if first and partition not in start:
                losses.append(f"{partition} is new to this query and begins at offset {first} instead of 0")
    losses += [f"{partition} has been deleted" for partition in sorted(start.keys() - end.keys())]
    return ReadPlan([each for each in ranges if each.size > 0], losses)


def truncation_losses(start: PartitionOffsets, end: PartitionOffsets) -> list[str]:
    """Messages for partitions that were truncated below the position, although their topic is the same.

    The query continues at the offset to which they were truncated. Records after it are new, and records
    before it were read once already.
    """
    return [
        f"{partition} was read up to offset {start[partition]} and its log was truncated to offset "
        f"{end[partition]}, as by an unclean leader election, or the query was told to start beyond its end"
        for partition in sorted(start)
        if end.get(partition, start[partition]) < start[partition]
    ]


def first_batch_start(
    start: PartitionOffsets, end: PartitionOffsets, *, may_move: bool
) -> dict[TopicPartition, int]:
    """The start of the very first batch of a stream, if the batch runs again after a crash.

    The checkpoint has its end and not its start, so the start is looked up again. Partitions that were
    added since belong to the next batch. A start that `may_move`, as the end of a topic does, was where the
    batch ends (planner.StreamPlanner).
    """
    return {
        partition: min(offset, end[partition]) if may_move else offset
        for partition, offset in start.items()
        if partition in end
    }


def plan_batch(
    start: PartitionOffsets, end: PartitionOffsets, earliest: PartitionOffsets, latest: PartitionOffsets
) -> ReadPlan:
    """The ranges of a batch read, limited to the offsets that exist."""
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for partition in sorted(end):
        first, last = start[partition], end[partition]
        if first > last:
            raise ConfigError(
                f"{partition} is to be read from offset {first} to {last}: its start lies behind its end"
            )
        if first < earliest[partition] and first < last:
            losses.append(
                f"offset {first} of {partition} is gone, retention removed it; "
                f"its records begin at offset {earliest[partition]}"
            )
        if last > latest[partition]:
            losses.append(f"{partition} is to be read to offset {last} and ends at {latest[partition]}")
        low, high = max(first, earliest[partition]), min(last, latest[partition])
        ranges.append(OffsetRange(partition, Offset(low), Offset(high)))
    return ReadPlan([each for each in ranges if each.size > 0], losses)


def with_topic_ids(ranges: Iterable[OffsetRange], ids: Mapping[str, TopicId]) -> list[OffsetRange]:
    return [each._replace(topic_id=ids.get(each.partition.topic, NO_TOPIC_ID)) for each in ranges]


def split_ranges(
    ranges: Iterable[OffsetRange], *, tasks_min: int | None, records_max: int | None
) -> list[OffsetRange]:
    """Split large ranges: none has more than `records_max` offsets, and there are about `tasks_min` in
    all.
    """
    pieces = [each for each in ranges if each.size > 0]
    if records_max is not None:
        pieces = [part for each in pieces for part in _cut(each, -(-each.size // records_max))]
    if tasks_min is None or len(pieces) >= tasks_min:
        return pieces
    total = sum(each.size for each in pieces)
    # Ranges that are too small to be split are not counted when tasks are distributed.
    large = [each for each in pieces if _share(each.size, total, tasks_min) > 1]
    large_total = sum(each.size for each in large)
    tasks = max(tasks_min - (len(pieces) - len(large)), 1)
    counts = {each: _share(each.size, large_total, tasks) for each in large}
    return [part for each in pieces for part in _cut(each, counts.get(each, 1))]


def _share(size: int, total: int, tasks: int) -> int:
    return max(round(size / total * tasks), 1)


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Split a range into `count` parts, or into one for each offset if it has fewer."""
    count = min(count, whole.size)
    edges = [whole.start + whole.size * part // count for part in range(count + 1)]
    return [whole._replace(start=Offset(low), end=Offset(high)) for low, high in pairwise(edges)]


# Limits of one trigger


def available(
    start: PartitionOffsets, latest: PartitionOffsets, earliest: PartitionOffsets
) -> dict[TopicPartition, int]:
    """The number of offsets between start and end, for partitions that have any."""
    begins = {partition: start.get(partition, earliest.get(partition, 0)) for partition in latest}
    sizes = {partition: latest[partition] - begins[partition] for partition in latest}
    return {partition: size for partition, size in sizes.items() if size > 0}


def limit_offsets(
    start: PartitionOffsets, latest: PartitionOffsets, waiting: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """The end of a batch: up to `most` offsets beyond `start`, divided in proportion to what is available.

    No partition is left out for ever.
    """
    if sum(waiting.values()) <= most:
        return dict(latest)
    # The sum of positions differs in each batch, so that other partitions are chosen next time.
    allowed = _allot(waiting, most, turn=sum(start.values()))
    return {
        partition: end - waiting[partition] + allowed[partition] if partition in waiting else end
        for partition, end in latest.items()
    }


def _allot(waiting: Mapping[TopicPartition, int], most: int, *, turn: int) -> dict[TopicPartition, int]:
    """Divide `most` units, at least one for each partition.

    If there are fewer units, some partitions get one now, and others in a later batch.
    """
    partitions = sorted(waiting)
    if most < len(partitions):
        first = turn % len(partitions)
        chosen = (partitions[first:] + partitions[:first])[:most]
        return {partition: int(partition in chosen) for partition in partitions}
    total = sum(waiting.values())
    spare = most - len(partitions)
    allowed = {partition: 1 + spare * (waiting[partition] - 1) // total for partition in partitions}
    rounded_off = most - sum(allowed.values())
    for partition in sorted(partitions, key=lambda each: allowed[each] - waiting[each]):
        more = min(rounded_off, waiting[partition] - allowed[partition])
        allowed[partition] += more
        rounded_off -= more
    return allowed


def offsets_within_bytes(
    waiting: Mapping[TopicPartition, int], record_bytes: Mapping[TopicPartition, float], most: int
) -> int:
    """The number of offsets that take about `most` bytes.

    At least one, because otherwise the stream would stall.
    """
    total = sum(waiting.values())
    weight = sum(size * record_bytes.get(partition, 0.0) for partition, size in waiting.items())
    return total if weight <= most else max(int(total * most / weight), 1)
