"""When a committed offset is forgotten, and when a clock is not believed."""

import pytest

from penstock.coordinator.outcome import Now
from penstock.groups.offsets.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    PartitionCommit,
    commit_records,
)
from penstock.groups.offsets.expiry_rules import (
    JUMP_DISTRUST_MS,
    UNKNOWN_TIME_MS,
    GroupFacts,
    TrustedClock,
    expired_partitions,
    parse_time_record,
    time_record,
)
from penstock.groups.records import UnknownKey, decode_key
from penstock.limits import DAY_MS, HOUR_MS
from penstock.types import LeaderEpoch, Offset, TopicPartition

START = Now(1_700_000_000_000, 1_000.0)
RETENTION_MS = 7 * DAY_MS
ORDERS = TopicPartition("orders", 0)


def later(now: Now, ms: int) -> Now:
    return Now(now.wall_ms + ms, now.monotonic + ms / 1000)


def offsets_with(expire_ms: int = -1, committed_ms: int = START.wall_ms) -> CommittedOffsets:
    offsets = CommittedOffsets()
    committed = OffsetAndMetadata(Offset(5), LeaderEpoch(1), "note", committed_ms, expire_ms)
    for record in commit_records("g", [PartitionCommit(ORDERS, committed)]):
        key = decode_key(record.key)
        offsets.replay(key, record.value)  # type: ignore[arg-type]
    return offsets


def is_expired(offsets: CommittedOffsets, facts: GroupFacts, now_ms: int) -> bool:
    """As `forgetting` asks: of what members subscribe to nothing expires."""
    if facts.subscribes(ORDERS.topic):
        return False
    partitions = offsets.of_group("g")[ORDERS.topic]
    return list(expired_partitions(partitions, facts, now_ms, RETENTION_MS)) == [ORDERS.partition]


def test_offsets_of_a_group_without_members_expire_a_retention_after_commit() -> None:
    offsets, facts = offsets_with(), GroupFacts(None)
    assert not is_expired(offsets, facts, START.wall_ms + RETENTION_MS - 1)
    assert is_expired(offsets, facts, START.wall_ms + RETENTION_MS)


def test_offsets_of_a_group_that_became_empty_live_on_from_then() -> None:
    facts = GroupFacts(START.wall_ms + 30 * DAY_MS)
    offsets = offsets_with()
    assert not is_expired(offsets, facts, START.wall_ms + 30 * DAY_MS + RETENTION_MS - 1)
    assert is_expired(offsets, facts, START.wall_ms + 30 * DAY_MS + RETENTION_MS)


def test_what_members_subscribe_to_is_never_forgotten_and_other_topics_are() -> None:
    offsets, long_after = offsets_with(), START.wall_ms + 90 * DAY_MS
    assert not is_expired(offsets, GroupFacts(None, frozenset({"orders"})), long_after)
    assert is_expired(offsets, GroupFacts(None, frozenset({"other"})), long_after)


def test_a_client_may_say_itself_how_long_an_offset_is_good() -> None:
    offsets = offsets_with(expire_ms=START.wall_ms + HOUR_MS)
    assert not is_expired(offsets, GroupFacts(None), START.wall_ms + HOUR_MS - 1)
    assert is_expired(offsets, GroupFacts(None), START.wall_ms + HOUR_MS)


def test_a_clock_that_runs_evenly_is_believed() -> None:
    clock = TrustedClock()
    now = START
    for _ in range(10):
        assert clock.read(now) == now.wall_ms
        now = later(now, DAY_MS)


def test_a_jump_of_thirty_days_is_not_believed_for_a_day() -> None:
    clock = TrustedClock()
    clock.read(START)
    jumped = Now(START.wall_ms + 30 * DAY_MS, START.monotonic + 1)
    assert clock.read(jumped) == START.wall_ms + 1_000
    almost = later(jumped, JUMP_DISTRUST_MS - 1_000)
    assert clock.read(almost) == START.wall_ms + JUMP_DISTRUST_MS
    after = later(almost, 2_000)
    assert clock.read(after) == after.wall_ms


def test_a_jump_that_is_put_right_leaves_nothing_behind() -> None:
    clock = TrustedClock()
    clock.read(START)
    clock.read(Now(START.wall_ms + 30 * DAY_MS, START.monotonic + 1))
    corrected = Now(START.wall_ms + 2_000, START.monotonic + 2)
    assert clock.read(corrected) == corrected.wall_ms
    assert clock.read(later(corrected, HOUR_MS)) == corrected.wall_ms + HOUR_MS


def test_a_clock_put_back_and_forth_never_runs_ahead() -> None:
    clock = TrustedClock()
    clock.read(START)
    back = Now(START.wall_ms - 10 * DAY_MS, START.monotonic + 1)
    assert clock.read(back) == back.wall_ms
    again = Now(START.wall_ms + 2_000, START.monotonic + 2)
    assert clock.read(again) <= again.wall_ms


def test_a_restart_with_the_clock_set_ahead_is_a_jump_like_any_other() -> None:
    clock = TrustedClock()
    restarted = Now(START.wall_ms + 30 * DAY_MS, 5.0)
    clock.restore(START.wall_ms, restarted)
    assert clock.read(later(restarted, 2_000)) == START.wall_ms + 2_000
    after = later(restarted, JUMP_DISTRUST_MS + 1)
    assert clock.read(after) == after.wall_ms


def test_a_restart_with_the_clock_set_back_brings_nothing_forward() -> None:
    clock = TrustedClock()
    restarted = Now(START.wall_ms - 30 * DAY_MS, 5.0)
    clock.restore(START.wall_ms, restarted)
    assert clock.read(later(restarted, 1_000)) == restarted.wall_ms + 1_000
    put_right = Now(START.wall_ms + 2_000, 7.0)
    assert clock.read(put_right) <= put_right.wall_ms
    assert clock.read(later(put_right, 1_000)) - START.wall_ms < RETENTION_MS


def test_of_several_logs_the_one_that_was_written_last_says_the_time() -> None:
    clock = TrustedClock()
    restarted = Now(START.wall_ms + 30 * DAY_MS, 5.0)
    for trusted_ms in (START.wall_ms - 90 * DAY_MS, START.wall_ms, UNKNOWN_TIME_MS):
        clock.restore(trusted_ms, restarted)
    assert clock.read(restarted) == START.wall_ms


def test_a_short_pause_is_no_jump() -> None:
    clock = TrustedClock()
    restarted = Now(START.wall_ms + 30_000, 5.0)
    clock.restore(START.wall_ms, restarted)
    assert clock.read(restarted) == restarted.wall_ms


def test_a_log_that_is_loaded_again_after_a_jump_does_not_make_it_believed() -> None:
    clock = TrustedClock()
    clock.read(START)
    jumped = Now(START.wall_ms + 30 * DAY_MS, START.monotonic + 1)
    clock.read(jumped)
    clock.restore(jumped.wall_ms, later(jumped, 1_000))  # what was committed since the jump
    assert clock.read(later(jumped, 2_000)) == START.wall_ms + 3_000


def test_a_log_that_does_not_say_the_time_makes_nothing_older_for_a_day() -> None:
    clock = TrustedClock()
    clock.restore(UNKNOWN_TIME_MS, START)
    assert clock.read(START) == UNKNOWN_TIME_MS
    after = later(START, JUMP_DISTRUST_MS + 1)
    assert clock.read(after) == after.wall_ms


def test_a_clock_that_is_behind_does_not_make_what_is_kept_look_old() -> None:
    clock = TrustedClock()
    in_1970 = Now(5_000, 1.0)
    clock.restore(START.wall_ms, in_1970)
    hour_later = later(in_1970, HOUR_MS)
    clock.read(hour_later)
    assert START.wall_ms < clock.earliest(hour_later) <= START.wall_ms + HOUR_MS


def test_a_clock_that_is_not_believed_does_not_make_what_is_kept_look_younger() -> None:
    clock = TrustedClock()
    clock.read(START)
    clock.read(Now(START.wall_ms + 30 * DAY_MS, START.monotonic + 1))
    assert clock.earliest(Now(START.wall_ms + 2_000, START.monotonic + 2)) <= START.wall_ms + 2_000


def test_the_time_that_is_believed_is_read_as_it_was_kept() -> None:
    assert parse_time_record(time_record(START.wall_ms).value) == START.wall_ms
    key = decode_key(time_record(0).key)
    assert isinstance(key, UnknownKey), "as Kafka takes it too"


@pytest.mark.parametrize("value", [None, b"", b"\0\0", b"\0\1" + bytes(8), b"\0\0" + b"\xff" * 8, bytes(11)])
def test_a_time_that_cannot_be_read_says_nothing(value: bytes | None) -> None:
    assert parse_time_record(value) == UNKNOWN_TIME_MS
