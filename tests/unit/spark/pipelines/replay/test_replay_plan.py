"""Which offsets a slice takes, how fast slices follow, and what is kept of it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CommandFailed, CorruptData
from penstock.spark.lake.lake_table import OffsetSpan
from penstock.spark.pipelines.common.checkpoint import bind_checkpoint
from penstock.spark.pipelines.replay.plan import (
    LAYOUT,
    SLICE_S,
    Bound,
    FileOffsets,
    ReplayState,
    ReplayThrottle,
    TimeRange,
    initial_state,
    next_slice,
    parse_replay_state,
)
from penstock.spark.pipelines.replay.replay import ReplaySettings
from penstock.types import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def held(path: str, partition: TopicPartition, first: int, last: int) -> FileOffsets:
    return FileOffsets(path, partition, first, last, last - first + 1)


def test_a_range_is_cut_to_what_the_table_holds() -> None:
    files = [held("a", FIRST, 10, 19), held("b", FIRST, 20, 29), held("b", SECOND, 0, 4)]
    assert initial_state(files, Bound(), Bound()) == ReplayState(
        {FIRST: 10, SECOND: 0}, {FIRST: 30, SECOND: 5}
    )
    assert initial_state(files, Bound("15", 15), Bound("25", 25)) == ReplayState({FIRST: 15}, {FIRST: 25})
    by_partition = Bound("json", offsets={SECOND: 2})
    assert initial_state(files, by_partition, Bound()) == ReplayState(
        {FIRST: 10, SECOND: 2}, {FIRST: 30, SECOND: 5}
    )
    assert initial_state([], Bound(), Bound()) == ReplayState({}, {})


def test_a_slice_names_only_the_files_it_needs() -> None:
    files = [held("a", FIRST, 0, 9), held("b", FIRST, 1_000_000, 1_000_009), held("c", SECOND, 0, 9)]
    record = ReplayState({FIRST: 5, SECOND: 10}, {FIRST: 1_000_010, SECOND: 10})
    first = next_slice(record, files, 5)
    assert first is not None
    assert (first.spans, first.files) == ({FIRST: OffsetSpan(5, 10)}, ("a",))
    second = next_slice(record.after(first, 5, 0), files, 5)
    assert second is not None
    assert (second.spans, second.files) == ({FIRST: OffsetSpan(1_000_000, 1_000_005)}, ("b",))


def test_a_finished_partition_is_not_read_though_its_file_holds_more() -> None:
    files = [held("a", FIRST, 0, 99)]
    assert next_slice(ReplayState({FIRST: 50}, {FIRST: 50}), files, 10) is None


@given(
    files=st.lists(
        st.tuples(st.sampled_from([FIRST, SECOND]), st.integers(0, 200), st.integers(0, 30)), max_size=12
    ),
    start=st.integers(0, 100),
    end=st.integers(50, 250),
    offsets_max=st.integers(1, 60),
)
def test_slices_take_every_offset_of_the_range_once_and_in_order(
    files: list[tuple[TopicPartition, int, int]], start: int, end: int, offsets_max: int
) -> None:
    table = [held(str(index), place, first, first + more) for index, (place, first, more) in enumerate(files)]
    wanted = {
        (each.partition, offset)
        for each in table
        for offset in range(max(each.first, start), min(each.last + 1, end))
    }
    record = initial_state(table, Bound("", start), Bound("", end))
    taken: set[tuple[TopicPartition, int]] = set()
    while (part := next_slice(record, table, offsets_max)) is not None:
        assert 0 < part.offsets <= offsets_max
        for partition, span in part.spans.items():
            assert span.start >= record.next[partition]
            for path in part.files:
                each = table[int(path)]
                if each.partition == partition:
                    inside = range(max(each.first, span.start), min(each.last + 1, span.end))
                    taken |= {(partition, offset) for offset in inside}
        record = parse_replay_state(json.loads(json.dumps(record.after(part, 1, 1).document())), "here")
    assert taken == wanted


def test_times_of_a_range_are_kept_in_its_record() -> None:
    bounds = Bound("24h", timestamp_ms=1_000), Bound("1h", timestamp_ms=2_000)
    record = initial_state([held("a", FIRST, 0, 9)], *bounds)
    assert record.times == TimeRange(1_000, 2_000)
    assert parse_replay_state(json.loads(json.dumps(record.document())), "here") == record


def test_a_record_that_was_changed_is_refused() -> None:
    record = ReplayState({FIRST: 5}, {FIRST: 9}, TimeRange(), 5, 100, 1)
    document = record.document()
    assert parse_replay_state(document, "here") == record
    changes: list[dict[str, object]] = [{"layout": "2"}, {"next": {}}, {"rows": None}, {"times": None}]
    for wrong in ({}, *({**document, **change} for change in changes)):
        with pytest.raises(CorruptData, match="here is not what was written there"):
            parse_replay_state(wrong, "here")


def test_a_record_of_another_version_is_told_from_one_that_was_changed() -> None:
    document = ReplayState({FIRST: 5}, {FIRST: 9}).document()
    earlier = r"here is of an earlier version of Penstock: finish .* with that version, or .* another --name"
    with pytest.raises(CommandFailed, match=earlier):
        parse_replay_state({"layout": 1, "next": {}, "ends": {}}, "here")
    with pytest.raises(CommandFailed, match="here is of a later version of Penstock"):
        parse_replay_state({**document, "layout": LAYOUT + 1}, "here")


def test_a_replay_of_an_earlier_version_is_not_taken_for_another(tmp_path: Path) -> None:
    settings = ReplaySettings(tmp_path, "again", {}, checkpoint=tmp_path / "replay")
    noted = {
        name: said for name, said in settings.identity.items() if name not in ("partitions", "timestamps")
    }
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "penstock.json").write_text(json.dumps(noted))
    with pytest.raises(CommandFailed, match=r"replay is of an earlier version of Penstock.* finish .* that"):
        bind_checkpoint(settings.checkpoint_folder, settings.identity)
    with pytest.raises(CommandFailed, match="was made for to again, not for to elsewhere"):
        bind_checkpoint(settings.checkpoint_folder, settings._replace(to="elsewhere").identity)


def test_rests_keep_the_rate() -> None:
    throttle = ReplayThrottle(100.0, 1_000_000)
    assert throttle.offsets_max == 100 * SLICE_S
    rows, now = 0, 0.0
    for _ in range(20):
        now += 0.3  # what a slice takes
        rows += throttle.offsets_max
        now += throttle.after_slice(offsets=throttle.offsets_max, rows=throttle.offsets_max, elapsed_s=now)
        assert rows / now <= 100.0
    assert rows / now == pytest.approx(100.0)


def test_what_was_not_sent_while_spark_was_slow_does_not_come_in_a_burst() -> None:
    throttle = ReplayThrottle(100.0, 1_000_000)
    assert throttle.after_slice(offsets=200, rows=200, elapsed_s=60.0) == 0.0
    assert throttle.after_slice(offsets=200, rows=200, elapsed_s=60.1) == pytest.approx(1.9)


def test_a_slice_grows_where_few_rows_pass_and_shrinks_where_all_do() -> None:
    throttle = ReplayThrottle(100.0, 50_000)
    assert throttle.after_slice(offsets=200, rows=0, elapsed_s=1.0) == 0.0
    assert throttle.offsets_max == 2_000
    throttle.after_slice(offsets=2_000, rows=2, elapsed_s=2.0)
    assert throttle.offsets_max == 20_000
    throttle.after_slice(offsets=20_000, rows=0, elapsed_s=2.0)
    assert throttle.offsets_max == 50_000
    throttle.after_slice(offsets=50_000, rows=50_000, elapsed_s=3.0)
    assert throttle.offsets_max == 200


def test_without_a_rate_there_is_no_rest() -> None:
    throttle = ReplayThrottle(None, 1_000)
    assert throttle.after_slice(offsets=1_000, rows=3, elapsed_s=0.1) == 0.0
    assert throttle.offsets_max == 1_000
