"""A flipped bit is never served, wherever it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.protocol.batches import LEADER_EPOCH_AT
from tests.unit.log.log_support import (
    FOLDER,
    append,
    batches,
    checkpoint,
    flip,
    flush,
    new_disk,
    new_log,
    reopened,
)

FIRST = f"{FOLDER}/{0:020d}.log"
LEADER_EPOCH = range(LEADER_EPOCH_AT, LEADER_EPOCH_AT + 4)
"""Outside the checksum and without a neighbour that would tell, here as in Kafka."""


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 5), st.integers(0, 99), st.sampled_from((1, 16, 128)), st.booleans())
def test_below_the_recovery_point_it_is_reported(number: int, at: int, bit: int, rolled: bool) -> None:
    disk = new_disk()
    log = new_log(disk, index_interval_bytes=150)
    for _ in range(6):
        append(log, [bytes(30)])
    if rolled:
        log.roll()
        append(log, [bytes(30)])
    checkpoint(log)
    size = len(batches(log)[0])
    at %= size
    if at in LEADER_EPOCH:
        return
    flip(disk, FIRST, number * size + at, bit)
    with pytest.raises(CorruptData):
        batches(reopened(disk, index_interval_bytes=150).log)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(0, 99), st.sampled_from((1, 16, 128)))
def test_above_it_the_log_ends_before_it(number: int, at: int, bit: int) -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, [bytes(30)])
    checkpoint(log)
    for _ in range(5):
        append(log, [bytes(30)])
    flush(log)
    before = batches(log)
    at %= len(before[0])
    if at in LEADER_EPOCH:
        return
    flip(disk, FIRST, number * len(before[0]) + at, bit)
    assert batches(reopened(disk).log) == before[:number]
