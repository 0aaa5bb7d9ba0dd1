"""Which reports of followers a leader believes."""

from penstock.broker.replication.follower_contacts import FollowerContacts
from penstock.limits import FOLLOWER_SILENCE_MS_MAX, REPLICA_IDLE_WAIT_MS, REPLICA_WAIT_MS

WAIT_MS = REPLICA_WAIT_MS
SILENCE_S = FOLLOWER_SILENCE_MS_MAX / 1000
TWO = frozenset({2})
NOBODY = frozenset[int]()


def test_a_report_counts_in_the_second_check_in_a_row() -> None:
    contacts = FollowerContacts()
    contacts.check([2, 3], NOBODY, 0.0)
    contacts.fetched(3, 1.0, WAIT_MS)
    assert contacts.check([2, 3], TWO, SILENCE_S) == (NOBODY, TWO)
    assert contacts.check([2, 3], TWO, SILENCE_S + 0.5) == (TWO, TWO)


def test_a_follower_that_fetches_is_not_believed() -> None:
    contacts = FollowerContacts()
    for tenth in range(100):
        contacts.fetched(2, tenth / 10, WAIT_MS)
        assert contacts.check([2], TWO, tenth / 10 + 1.0) == (NOBODY, NOBODY)


def test_a_follower_whose_fetch_waits_for_records_is_not_silent() -> None:
    contacts = FollowerContacts()
    for tenth in range(200):
        if tenth % 20 == 0:
            contacts.fetched(2, tenth / 10, REPLICA_IDLE_WAIT_MS)
        assert contacts.check([2], TWO, tenth / 10) == (NOBODY, NOBODY)
    last_wait_ends_s = 18.0 + REPLICA_IDLE_WAIT_MS / 1000
    contacts.check([2], TWO, last_wait_ends_s + SILENCE_S)
    assert contacts.check([2], TWO, last_wait_ends_s + SILENCE_S + 0.5) == (TWO, TWO)


def test_silence_alone_means_nothing() -> None:
    contacts = FollowerContacts()
    assert [contacts.check([2], NOBODY, float(now)).cut_off for now in range(9)] == [NOBODY] * 9


def test_a_leader_that_was_paused_finds_fetches_before_it_believes() -> None:
    contacts = FollowerContacts()
    contacts.fetched(2, 0.0, WAIT_MS)
    contacts.check([2], NOBODY, 0.5)
    assert contacts.check([2], TWO, 60.0).cut_off == NOBODY
    contacts.fetched(2, 60.1, WAIT_MS)
    assert contacts.check([2], TWO, 60.5).cut_off == NOBODY
    assert contacts.check([2], TWO, 61.0).cut_off == NOBODY


def test_who_was_not_there_before_is_not_silent() -> None:
    contacts = FollowerContacts()
    contacts.check([3], NOBODY, 0.0)
    assert contacts.check([2, 3], TWO, 60.0).silent == {3}
