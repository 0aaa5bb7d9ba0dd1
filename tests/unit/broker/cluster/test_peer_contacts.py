"""When a broker probes others, and when it counts them as unreachable."""

from collections.abc import Collection

from penstock.broker.cluster.peer_contacts import Peer, PeerContacts
from penstock.limits import PEER_REACHABLE_MS, PEER_SILENCE_MS_MAX

ONE, TWO, THREE = Peer(1, 10), Peer(2, 20), Peer(3, 30)
SILENCE_S = PEER_SILENCE_MS_MAX / 1000
REACHABLE_S = PEER_REACHABLE_MS / 1000


class Contacts:
    """Contacts of a broker that follows broker 1, and no other one."""

    def __init__(self) -> None:
        self.contacts = PeerContacts()
        self.now = 100.0
        self.contacts.keep([ONE, TWO, THREE], self.now)

    def check(self, *unreachable: Peer, after: float = SILENCE_S) -> list[Peer]:
        """One check, in which these do not answer. The peers that were probed."""
        self.now += after
        probed = self.contacts.to_probe({1}, self.now)
        self.contacts.probed([(peer, peer not in unreachable) for peer in probed], self.now)
        return probed


def unreachable(contacts: Contacts) -> Collection[Peer]:
    return contacts.contacts.unreachable


def test_a_leader_that_answers_fetches_is_never_probed() -> None:
    contacts = Contacts()
    for _ in range(20):
        contacts.contacts.answered({1: contacts.now + 0.9})
        assert contacts.check() == []


def test_a_silent_leader_is_probed_and_nobody_else() -> None:
    contacts = Contacts()
    assert contacts.check(after=SILENCE_S / 2) == []
    assert contacts.check() == [ONE]
    assert contacts.check(after=SILENCE_S / 2) == [], "it has just answered"
    assert not unreachable(contacts)


def test_one_failed_probe_proves_nothing() -> None:
    contacts = Contacts()
    contacts.check(ONE)
    assert not unreachable(contacts)
    assert contacts.check() == [ONE, TWO, THREE]
    assert not unreachable(contacts)


def test_two_in_a_row_do() -> None:
    contacts = Contacts()
    contacts.check(ONE)
    contacts.check(ONE)
    assert unreachable(contacts) == [ONE]


def test_all_who_do_not_answer_are_reported_at_once() -> None:
    contacts = Contacts()
    contacts.check(ONE, THREE)
    contacts.check(ONE, THREE)
    assert unreachable(contacts) == [ONE, THREE]


def test_only_who_is_in_trouble_is_probed_once_that_is_known() -> None:
    contacts = Contacts()
    for _ in range(3):
        contacts.check(ONE)
    assert contacts.check(ONE) == [ONE]


def test_a_fetch_that_is_answered_refutes_a_failed_probe() -> None:
    contacts = Contacts()
    contacts.check(ONE)
    contacts.contacts.answered({1: contacts.now + 0.1})
    contacts.check(ONE)
    assert not unreachable(contacts)


def test_who_answers_again_recovers_for_a_while() -> None:
    contacts = Contacts()
    contacts.check(ONE)
    contacts.check(ONE)
    contacts.check()
    assert (unreachable(contacts), contacts.contacts.recovering) == ([], [ONE])
    contacts.check(after=REACHABLE_S - 0.1)
    assert contacts.contacts.recovering == [ONE]
    contacts.check(after=0.2)
    assert contacts.contacts.recovering == []


def test_who_fails_while_it_recovers_begins_anew() -> None:
    contacts = Contacts()
    for _ in range(2):
        contacts.check(ONE)
    contacts.check()
    for _ in range(2):
        contacts.check(ONE)
    assert (unreachable(contacts), contacts.contacts.recovering) == ([ONE], [])


def test_a_broker_that_did_nothing_itself_blames_nobody() -> None:
    contacts = Contacts()
    contacts.check(ONE)
    contacts.contacts.restart(contacts.now + 60)
    contacts.check(ONE, after=60 + SILENCE_S)
    assert not unreachable(contacts)


def test_another_process_of_a_broker_is_another_peer() -> None:
    contacts = Contacts()
    contacts.check(ONE)
    contacts.check(ONE)
    contacts.contacts.keep([Peer(1, 11), TWO], contacts.now)
    assert not unreachable(contacts)


def test_one_failed_probe_lengthens_a_recovery() -> None:
    contacts = Contacts()
    for _ in range(2):
        contacts.check(ONE)
    contacts.check()
    contacts.check(ONE, after=REACHABLE_S - 0.1)
    contacts.check(after=0.5)
    assert contacts.contacts.recovering == [ONE], "its connection comes and goes"
    contacts.check(after=REACHABLE_S)
    assert contacts.contacts.recovering == []
