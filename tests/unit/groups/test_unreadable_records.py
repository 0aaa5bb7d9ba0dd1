"""An offset that cannot be read is not the same as none."""

import pytest

from penstock.coordinator.outcome import CommandOutcome, Now, StateRecord
from penstock.groups.records import (
    ConsumerGroupMemberMetadataKey,
    GroupMetadataKey,
    OffsetCommitKey,
    encode_key,
)
from penstock.limits import DAY_MS
from penstock.types import TopicPartition
from tests.unit.groups.test_groups_bounds import START, GroupsHarness, places

ORDERS_0 = TopicPartition("orders", 0)
OFFSET = encode_key(OffsetCommitKey("g", "orders", 0))
NEWER_VERSION = b"\x00\x05" + bytes(20)
DAMAGED = b"\x00\x04" + b"\xff" * 5
YEAR_LATER = Now(START.wall_ms + 365 * DAY_MS, START.monotonic + 365 * DAY_MS / 1000)


def loaded(*records: StateRecord) -> GroupsHarness:
    harness = GroupsHarness()
    harness.log += records
    harness.load(START)
    return harness


@pytest.mark.parametrize("value", [NEWER_VERSION, DAMAGED, b"", b"\x00"])
def test_an_offset_that_cannot_be_read_is_told_apart_from_none(value: bytes) -> None:
    harness = loaded(StateRecord(OFFSET, value))
    assert list(harness.groups.unreadable_offsets("g")) == [ORDERS_0]
    assert list(harness.groups.names()) == ["g"]
    (what,) = harness.groups.unreadable()
    assert "g" in what
    assert "orders-0" in what


def test_a_new_commit_or_a_deletion_makes_it_readable_again() -> None:
    for mend in (places(1), None):
        harness = loaded(StateRecord(OFFSET, DAMAGED))
        if mend is not None:
            harness.commit("g", mend)
        else:
            deletion = harness.groups.delete_offsets("g", [ORDERS_0])
            harness.take([CommandOutcome(deletion.records)])
        assert list(harness.groups.unreadable_offsets("g")) == []
        harness.load(START)
        assert harness.groups.unreadable() == ()


def test_what_is_newer_than_a_readable_offset_counts_even_if_it_cannot_be_read() -> None:
    harness = GroupsHarness()
    harness.commit("g", places(1))
    harness.log.append(StateRecord(OFFSET, DAMAGED))
    harness.load(START)
    assert list(harness.groups.unreadable_offsets("g")) == [ORDERS_0]


def test_a_group_can_be_deleted_with_what_cannot_be_read_of_it() -> None:
    member = encode_key(ConsumerGroupMemberMetadataKey("g", "m"))
    classic = encode_key(GroupMetadataKey("g"))
    harness = loaded(*(StateRecord(key, DAMAGED) for key in (OFFSET, member, classic)))
    assert len(harness.groups.unreadable()) == 3
    harness.take([CommandOutcome(harness.groups.delete_group("g", START).records)])
    harness.load(START)
    assert (harness.groups.unreadable(), list(harness.groups.names())) == ((), [])


def test_time_takes_nothing_of_a_group_whose_members_cannot_be_read() -> None:
    """It may have been used yesterday: that is among what cannot be read."""
    harness = GroupsHarness()
    harness.commit("g", places(1))
    harness.commit("h", places(1))
    harness.log.append(StateRecord(encode_key(GroupMetadataKey("g")), DAMAGED))
    harness.load(START)
    harness.take(harness.groups.expire(YEAR_LATER))
    assert list(harness.groups.names()) == ["g"]


def test_an_offset_that_cannot_be_read_does_not_expire_but_goes_with_its_topic() -> None:
    harness = loaded(StateRecord(OFFSET, DAMAGED))
    harness.take(harness.groups.expire(YEAR_LATER))
    assert list(harness.groups.unreadable_offsets("g")) == [ORDERS_0]
    harness.topics = harness.topics._replace(by_name={}, by_id={})
    harness.groups.schedule_expiry_scan(YEAR_LATER)
    harness.take(harness.groups.expire(Now(YEAR_LATER.wall_ms, YEAR_LATER.monotonic + 100)))
    assert list(harness.groups.names()) == []


def test_records_of_newer_software_are_passed_over_and_a_broken_key_is_not() -> None:
    harness = loaded(StateRecord(b"\x00\x63whatever", b"x"), StateRecord(b"\x00\x01\x00", b"x"))
    (what,) = harness.groups.unreadable()
    assert "000100" in what


def test_the_expiry_that_a_client_asked_for_does_not_cost_the_id_of_the_topic() -> None:
    harness = GroupsHarness()
    ((partition, committed),) = places(1)
    asked = committed.__class__(
        committed.offset, committed.leader_epoch, "note", START.wall_ms, START.wall_ms + 5, committed.topic_id
    )
    harness.replay_commits("g", [type(places(1)[0])(partition, asked)])
    harness.load(START)
    assert harness.groups.offsets.find("g", "orders", 0) == asked
