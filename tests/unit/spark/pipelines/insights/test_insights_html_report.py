"""The report as a page: whole, well-formed, and safe whatever keys are."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.spark.pipelines.insights.advice import Advice
from penstock.spark.pipelines.insights.html_report import axis_labels, duration, html_report
from penstock.spark.pipelines.insights.numbers import (
    SLICES_MAX,
    BatchSample,
    DurationStats,
    GroupBacklog,
    KeyLoad,
    PartitionLoad,
    TimeSlice,
    TopicMeasurements,
    bin_end,
    duration_bin,
    duration_stats,
    every_slice,
    percentiles,
    slice_width,
)
from penstock.spark.pipelines.insights.plots import (
    AxisLabel,
    Bar,
    PlotSeries,
    bar_plot,
    line_plot,
    nice_ceiling,
)

NASTY = b"<script>alert('\"&')</script>"
SOME_TIMES = DurationStats(10, 5.0, 50.0, 400.0, 1_000)
MEASURED = TopicMeasurements(
    topic="orders",
    read_at_ms=10 * MINUTE_MS,
    ranges={0: (0, 7), 1: (0, 3)},
    partitions=(PartitionLoad(0, 7, 700, 0, 0, MINUTE_MS), PartitionLoad(1, 3, 300)),
    keys=(KeyLoad(NASTY, 6, 600, (0,)), KeyLoad(b"b", 1, 100, (0, 1))),
    distinct_keys=5,
    scattered_keys=1,
    slice_ms=SECOND_MS,
    slices=(
        TimeSlice(0, 5, 500, SOME_TIMES, SOME_TIMES),
        TimeSlice(1_000),
        TimeSlice(2_000, 5, 500, SOME_TIMES),
    ),
    behind=SOME_TIMES,
    late_rows={SECOND_MS: 2, MINUTE_MS: 0},
    latency=SOME_TIMES,
    from_the_future=1,
    without_made=2,
    append_time=False,
    batches=BatchSample(4, 10, 1_200, {"zstd": 4}),
    groups=(GroupBacklog("billing", 0, 3, 5_000), GroupBacklog("billing", 1, 0, None)),
)
EMPTY = MEASURED._replace(
    partitions=(PartitionLoad(0),),
    keys=(),
    slices=(),
    behind=None,
    latency=None,
    late_rows={},
    groups=(),
    batches=BatchSample(),
)


class Balanced(HTMLParser):
    """Every tag that is opened is closed, and nothing is loaded from elsewhere."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attributes}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def plots_of(text: str) -> list[ET.Element]:
    pieces = text.split("<svg")[1:]
    return [ET.fromstring("<svg" + piece[: piece.index("</svg>")] + "</svg>") for piece in pieces]


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = html_report(MEASURED, [Advice("hot key", "spread <it>", "it is & was hot")])
    parsed = Balanced(text)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"'), "no address but a name"
    assert "spread &lt;it&gt;" in text
    assert "billing" in text
    titles = [plot.attrib["aria-label"] for plot in plots_of(text)]
    assert titles == [
        "Records per second",
        "Bytes per second",
        "Bytes in each partition",
        "Share of the largest keys",
        "End-to-end latency",
        "Age when written",
    ]


def test_a_topic_without_records_has_a_page_too() -> None:
    text = html_report(EMPTY, [])
    Balanced(text)
    assert "nothing stands out" in text
    assert plots_of(text) == []


def test_what_is_full_is_marked() -> None:
    partitions, keys = plots_of(html_report(MEASURED, []))[2:4]
    name = "{http://www.w3.org/2000/svg}rect"
    assert [bar.attrib["class"] for bar in partitions.iter(name)] == ["bar marked", "bar"]
    assert [bar.attrib["class"] for bar in keys.iter(name)] == ["bar", "bar"]


@pytest.mark.parametrize(
    ("slice_ms", "texts"),
    [
        (SECOND_MS, ["00:00:00", "00:00:01"]),
        (MINUTE_MS, ["00:00", "00:01"]),
        (12 * HOUR_MS, ["00:00", "12:00"]),
        (DAY_MS, ["1970-01-01", "1970-01-02"]),
    ],
)
def test_times_below_a_plot_are_short_enough_to_stand_side_by_side(slice_ms: int, texts: list[str]) -> None:
    slices = (TimeSlice(0), TimeSlice(slice_ms))
    places = axis_labels(MEASURED._replace(slice_ms=slice_ms, slices=slices))
    assert [place.short for place in places] == texts
    assert places[0].full == "1970-01-01 00:00:00 UTC"
    later = MEASURED._replace(slice_ms=HOUR_MS, slices=(TimeSlice(0), TimeSlice(25 * HOUR_MS)))
    assert [place.short for place in axis_labels(later)] == ["01-01 00:00", "01-02 01:00"]


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    text = line_plot("t", [AxisLabel("a", "b")] * 4, [PlotSeries("x", [1.0, None, 2.0, 2.0])], str)
    lines = [each.attrib["points"] for each in plots_of(text)[0].iter() if each.tag.endswith("polyline")]
    assert [len(points.split()) for points in lines] == [1, 2]


@example(name="", values=[5e-324])
@given(name=some.text(max_size=50), values=some.lists(some.floats(0, 1e15), max_size=70))
def test_any_text_and_any_numbers_make_a_plot(name: str, values: list[float]) -> None:
    name = "".join(letter for letter in name if letter.isprintable())
    places = [AxisLabel(name, name)] * len(values)
    plots_of(
        line_plot(name, places, [PlotSeries(name, values), PlotSeries("y", values)], lambda each: f"{each:g}")
    )
    plots_of(bar_plot(name, [Bar(name, value, name) for value in values], str, mean=1.0))


@given(some.floats(1e-9, 1e15))
def test_an_axis_ends_a_little_above_the_largest_value(value: float) -> None:
    assert value <= nice_ceiling(value) <= 2.6 * value


@given(some.lists(some.integers(0, 10**9), min_size=1, max_size=200))
def test_percentiles_of_bins_are_right_to_five_per_cent(values: list[int]) -> None:
    bins: dict[int, int] = {}
    for value in values:
        bins[duration_bin(value)] = bins.get(duration_bin(value), 0) + 1
    exact = sorted(values)[-(-len(values) * 95 // 100) - 1]
    (found,) = percentiles(bins, [0.95])
    assert exact <= found * (1 + 1e-9)
    assert found <= exact * 1.05 * (1 + 1e-9)
    assert duration_stats(bins, max(values)) is not None
    assert duration_stats({}, 0) is None
    assert bin_end(0) == 0


@given(some.integers(0, 10**13), some.integers(0, 10**13))
def test_slices_are_few_and_cover_everything(one: int, other: int) -> None:
    first, last = sorted((one, other))
    width = slice_width(first, last)
    starts = {first - first % width, last - last % width}
    slices = every_slice({start: TimeSlice(start, 1) for start in starts}, width)
    assert len(slices) <= SLICES_MAX
    assert slices[-1].start_ms + width > last
    assert sum(each.rows for each in slices) == len(starts)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (2 * HOUR_MS, "2 h"), (3 * DAY_MS, "3 d")],
)
def test_durations_are_short(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
