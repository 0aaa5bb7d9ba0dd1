"""What the benchmarks of groups make of what they see: frames, who held what, and who had to wait."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.clients import ClientFailed
from benchmarks.groups_commits import groups_in_all_shards, groups_in_one_shard
from benchmarks.groups_timeline import Event, Holdings, Kind, Receipt, kept, longest_pause
from benchmarks.groups_wire import SHARDS, CommitFrame, Exchange, exchange_all, fetch_frame
from penstock.coordinator.shard_placement import shard_of
from penstock.protocol.frames import decode_request, decode_response
from penstock.protocol.messages.offset_commit import OFFSET_COMMIT
from penstock.protocol.messages.offset_fetch import OFFSET_FETCH

SIZE_BYTES = 4
NUMBER = bytes(4)
INTERVAL_S = 0.1

# Frames


def test_one_shard_has_all_groups_of_the_first_measure_and_one_of_the_second() -> None:
    assert {shard_of(group, SHARDS) for groups in groups_in_one_shard() for group in groups} == {0}
    spread = [shard_of(group, SHARDS) for groups in groups_in_all_shards() for group in groups]
    assert sorted(spread) == list(range(SHARDS))


@pytest.mark.parametrize("offset", [0, 7, 2**40])
def test_a_commit_that_is_sent_again_carries_its_new_offset_for_every_partition(offset: int) -> None:
    frame = CommitFrame("some-group", "some-topic", 3)
    frame.at(123)
    question, answer = frame.at(offset)
    request = decode_request(OFFSET_COMMIT, 9, bytes(question[SIZE_BYTES:]))
    assert request.group_id == "some-group"
    assert [(each.partition_index, each.committed_offset) for each in request.topics[0].partitions] == [
        (0, offset),
        (1, offset),
        (2, offset),
    ]
    _, response = decode_response(OFFSET_COMMIT, 9, NUMBER + answer)
    assert [each.error_code for each in response.topics[0].partitions] == [0, 0, 0]


def test_the_offsets_of_many_groups_are_asked_for_at_once() -> None:
    question, answer = fetch_frame(["first", "second"], "some-topic", 2, 9)
    request = decode_request(OFFSET_FETCH, 9, bytes(question[SIZE_BYTES:]))
    assert [group.group_id for group in request.groups] == ["first", "second"]
    _, response = decode_response(OFFSET_FETCH, 9, NUMBER + answer)
    found = [each.committed_offset for group in response.groups for each in group.topics[0].partitions]
    assert found == [9, 9, 9, 9]


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """A server that takes one connection and says a piece whenever it is asked something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for piece in pieces:
                    connection.recv(4096)
                    connection.sendall(piece)
                while connection.recv(4096):
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def framed(number: int, answer: bytes) -> bytes:
    return (4 + len(answer)).to_bytes(4) + number.to_bytes(4) + answer


def asked(count: int) -> Iterator[Exchange]:
    return (Exchange(bytearray(20), b"well done") for _ in range(count))


def test_every_answer_is_counted_however_it_was_cut() -> None:
    first, second = framed(1, b"well done"), framed(2, b"well done")
    with answering(first + second[:5], second[5:]) as bootstrap:
        assert exchange_all(bootstrap, (os.getpid(),), [asked(2)], 1).work == 2


@pytest.mark.parametrize("wrong", [framed(1, b"not found"), framed(7, b"well done")])
def test_an_answer_that_is_not_the_right_one_ends_the_benchmark(wrong: bytes) -> None:
    with answering(wrong) as bootstrap, pytest.raises(ClientFailed, match="request 1 was answered"):
        exchange_all(bootstrap, (os.getpid(),), [asked(1)], 1)


# Who held what


def holdings(partitions: int, *held: tuple[int, ...]) -> Holdings:
    """Members 0, 1, ... have been given these."""
    found = Holdings(partitions)
    for member, mine in enumerate(held):
        found.note(Event(1.0, member, Kind.ASSIGNED, mine))
    return found


@pytest.mark.parametrize(
    ("held", "is_stable"),
    [
        ([(0, 1), (2, 3)], True),
        ([(0, 1, 2), (3,)], False),  # one has less than its share
        ([(0, 1), (2,)], False),  # one partition has no holder
        ([(0, 1), (1, 2, 3)], False),  # one has two
    ],
)
def test_a_group_is_stable_when_all_is_held_once_and_shared(
    held: list[tuple[int, ...]], is_stable: bool
) -> None:
    assert holdings(4, *held).is_stable({0, 1}) is is_stable


def test_a_group_is_not_stable_before_the_new_member_has_its_share() -> None:
    group = holdings(4, (0, 1), (2, 3))
    assert not group.is_stable({0, 1, 2})
    group.note(Event(2.0, 0, Kind.REVOKED, (1,)))
    group.note(Event(3.0, 2, Kind.ASSIGNED, (1,)))
    assert group.is_stable({0, 1, 2})
    assert group.changed_at == 3.0


def test_what_a_member_had_that_left_is_free() -> None:
    group = holdings(4, (0, 1), (2, 3))
    group.note(Event(2.0, 1, Kind.LEFT))
    group.note(Event(3.0, 0, Kind.ASSIGNED, (2, 3)))
    assert group.is_stable({0})
    assert group.holders() == {0: 0, 1: 0, 2: 0, 3: 0}


def test_news_that_change_nothing_do_not_delay_the_end() -> None:
    group = holdings(4, (0, 1), (2, 3))
    group.note(Event(9.0, 0, Kind.ASSIGNED, ()))
    assert group.changed_at == 1.0


def test_a_partition_is_kept_when_its_holder_is_the_same_afterwards() -> None:
    assert kept({0: 1, 1: 1, 2: 2}, {0: 1, 1: 3, 2: 2}) == {0, 2}


# Who had to wait


def steady(count: int, *, stall_at: int = -1, stall_s: float = 0.0, partition: int = 0) -> list[Receipt]:
    """A record every interval, each received 10 ms later; from one of them on nothing comes for a while."""
    sent = [number * INTERVAL_S for number in range(count)]
    resumed = sent[stall_at] + stall_s if stall_at >= 0 else 0.0
    return [
        Receipt(partition, number, at, max(at, resumed if number >= stall_at else 0.0) + 0.01)
        for number, at in enumerate(sent)
    ]


def pause_s(receipts: list[Receipt], began: float, ended: float) -> float:
    return longest_pause(receipts, {0}, (began, ended), INTERVAL_S)


def test_records_that_keep_their_pace_make_no_pause() -> None:
    assert pause_s(steady(50), 0.0, 4.95) == pytest.approx(0.0, abs=0.001)


def test_a_stall_is_as_long_as_the_first_record_after_it_was_late() -> None:
    assert pause_s(steady(50, stall_at=20, stall_s=1.5), 1.0, 4.95) == pytest.approx(1.5)


def test_only_pauses_that_end_in_the_window_count() -> None:
    assert pause_s(steady(50, stall_at=5, stall_s=0.5), 2.0, 4.95) == pytest.approx(0.0, abs=0.001)


def test_a_producer_that_stumbles_makes_no_pause() -> None:
    receipts = [Receipt(0, 0, 0.0, 0.01), Receipt(0, 1, 3.0, 3.01), Receipt(0, 2, 3.1, 3.11)]
    assert pause_s(receipts, 0.0, 3.2) == pytest.approx(0.0, abs=0.001)


def test_a_record_that_is_delivered_again_hides_no_pause_and_makes_none() -> None:
    receipts = [Receipt(0, 0, 0.0, 0.01), Receipt(0, 0, 0.0, 0.5), Receipt(0, 1, 0.1, 1.01)]
    assert pause_s(receipts, 0.0, 1.1) == pytest.approx(0.9)


def test_a_pause_that_has_not_ended_counts_as_far_as_it_was_seen() -> None:
    assert pause_s(steady(10), 0.5, 3.01) == pytest.approx(2.0, abs=0.001)
    assert pause_s([], 0.5, 3.0) == 2.5


def test_the_longest_of_several_partitions_counts() -> None:
    receipts = steady(50) + steady(50, stall_at=20, stall_s=0.7, partition=1)
    assert longest_pause(receipts, {0, 1}, (1.0, 4.95), INTERVAL_S) == pytest.approx(0.7)
    assert longest_pause(receipts, {0}, (1.0, 4.95), INTERVAL_S) == pytest.approx(0.0, abs=0.001)
