"""Fetch sessions: what is remembered is bounded, whatever is asked for and however it is named."""

import pytest

from penstock.broker.data.fetch_sessions import FetchSessions, ResolvedFetch
from penstock.errors import ErrorCode
from penstock.limits import (
    FETCH_SESSION_EVICTION_MS,
    FETCH_SESSION_PARTITIONS_MAX,
    INT_MAX,
    REPLICA_RECHECK_MS,
    TOPIC_NAME_CHARACTERS_MAX,
)
from penstock.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReadyPartitionData,
)
from tests.unit.broker.support import CountingRandomness

VERSION = 12
SLOTS = 3


class Clock:
    seconds = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.seconds


class Sessions:
    def __init__(self, slots: int = SLOTS, *, partitions_max: int = FETCH_SESSION_PARTITIONS_MAX) -> None:
        self.clock = Clock()
        randomness = CountingRandomness(1)
        self.found = FetchSessions(slots, self.clock, randomness, partitions_max=partitions_max)

    def ask(
        self,
        *topics: str,
        session: int = 0,
        epoch: int = 0,
        forget: tuple[str, ...] = (),
        version: int = VERSION,
        replica: int = -1,
    ) -> ResolvedFetch | ErrorCode:
        request = FetchRequest(
            replica_id=replica,
            session_id=session,
            session_epoch=epoch,
            topics=[FetchTopic(topic=name, partitions=[FetchPartition(partition=0)]) for name in topics],
            forgotten_topics_data=[ForgottenTopic(topic=name, partitions=[0]) for name in forget],
        )
        return self.found.resolve(request, version)

    def create(self, *topics: str) -> int:
        """The id of a new session; 0 if there is none."""
        fetching = self.ask(*topics)
        assert isinstance(fetching, ResolvedFetch)
        return fetching.session.id if fetching.session is not None else 0


def named(fetching: ResolvedFetch | ErrorCode) -> list[str]:
    assert isinstance(fetching, ResolvedFetch), fetching
    return [entry.key.topic for entry in fetching.targets]


def test_a_session_remembers_adds_and_forgets() -> None:
    sessions = Sessions()
    session = sessions.create("a", "b")
    assert named(sessions.ask(session=session, epoch=1)) == ["a", "b"]
    assert named(sessions.ask("c", session=session, epoch=2, forget=("a",))) == ["b", "c"]
    assert named(sessions.ask(session=session, epoch=3)) == ["b", "c"]


def test_a_wrong_epoch_or_id_or_kind_of_name_is_refused_and_changes_nothing() -> None:
    sessions = Sessions()
    session = sessions.create("a")
    assert sessions.ask("x", session=session, epoch=2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.ask("x", session=session + 1, epoch=1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    by_id = sessions.ask(session=session, epoch=1, version=13)
    assert by_id == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert named(sessions.ask(session=session, epoch=1)) == ["a"]


def test_the_epoch_after_the_last_is_the_first() -> None:
    sessions = Sessions()
    session = sessions.create("a")
    fetching = sessions.ask(session=session, epoch=1)
    assert isinstance(fetching, ResolvedFetch)
    assert fetching.session is not None
    fetching.session.epoch = INT_MAX
    assert named(sessions.ask(session=session, epoch=INT_MAX)) == ["a"]
    assert named(sessions.ask(session=session, epoch=1)) == ["a"]


def test_there_are_no_more_sessions_than_slots_until_one_was_not_used_for_long() -> None:
    sessions = Sessions()
    ids = [sessions.create("a") for _ in range(SLOTS)]
    assert all(ids)
    assert sessions.create("a") == 0
    sessions.clock.seconds = FETCH_SESSION_EVICTION_MS / 1000
    assert named(sessions.ask(session=ids[0], epoch=1)) == ["a"]
    assert sessions.create("a") != 0
    assert len(sessions.found) == SLOTS
    assert sessions.ask(session=ids[1], epoch=1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert named(sessions.ask(session=ids[0], epoch=2)) == ["a"]


def test_no_session_is_made_for_more_partitions_than_all_may_remember() -> None:
    sessions = Sessions(partitions_max=5)
    first = sessions.create("a", "b", "c")
    assert sessions.create("a", "b", "c") == 0
    sessions.ask(session=first, epoch=-1)
    assert sessions.create("a", "b", "c") != 0


def test_a_session_that_outgrows_what_all_may_remember_is_forgotten() -> None:
    sessions = Sessions(partitions_max=5)
    session = sessions.create("a", "b", "c")
    assert named(sessions.ask("a", "d", "e", session=session, epoch=1)) == ["a", "b", "c", "d", "e"]
    grown = sessions.ask("f", session=session, epoch=2)
    assert grown == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions.found) == 0
    assert sessions.create("a", "b", "c", "d", "e") != 0, "its room was given back"


@pytest.mark.parametrize("name", ["x" * (TOPIC_NAME_CHARACTERS_MAX + 1), "é" * 10])
def test_names_that_no_topic_can_have_are_not_remembered(name: str) -> None:
    sessions = Sessions()
    assert sessions.create("a", name) == 0
    session = sessions.create("a")
    assert sessions.ask(name, session=session, epoch=1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions.found) == 0


@pytest.mark.parametrize(("replica", "is_read_again"), [(-1, False), (2, True)])
def test_every_partition_of_a_follower_is_read_from_time_to_time(replica: int, is_read_again: bool) -> None:
    sessions = Sessions()
    session = sessions.create("a", "b")
    fetching = sessions.ask(session=session, epoch=1, replica=replica)
    assert isinstance(fetching, ResolvedFetch)
    for target in fetching.targets:
        target.empty_reply = ReadyPartitionData()
    sessions.clock.seconds = REPLICA_RECHECK_MS / 1000 / 2
    sessions.ask("a", session=session, epoch=2, replica=replica)
    assert [target.empty_reply is None for target in fetching.targets] == [True, False]
    sessions.clock.seconds = REPLICA_RECHECK_MS / 1000
    sessions.ask(session=session, epoch=3, replica=replica)
    assert [target.empty_reply is None for target in fetching.targets] == [True, is_read_again]
