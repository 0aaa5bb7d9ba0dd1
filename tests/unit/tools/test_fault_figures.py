"""How long clients waited, from histories made by hand; and what a run says of itself."""

from tools.faults.checker import Anomaly
from tools.faults.figures import Timeline, lag_s_max, outages, percentile, repeated
from tools.faults.history import Commit, FaultSpan, History, Outcome, Read, Write
from tools.faults.report import missing_coverage, report


def told(partition: int, *times: float) -> list[Write]:
    return [
        Write("w", partition, f"{partition}:{number}", at - 0.1, at, Outcome.ACKNOWLEDGED, number)
        for number, at in enumerate(times)
    ]


def given(reader: str, partition: int, *times: float) -> list[Read]:
    return [Read(reader, partition, number, f"{partition}:{number}", at) for number, at in enumerate(times)]


def test_the_longest_gap_lasts_from_a_fault_to_the_end_of_the_silence_it_began() -> None:
    timeline = Timeline([0.0, 0.1, 0.2, 2.7, 2.8, 9.0])
    assert round(timeline.longest_gap_s(0.15, 2.0), 3) == 2.5
    assert round(timeline.longest_gap_s(1.2, 2.0), 3) == 1.5, "what was silent before does not count"
    assert round(timeline.longest_gap_s(2.75, 3.0), 3) == 6.2
    assert timeline.longest_gap_s(9.5, 10.0) == 0.0


def test_silence_is_that_of_the_partitions_whose_clients_had_to_notice() -> None:
    history = History(
        writes=[*told(0, 1.0, 2.0, 3.0, 4.0), *told(1, 1.0, 3.5, 4.0)],
        reads=[*given("r", 0, 1.0, 2.0, 3.0, 4.0), *given("r", 1, 1.0, 3.75, 4.0)],
        faults=[FaultSpan("kill", "one", 1.0, 1.5, (0,), 4.0)],
    )
    assert outages(history)["kill"] == [(1.0, 1.0)]
    history.faults = [FaultSpan("kill", "two", 1.0, 1.5, (1,), 4.0)]
    assert outages(history)["kill"] == [(2.5, 2.75)]


def test_the_slowest_reader_counts() -> None:
    history = History(
        reads=[*given("quick", 0, 1.0, 2.0, 3.0), *given("slow", 0, 1.0, 3.0)],
        faults=[FaultSpan("pause", "one", 1.0, 1.5, (0,), 3.0)],
    )
    assert outages(history)["pause"][0].reads_s == 2.0


def test_what_comes_after_the_next_fault_began_is_that_ones_doing() -> None:
    history = History(
        writes=told(0, 1.0, 1.5, 5.5),
        faults=[FaultSpan("kill", "one", 0.9, 1.0, (0,)), FaultSpan("pause", "one", 1.4, 2.0, (0,))],
    )
    found = {kind: round(each[0].writes_s, 3) for kind, each in outages(history).items()}
    assert found == {"kill": 0.4, "pause": 4.0}


def test_lag_is_between_the_acknowledgement_and_the_reader() -> None:
    history = History(writes=told(0, 1.0, 2.0), reads=given("r", 0, 0.9, 2.5))
    assert lag_s_max(history) == 0.5


def test_records_that_a_group_got_again_are_counted() -> None:
    history = History(group_reads={"g": [*given("m", 0, 1.0, 2.0), *given("n", 0, 3.0)]})
    assert repeated(history) == {"g": 1}


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([1.0, 2.0], 0.99) == 2.0


def test_a_report_names_what_was_found_and_what_was_not_tried() -> None:
    history = History(
        writes=told(0, 1.0, 2.0, 6.0), faults=[FaultSpan("kill", "broker-1", 1.5, 2.0, (0,), 6.0)]
    )
    lines = report(history, [Anomaly("duplicate", 0, "x is at 1, 2")], 3, {"power loss": "no loop devices"})
    text = "\n".join(lines)
    assert "without an outcome 3" in text
    assert "    kill                       1     4.00   4.00   4.00" in text
    assert "NOT TRIED      power loss: no loop devices" in text
    assert "duplicate 1 times" in text
    assert "duplicate, partition 0: x is at 1, 2" in text


def test_a_run_without_a_kind_of_operation_proves_nothing() -> None:
    history = History(
        writes=told(0, 1.0),
        reads=given("r", 0, 1.0),
        final=given("f", 0, 1.0),
        group_reads={"g": given("m", 0, 1.0)},
        commits=[Commit("g", 0, 1, 1.0)],
    )
    assert missing_coverage(history) == []
    history.group_reads["h"] = []
    assert missing_coverage(history) == ["nothing was read by some group: this run proves nothing"]
    history.writes[0] = history.writes[0]._replace(outcome=Outcome.UNKNOWN)
    assert missing_coverage(history)[0] == "nothing was written: this run proves nothing"
