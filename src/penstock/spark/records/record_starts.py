"""The position of each record in its batch, which is the only part of decoding that is sequential.

Each record begins with its length, so the next one is found only from the one before. Following that chain
in Python costs more than all the rest of decoding. Instead many chains are followed in step, with one numpy
operation for all of them:

    batch      |----------------------------------------|   |------|   |------|
    lanes      |=========>|=========>|========>|=======>|   |=====>|   |=====>|

Every batch is a lane. A large batch is split into several lanes at positions where a record seems to begin:
a length, then the attributes byte, which is always 0, and the same again where that length leads, twice.

Rule 1: The result of lanes is accepted only if it is one chain: each record ends where the next begins, the
        first begins and the last ends with its batch, and there are as many as in the header. Then every
        guess on the way was right.
Rule 2: A batch whose lanes do not form a chain is read record by record. A failure there is CorruptData.
Rule 3: No input makes this code hold more positions than the headers announce records. That number is first
        checked against the smallest size of a record.
"""

from typing import Final, NamedTuple

import numpy as np

from penstock.errors import CorruptData
from penstock.spark.records.binary_extraction import overlapping_elements
from penstock.spark.records.varints import (
    PAIR_VALUES,
    BoolArray,
    ByteArray,
    IntArray,
    read_varint,
    read_varint_at_each,
)

RECORD_BYTES_MIN = 7
"""Seven fields that take at least one byte each."""

_WINDOW_BYTES_MAX = 4096

_CONTINUES = 0x80
_LENGTH_MIN = 2 * (RECORD_BYTES_MIN - 1)
"""The length of the shortest record, as a varint. Anything less is rejected at once: a megabyte of zeros
would be a million records.
"""


class LaneSizes(NamedTuple):
    """Number and length of lanes that are worth their cost."""

    lanes_min: int = 16
    """Fewer lanes are followed one by one: a numpy step costs about as much as ten of Python."""
    steps_at_once: int = 8
    lane_records: int = 40


LANE_SIZES: Final = LaneSizes()


class Payloads(NamedTuple):
    """The records of some batches in one buffer, one batch after the other."""

    raw: ByteArray
    view: memoryview
    """A view of the same bytes."""
    start: IntArray
    end: IntArray
    record_count: IntArray
    base_offset: IntArray


class RecordSpans(NamedTuple):
    """All records of the payloads, in order."""

    body: IntArray
    """The position behind the length of each record."""
    end: IntArray


def frame_records(payloads: Payloads, lanes: LaneSizes = LANE_SIZES) -> RecordSpans:
    """Find all records. CorruptData if the records do not fill their batches exactly."""
    room = (payloads.end - payloads.start) // RECORD_BYTES_MIN
    _raise_corrupt_if(payloads, payloads.record_count > room, "announces more records than it can hold")
    starts = _starts_by_lanes(payloads, lanes)
    walked = np.zeros(len(payloads.start), np.bool_)
    while True:
        framed, wrong = _frame_chains(payloads, starts)
        if not wrong.any():
            return framed
        # A batch that was read record by record and still has errors is corrupt.
        _raise_corrupt_if(payloads, wrong & walked, "has records that do not fit it")
        starts = _with_batches_walked(payloads, starts, wrong)
        walked |= wrong


def _frame_chains(payloads: Payloads, starts: IntArray) -> tuple[RecordSpans, BoolArray]:
    """The records that begin there, and the batches in which they do not form one chain."""
    firsts, lasts = _rows_of_batches(payloads, starts)
    wrong = lasts - firsts != payloads.record_count
    filled = lasts > firsts
    wrong |= ~filled & (payloads.end != payloads.start)
    wrong[filled] |= starts[firsts[filled]] != payloads.start[filled]
    try:
        lengths, body = read_varint_at_each(payloads.raw, starts)
    except CorruptData:
        # A wrong guess may lead anywhere. Whether the records themselves are corrupt is known after the
        # walk.
        return RecordSpans(starts, starts), np.ones(len(wrong), np.bool_)
    ends = body + lengths
    expected = np.empty_like(starts)
    expected[:-1] = starts[1:]
    expected[lasts[filled] - 1] = payloads.end[filled]
    astray = (expected != ends) | (lengths < 0)
    if astray.any():
        wrong[np.searchsorted(payloads.end, starts[astray], side="right")] = True
    return RecordSpans(body, ends), wrong


def _rows_of_batches(payloads: Payloads, starts: IntArray) -> tuple[IntArray, IntArray]:
    return np.searchsorted(starts, payloads.start), np.searchsorted(starts, payloads.end)


def _raise_corrupt_if(payloads: Payloads, wrong: BoolArray, what: str) -> None:
    if wrong.any():
        raise CorruptData(f"the batch at offset {payloads.base_offset[wrong.argmax()]} {what}")


# One by one ---------------------------------------------------------------------------------------


def _with_batches_walked(payloads: Payloads, starts: IntArray, chosen: BoolArray) -> IntArray:
    firsts, lasts = _rows_of_batches(payloads, starts)
    parts = [starts[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    for batch in chosen.nonzero()[0].tolist():
        start, end = int(payloads.start[batch]), int(payloads.end[batch])
        found, _ = _walk(payloads.view, start, end, int(payloads.record_count[batch]))
        parts[batch] = np.array(found, np.int64)
    return np.concatenate(parts)


def _walk(view: memoryview, at: int, end: int, count_max: int) -> tuple[list[int], int]:
    """The positions of the records from `at` to `end`, and where the last one ends. Exact."""
    found: list[int] = []
    try:
        while at < end and len(found) < count_max:
            found.append(at)
            first = view[at]
            if first < _CONTINUES:
                if first < _LENGTH_MIN:
                    raise CorruptData(f"a record of {first >> 1} bytes is too short to be one")
                at += 1 + (first >> 1)
            elif (second := view[at + 1]) < _CONTINUES:
                at += 2 + ((first & 0x7F) >> 1) + (second << 6)
            else:
                length, body = read_varint(view, at)
                if length < 0:
                    raise CorruptData(f"a record of {length} bytes")
                at = body + length
    except IndexError:
        raise CorruptData("the batch ends inside a record") from None
    return found, at


# In step ------------------------------------------------------------------------------------------


def _steps_of_pairs() -> IntArray:
    """The distance to the next record, from the first two bytes of this one.

    0 if two bytes do not suffice.
    """
    pairs = np.arange(1 << 16)
    first, second = pairs & 0xFF, pairs >> 8
    short = first < _CONTINUES
    # A negative length is invalid. Its magnitude is used here, and the check of the chain finds the error.
    steps = np.where(short, 1, 2) + np.maximum(PAIR_VALUES, -1 - PAIR_VALUES)
    return np.where(np.where(short, first >= _LENGTH_MIN, second < _CONTINUES), steps, 0)


_STEPS = _steps_of_pairs()


def _starts_by_lanes(payloads: Payloads, lanes: LaneSizes) -> IntArray:
    with_records = payloads.record_count > 0
    begins = np.concatenate((payloads.start[with_records], _guessed_starts(payloads, lanes)))
    begins.sort()
    batch_ends = payloads.end[np.searchsorted(payloads.end, begins, side="right")]
    ends = batch_ends.copy()
    ends[:-1] = np.minimum(batch_ends[:-1], begins[1:])
    records = int(payloads.record_count.sum())
    found, at, ends = _in_step(payloads.raw, begins, ends, records, lanes)
    rest: list[int] = []
    for lane_at, lane_end in zip(at.tolist(), ends.tolist(), strict=True):
        try:
            rest += _walk(payloads.view, lane_at, lane_end, records)[0]
        except CorruptData:
            continue  # a wrong guess, or a corrupt batch: the batch will be read from its beginning
        if len(rest) > records:
            break
    starts = np.concatenate((*found, np.array(rest, np.int64)))
    starts.sort()
    return _without_repeats(starts)  # a lane that stopped at a long record has found it several times


def _without_repeats(ascending: IntArray) -> IntArray:
    repeats = ascending[1:] == ascending[:-1]
    return ascending[np.append(True, ~repeats)] if repeats.any() else ascending


def _in_step(
    raw: ByteArray, at: IntArray, ends: IntArray, records: int, lanes: LaneSizes
) -> tuple[list[IntArray], IntArray, IntArray]:
    """The records that the lanes found, and the positions and ends of lanes to be followed one by one."""
    found: list[IntArray] = []
    walked_at, walked_ends = [at[:0]], [ends[:0]]
    last = len(raw) - 2
    # A negative count means more positions than records, so guesses were wrong.
    while len(at) >= lanes.lanes_min and records >= 0:
        pairs = np.ndarray((len(raw) - 1,), "<u2", buffer=raw.data, strides=(1,))
        grid = np.empty((lanes.steps_at_once + 1, len(at)), np.int64)
        grid[0] = at
        for step in range(lanes.steps_at_once):
            here = grid[step]
            # Lanes that are done continue until all are. Only their reads must stay inside the buffer.
            np.add(here, _STEPS.take(pairs[np.minimum(here, last)]), out=grid[step + 1])
        inside = grid[:-1] < ends
        found.append(grid[:-1][inside])
        records -= len(found[-1])
        at = grid[-1]
        stuck = (at == grid[-2]) & (at < ends)
        if stuck.any():
            walked_at.append(at[stuck])
            walked_ends.append(ends[stuck])
        going = (at < ends) & ~stuck
        at, ends = at[going], ends[going]
    return found, np.concatenate((*walked_at, at)), np.concatenate((*walked_ends, ends))


# Guessing -----------------------------------------------------------------------------------------


def _guessed_starts(payloads: Payloads, lanes: LaneSizes) -> IntArray:
    """Positions inside large batches where a record seems to begin."""
    sizes = payloads.end - payloads.start
    record_bytes = int(sizes.sum()) // max(int(payloads.record_count.sum()), 1)
    # The window is wide enough for most records. If no record begins in a window, the lane before it is
    # longer.
    window, lane = record_bytes + record_bytes // 4 + 8, lanes.lane_records * record_bytes
    if window > _WINDOW_BYTES_MAX:
        return payloads.start[:0]
    large = (sizes > 2 * lane).nonzero()[0].tolist()
    targets = [np.arange(payloads.start[batch] + lane, payloads.end[batch] - lane, lane) for batch in large]
    if sum(len(target) for target in targets) < lanes.lanes_min:
        return payloads.start[:0]
    limits = np.repeat(payloads.end[large], [len(target) for target in targets])
    return _first_records(payloads.raw, np.concatenate(targets), limits, window)


def _first_records(raw: ByteArray, targets: IntArray, limits: IntArray, window: int) -> IntArray:
    """Position of the third of three records in a row, shortly behind each target and before its limit.

    The first is not used: bytes that happen to look like a record often lead to a real one, and from there
    on the chain is real too.
    """
    inside = targets + window <= len(raw)
    targets, limits = targets[inside], limits[inside]
    # The windows are examined as one array. A false match across the end of a window is removed below.
    windows = overlapping_elements(raw, window)[targets].view(np.uint8)
    places = _looks_like_record(windows[:-2], windows[1:-1], windows[2:]).nonzero()[0]
    rows, columns = np.divmod(places, window)
    at = targets[rows] + columns
    sound = np.ones(len(at), np.bool_)
    for _ in range(2):
        first, second = raw.take(at, mode="clip"), raw.take(at + 1, mode="clip")
        at = at + _STEPS.take(second.astype(np.uint16) << 8 | first)
        sound &= _looks_like_record(*(raw.take(at + index, mode="clip") for index in range(3)))
    sound &= at < limits[rows]
    rows, at = rows[sound], at[sound]
    return _without_repeats(at[np.append(True, rows[1:] != rows[:-1])[: len(at)]])


def _looks_like_record(first: ByteArray, second: ByteArray, third: ByteArray) -> BoolArray:
    """Whether these bytes may be a length, in one byte or two, and attributes."""
    sign_and_more = first & 0x81
    short: BoolArray = (sign_and_more == 0) & (first >= _LENGTH_MIN) & (second == 0)
    long: BoolArray = (sign_and_more == _CONTINUES) & (second < _CONTINUES) & (third == 0)
    return short | long
