"""Which reports of followers a leader believes."""

from penstock.broker.replication.follower_contacts import FollowerContacts
from penstock.limits import FOLLOWER_SILENCE_MS_MAX

SILENCE_S = FOLLOWER_SILENCE_MS_MAX / 1000
TWO = frozenset({2})
NOBODY = frozenset[int]()


def test_a_report_counts_in_the_second_check_in_a_row() -> None:
    contacts = FollowerContacts()
    contacts.check([2, 3], NOBODY, 0.0)
    contacts.fetched(3, 1.0)
    assert contacts.check([2, 3], TWO, SILENCE_S) == (NOBODY, TWO)
    assert contacts.check([2, 3], TWO, SILENCE_S + 0.5) == (TWO, TWO)


def test_a_follower_that_fetches_is_not_believed() -> None:
    contacts = FollowerContacts()
    for tenth in range(100):
        contacts.fetched(2, tenth / 10)
        assert contacts.check([2], TWO, tenth / 10 + 1.0) == (NOBODY, NOBODY)


def test_silence_alone_means_nothing() -> None:
    contacts = FollowerContacts()
    assert [contacts.check([2], NOBODY, float(now)).cut_off for now in range(9)] == [NOBODY] * 9


def test_a_leader_that_was_paused_finds_fetches_before_it_believes() -> None:
    contacts = FollowerContacts()
    contacts.fetched(2, 0.0)
    contacts.check([2], NOBODY, 0.5)
    assert contacts.check([2], TWO, 60.0).cut_off == NOBODY
    contacts.fetched(2, 60.1)
    assert contacts.check([2], TWO, 60.5).cut_off == NOBODY
    assert contacts.check([2], TWO, 61.0).cut_off == NOBODY


def test_who_was_not_there_before_is_not_silent() -> None:
    contacts = FollowerContacts()
    contacts.check([3], NOBODY, 0.0)
    assert contacts.check([2, 3], TWO, 60.0).silent == {3}
