"""Histories made by hand, each with one broken promise, and one with none."""

from math import inf

from tools.faults.checker import Anomaly, anomalies, log_anomalies
from tools.faults.history import Assignment, Commit, Denial, History, Outcome, Read, Write


def write(
    value: str, offset: int | None = None, *, began: float = 0.0, outcome: str = "acknowledged"
) -> Write:
    return Write(value[0], 0, value, began, began + 0.1, Outcome(outcome), offset)


def reads(consumer: str, *seen: tuple[int, str]) -> list[Read]:
    return [Read(consumer, 0, offset, value, float(number)) for number, (offset, value) in enumerate(seen)]


def sound() -> History:
    """Two producers; one write that nobody knows of and that is there, one that is not; a gap in offsets."""
    return History(
        writes=[
            write("a1", 0, began=1),
            write("b1", 1, began=1),
            write("a2", None, began=2, outcome="unknown"),
            write("a3", None, began=3, outcome="unknown"),
            write("b2", 4, began=4),
            write("b3", None, began=5, outcome="rejected"),
        ],
        reads=[*reads("c", (0, "a1"), (1, "b1"), (2, "a2")), *reads("d", (1, "b1"), (2, "a2"), (4, "b2"))],
        final=reads("final", (0, "a1"), (1, "b1"), (2, "a2"), (4, "b2")),
    )


def kinds(history: History) -> set[str]:
    return {anomaly.kind for anomaly in anomalies(history)}


def test_a_sound_history_has_none() -> None:
    assert anomalies(sound()) == []


def test_an_offset_has_one_value_for_ever() -> None:
    history = sound()
    history.reads += reads("e", (2, "x9"))
    assert kinds(history) == {"inconsistent-offsets", "vanished-read"}


def test_a_value_is_there_once() -> None:
    history = sound()
    history.final += reads("final", (5, "a1"))
    assert kinds(history) == {"duplicate"}


def test_what_was_acknowledged_stays_there() -> None:
    history = sound()
    history.final.pop(1)
    history.reads = reads("c", (0, "a1"))
    assert kinds(history) == {"lost-write"}


def test_what_was_acknowledged_last_is_there_too() -> None:
    history = sound()
    history.writes.append(write("b4", 5, began=6))
    assert kinds(history) == {"unseen"}


def test_a_value_that_was_read_and_is_gone_is_lost_also_unacknowledged() -> None:
    history = sound()
    history.final = reads("final", (0, "a1"), (1, "b1"), (2, "b2"))
    assert "inconsistent-offsets" in kinds(history)


def test_the_value_of_a_rejected_write_is_not_stored() -> None:
    history = sound()
    history.final += reads("final", (5, "b3"))
    assert kinds(history) == {"rejected-read"}


def test_a_consumer_gets_every_record_in_order() -> None:
    history = sound()
    history.reads += reads("e", (0, "a1"), (2, "a2"))
    assert kinds(history) == {"poll-skip"}
    history = sound()
    history.reads += reads("e", (1, "b1"), (0, "a1"))
    assert kinds(history) == {"nonmonotonic-poll"}
    history = sound()
    history.reads += reads("e", (1, "b1"), (1, "b1"))
    assert kinds(history) == {"nonmonotonic-poll"}


def test_what_one_producer_writes_keeps_its_order() -> None:
    history = sound()
    history.writes[0] = write("a1", 0, began=9)
    assert kinds(history) == {"nonmonotonic-send"}


def test_records_are_where_the_broker_said() -> None:
    history = sound()
    history.writes[4] = write("b2", 3, began=4)
    assert kinds(history) == {"wrong-offset"}


def test_a_value_that_was_read_stays_there() -> None:
    history = sound()
    history.reads += reads("e", (5, "b9"))
    assert kinds(history) == {"vanished-read"}


def test_the_position_of_a_consumer_is_in_range() -> None:
    history = sound()
    history.denials.append(Denial("c", 0, "out of range"))
    assert kinds(history) == {"denied-position"}


# Groups

ALL = ((0, "a1"), (1, "b1"), (2, "a2"), (4, "b2"))


def in_group(*held: tuple[str, tuple[tuple[int, str], ...]]) -> History:
    """A sound history, of which members of one group saw so much, one after the other."""
    history = sound()
    history.group_reads["g"] = [read for member, seen in held for read in reads(member, *seen)]
    history.assignments = [
        Assignment("g", member, 0, 10.0 * number) for number, (member, _) in enumerate(held, start=1)
    ]
    return history


def test_another_member_of_a_group_may_read_records_again() -> None:
    assert anomalies(in_group(("m1", ALL[:3]), ("m2", ALL[1:]))) == []


def test_one_member_gets_every_record_in_order_while_it_holds_a_partition() -> None:
    assert kinds(in_group(("m1", ALL), ("m2", (ALL[0], ALL[2])))) == {"poll-skip"}
    assert kinds(in_group(("m1", (*ALL, ALL[0])))) == {"nonmonotonic-poll"}


def test_a_group_gets_every_record() -> None:
    history = in_group(("m1", ALL[:2]), ("m2", ALL[3:]))
    assert anomalies(history) == [Anomaly("group-missed", 0, "g: a2 at 2")]


def test_a_group_goes_on_at_its_committed_offset() -> None:
    history = in_group(("m1", ALL), ("m2", ALL[1:]))
    history.commits = [Commit("g", 0, 1, 15.0), Commit("g", 0, 4, 21.0), Commit("other", 0, 4, 15.0)]
    assert anomalies(history) == [], "what is stored after an assignment proves nothing"
    history.commits.append(Commit("g", 0, 2, 18.0, is_stored=False))
    assert anomalies(history) == [], "a commit without a reply may have failed"
    history.commits.append(Commit("g", 0, 2, 19.0))
    history.commits.append(Commit("g", 0, 1, 15.5))
    assert anomalies(history) == [Anomaly("committed-offset-back", 0, "m2 began at 1, and 2 was committed")]


def test_a_late_member_may_commit_an_older_offset() -> None:
    history = in_group(("m1", ALL), ("m2", ALL[1:]))
    history.commits = [Commit("g", 0, 2, 15.0), Commit("g", 0, 1, inf, is_stored=False)]
    assert anomalies(history) == []
    history.commits[1] = Commit("g", 0, 0, inf, is_stored=False)
    assert kinds(history) == {"committed-offset-back"}, "that is not where it began"


# Logs


def test_what_no_author_of_a_broker_thought_of_is_an_anomaly() -> None:
    log = "INFO  started\nERROR task.failed traceback=Traceback (most recent call last): x\nWARN  all well"
    (found,) = log_anomalies("broker-1", log)
    assert (found.kind, found.detail[:29]) == ("traceback", "broker-1: ERROR task.failed t")
    assert log_anomalies("broker-1", "INFO  started\nWARN  broker.found_gone") == []
    assert log_anomalies("broker-1", "AssertionError: both lead") != []
