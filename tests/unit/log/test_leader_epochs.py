"""Leader epochs and where each begins."""

import pytest

from penstock.errors import CorruptData
from penstock.log.leader_epochs import LeaderEpochs
from penstock.types import LeaderEpoch, Offset

END = Offset(100)


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs()
    for epoch, start in entries:
        assert made.assign(LeaderEpoch(epoch), Offset(start))
    return made


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (-1, -1)), (1, (1, 10)), (2, (1, 10)), (3, (3, 40)), (5, (5, 100)), (9, (5, 100))],
)
def test_an_epoch_ends_where_the_next_begins(asked: int, answer: tuple[int, int]) -> None:
    assert epochs((1, 0), (3, 10), (5, 40)).end_of(LeaderEpoch(asked), END) == answer


def test_an_epoch_is_assigned_once_and_never_goes_back() -> None:
    known = epochs((3, 10))
    assert not known.assign(LeaderEpoch(3), Offset(20))
    assert not known.assign(LeaderEpoch(2), Offset(30))
    assert known.latest == 3


def test_an_epoch_that_wrote_nothing_gives_way() -> None:
    known = epochs((1, 0), (2, 10))
    known.assign(LeaderEpoch(4), Offset(10))
    assert known.end_of(LeaderEpoch(2), END) == (1, 10)


def test_an_entry_at_the_end_of_the_log_goes_although_nothing_is_cut() -> None:
    """KAFKA-10706: such an entry made a follower truncate to its own end for ever."""
    known = epochs((1, 0), (2, 100))
    known.truncate_end(END)
    assert known.latest == 1
    assert known.end_of(LeaderEpoch(2), END) == (1, 100)


def test_the_epoch_that_covers_a_new_start_begins_there() -> None:
    known = epochs((1, 0), (3, 10), (5, 40))
    known.truncate_start(Offset(20))
    assert known.to_bytes() == b"0\n2\n3 20\n5 40\n"
    assert known.epoch_at(Offset(25)) == 3
    assert known.epoch_at(Offset(5)) == -1


def test_the_file_has_kafkas_form_and_comes_back() -> None:
    content = epochs((0, 0), (3, 1_200)).to_bytes()
    assert content == b"0\n2\n0 0\n3 1200\n"
    assert LeaderEpochs.from_bytes(content).to_bytes() == content


@pytest.mark.parametrize(
    "content", [b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\na b\n", b"\xff\xfe"]
)
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptData):
        LeaderEpochs.from_bytes(content)
