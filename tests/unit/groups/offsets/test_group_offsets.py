"""Offsets as records make them."""

from msgspec.structs import replace

from penstock.groups.offsets.committed_offsets import (
    CommittedOffsets,
    OffsetAndMetadata,
    PartitionCommit,
    commit_records,
    offset_tombstones,
)
from penstock.groups.records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    decode_key,
    encode_value,
)
from penstock.types import LeaderEpoch, Offset, TopicId, TopicPartition

ID = TopicId(bytes(range(16)))
COMMITTED = OffsetAndMetadata(Offset(42), LeaderEpoch(3), "état", 1_000, topic_id=ID)


def replay(offsets: CommittedOffsets, *commits: PartitionCommit, group: str = "g") -> None:
    for record in commit_records(group, commits):
        key = decode_key(record.key)
        offsets.replay(key, record.value)  # type: ignore[arg-type]


def test_a_commit_is_read_back_as_it_was_made() -> None:
    offsets = CommittedOffsets()
    replay(offsets, PartitionCommit(TopicPartition("orders", 7), COMMITTED))
    assert offsets.find("g", "orders", 7) == COMMITTED
    assert offsets.find("g", "orders", 6) is None
    assert offsets.find("other", "orders", 7) is None


def test_a_later_commit_takes_the_place_of_an_earlier_one_even_if_it_goes_back() -> None:
    offsets = CommittedOffsets()
    back = replace(COMMITTED, offset=Offset(1))
    replay(
        offsets,
        PartitionCommit(TopicPartition("orders", 7), COMMITTED),
        PartitionCommit(TopicPartition("orders", 7), back),
    )
    assert offsets.find("g", "orders", 7) == back


def test_a_group_whose_offsets_are_all_deleted_is_forgotten() -> None:
    offsets = CommittedOffsets()
    partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("other", 0)]
    replay(offsets, *(PartitionCommit(partition, COMMITTED) for partition in partitions))
    assert dict(offsets.partitions("g")).keys() == set(partitions)
    for record in offset_tombstones("g", partitions):
        key = decode_key(record.key)
        offsets.replay(key, record.value)  # type: ignore[arg-type]
    assert not offsets.has_any("g")
    assert list(offsets.groups()) == []


def test_deleting_what_is_not_there_changes_nothing() -> None:
    offsets = CommittedOffsets()
    for record in offset_tombstones("g", [TopicPartition("orders", 0)]):
        key = decode_key(record.key)
        offsets.replay(key, record.value)  # type: ignore[arg-type]
    assert not offsets.has_any("g")


def test_offsets_of_old_kafkas_are_understood() -> None:
    offsets = CommittedOffsets()
    offsets.replay(LegacyOffsetCommitKey("g", "t", 1), encode_value(LegacyOffsetCommitValue(9, "m", 5)))
    assert offsets.find("g", "t", 1) == OffsetAndMetadata(Offset(9), LeaderEpoch(-1), "m", 5)


def test_an_offset_belongs_to_its_topic_and_not_to_one_of_the_same_name() -> None:
    assert COMMITTED.is_for_topic(ID)
    assert not COMMITTED.is_for_topic(TopicId(b"x" * 16))
    assert replace(COMMITTED, topic_id=TopicId(bytes(16))).is_for_topic(ID)
