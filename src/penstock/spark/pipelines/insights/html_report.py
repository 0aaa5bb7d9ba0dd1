"""HTML report of `insights`: one self-contained file. Pure."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.spark.pipelines.common.report import size_text
from penstock.spark.pipelines.insights.advice import HOT_RATIO, Advice, key_text
from penstock.spark.pipelines.insights.numbers import DurationStats, TimeSlice, TopicMeasurements, skew
from penstock.spark.pipelines.insights.plots import AxisLabel, Bar, PlotSeries, bar_plot, line_plot

PARTITIONS_SHOWN: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STYLE: Final = """
:root { color-scheme: light dark; --text: #1c2530; --soft: #5b6875; --line: #d9dfe5; --back: #fff;
  --card: #f5f7f9; --s0: #1f6fb2; --s1: #c8641b; --s2: #3a8f4d; --mark: #c23b3b; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e8ed; --soft: #9aa7b4; --line: #37424d;
  --back: #14191f; --card: #1d242c; --s0: #6db3ee; --s1: #f0a05f; --s2: #7fce90; --mark: #f07a7a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 820px; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.soft { color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: .6rem; padding: 0; }
.facts div, .advice { background: var(--card); border-radius: 6px; padding: .6rem .8rem; }
.facts b { display: block; font-size: 1.15rem; font-weight: 600; }
.advice { margin: .6rem 0; border-left: 4px solid var(--s1); } .advice p { margin: .2rem 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
text.axis, text.name { text-anchor: end; } text.tick { text-anchor: middle; } text.name { fill: var(--text); }
.grid { stroke: var(--line); } .mean { stroke: var(--soft); stroke-dasharray: 4 3; }
.line { fill: none; stroke-width: 2; }
.line.s0 { stroke: var(--s0); } .line.s1 { stroke: var(--s1); } .line.s2 { stroke: var(--s2); }
.dot.s0, .bar { fill: var(--s0); } .dot.s1 { fill: var(--s1); } .dot.s2 { fill: var(--s2); }
.bar.marked { fill: var(--mark); }
.legend span { margin-right: 1.2rem; } .legend i { display: inline-block; width: 1em; height: .7em;
  border-radius: 2px; margin-right: .4em; } i.s0 { background: var(--s0); } i.s1 { background: var(--s1); }
i.s2 { background: var(--s2); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } .scroll { overflow-x: auto; }
"""


def html_report(measured: TopicMeasurements, advice: Sequence[Advice]) -> str:
    title = f"Insights: {measured.topic}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">read {time_text(measured.read_at_ms)}, {escape(_span(measured))}</p>',
        _facts(measured),
        _advice(advice),
    ]
    if measured.rows:
        parts += [_throughput(measured), _partitions(measured), _keys(measured), *_delays(measured)]
    parts += [_groups(measured), _batches(measured)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _facts(measured: TopicMeasurements) -> str:
    facts = {
        "records": f"{measured.rows:,}",
        "keys and values": size_text(measured.bytes),
        "partitions": f"{len(measured.partitions):,}",
        "fullest partition": f"{skew([each.bytes for each in measured.partitions]):.2f} × mean",
        "different keys": f"{measured.distinct_keys:,}",
        "peak": f"{size_text(round(measured.peak_bytes_per_s))}/s",
    }
    if measured.latency is not None:
        facts["end to end, p99"] = duration(measured.latency.p99_ms)
    if measured.behind is not None and not measured.append_time:
        facts["out of order by at most"] = duration(measured.behind.max_ms)
    cells = "".join(f"<div>{escape(name)}<b>{escape(value)}</b></div>" for name, value in facts.items())
    return f'<div class="facts">{cells}</div>'


def _advice(advice: Sequence[Advice]) -> str:
    if not advice:
        return "<h2>Advice</h2><p>None: nothing stands out.</p>"
    each = "".join(
        f'<div class="advice"><p><b>{escape(one.about.capitalize())}</b>: {escape(one.advice)}.</p>'
        f'<p class="soft">Because {escape(one.because)}.</p></div>'
        for one in advice
    )
    return f"<h2>Advice</h2>{each}"


def _throughput(measured: TopicMeasurements) -> str:
    places = axis_labels(measured)
    seconds = measured.slice_ms / 1000
    rows = [each.rows / seconds for each in measured.slices]
    sizes = [each.bytes / seconds for each in measured.slices]
    return (
        "<h2>Throughput</h2>"
        f"<p class='soft'>By the time of records, in steps of {duration(measured.slice_ms)}.</p>"
        + line_plot(
            "Records per second", places, [PlotSeries("records/s", rows)], lambda value: f"{value:,.4g}"
        )
        + "<p class='soft'>Bytes of keys and values per second:</p>"
        + line_plot(
            "Bytes per second", places, [PlotSeries("bytes/s", sizes)], lambda value: size_text(round(value))
        )
    )


def _partitions(measured: TopicMeasurements) -> str:
    mean = measured.bytes / len(measured.partitions)
    # A limit, since the page would be unreadable with thousands of bars.
    shown = measured.partitions[:PARTITIONS_SHOWN]
    bars = [
        Bar(
            f"partition {each.partition}",
            each.bytes,
            f"{each.rows:,} records",
            each.bytes > HOT_RATIO * mean,
        )
        for each in shown
    ]
    rows = [
        (
            str(each.partition),
            f"{each.rows:,}",
            size_text(each.bytes),
            f"{each.keyless:,}",
            _age(measured, each.oldest_ms),
            _age(measured, each.newest_ms),
        )
        for each in shown
    ]
    left = len(measured.partitions) - len(shown)
    return (
        "<h2>Partitions</h2>"
        + bar_plot("Bytes in each partition", bars, lambda value: size_text(round(value)), mean=mean)
        + (f"<p class='soft'>and {left:,} more</p>" if left else "")
        + _table(("partition", "records", "size", "without key", "age of the oldest", "of the newest"), rows)
    )


def _keys(measured: TopicMeasurements) -> str:
    if not measured.keys:
        return "<h2>Keys</h2><p>No record has a key.</p>"
    fair = measured.bytes / len(measured.partitions)
    many = len(measured.partitions) > 1
    bars = [
        Bar(
            key_text(each.key),
            each.bytes / measured.bytes if measured.bytes else 0.0,
            f"{each.rows:,} records, {size_text(each.bytes)}, in partition "
            + ", ".join(map(str, each.partitions)),
            many and each.bytes >= HOT_RATIO * fair,
        )
        for each in measured.keys
    ]
    return (
        "<h2>Keys</h2>"
        f"<p class='soft'>The largest of {measured.distinct_keys:,}, as a share of all bytes.</p>"
        + bar_plot("Share of the largest keys", bars, lambda value: f"{value:.2%}")
    )


def _delays(measured: TopicMeasurements) -> Iterable[str]:
    if measured.latency is not None:
        yield (
            "<h2>End-to-end latency</h2><p class='soft'>From when a message was made, as it says itself, to "
            f"the time of its record. {_times(measured.latency)}</p>"
            + _times_plot("End-to-end latency", measured, lambda each: each.latency)
        )
    if measured.from_the_future or measured.without_made:
        yield (
            f"<p class='soft'>{measured.from_the_future:,} records say that they were made after the time "
            f"they have, and {measured.without_made:,} do not say when.</p>"
        )
    if measured.behind is not None and measured.behind.max_ms and not measured.append_time:
        late = [(f"{duration(ms)} or more", f"{rows:,}") for ms, rows in measured.late_rows.items() if rows]
        yield (
            "<h2>Age when written</h2><p class='soft'>How far the time of a record is behind that of the "
            f"newest before it in its partition. {_times(measured.behind)}</p>"
            + _times_plot("Age when written", measured, lambda each: each.behind)
            + (_table(("behind by", "records"), late) if late else "")
        )


def _times_plot(
    title: str, measured: TopicMeasurements, chosen: Callable[[TimeSlice], DurationStats | None]
) -> str:
    found = [chosen(each) for each in measured.slices]
    series = [
        PlotSeries("p50", [None if each is None else each.p50_ms for each in found]),
        PlotSeries("p95", [None if each is None else each.p95_ms for each in found]),
        PlotSeries("p99", [None if each is None else each.p99_ms for each in found]),
    ]
    return line_plot(title, axis_labels(measured), series, duration)


def _groups(measured: TopicMeasurements) -> str:
    if not measured.groups:
        return ""
    rows = [
        (
            each.group,
            str(each.partition),
            f"{each.waiting:,}",
            "-" if each.age_ms is None else duration(each.age_ms),
        )
        for each in measured.groups
    ]
    return "<h2>What waits for groups</h2>" + _table(
        ("group", "partition", "records", "age of the oldest"), rows
    )


def _batches(measured: TopicMeasurements) -> str:
    sample = measured.batches
    if not sample.batches:
        return ""
    rows = [
        ("batches looked at", f"{sample.batches:,}"),
        ("records in one, on average", f"{sample.records / sample.batches:,.1f}"),
        ("bytes of one, on average", size_text(round(sample.bytes / sample.batches))),
        *((f"compression: {name}", f"{count:,}") for name, count in sorted(sample.codecs.items())),
    ]
    return "<h2>Batches</h2>" + _table(("a sample", ""), rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _span(measured: TopicMeasurements) -> str:
    if not measured.slices:
        return "no records"
    last = measured.slices[-1].start_ms + measured.slice_ms
    return f"records from {time_text(measured.slices[0].start_ms)} to {time_text(last)}"


def _age(measured: TopicMeasurements, time_ms: int | None) -> str:
    return "-" if time_ms is None else duration(max(measured.read_at_ms - time_ms, 0))


def _times(times: DurationStats) -> str:
    return (
        f"Half within {duration(times.p50_ms)}, 95 % within {duration(times.p95_ms)}, "
        f"99 % within {duration(times.p99_ms)}, all within {duration(times.max_ms)}."
    )


def axis_labels(measured: TopicMeasurements) -> list[AxisLabel]:
    """Return the labels of slices; short labels omit the parts that are equal in all slices."""
    fulls = [time_text(each.start_ms) for each in measured.slices]
    if measured.slice_ms >= DAY_MS:
        cut = slice(0, 10)
    elif len({full[:10] for full in fulls}) > 1:
        cut = slice(5, 16)
    else:
        cut = slice(11, 19 if measured.slice_ms < MINUTE_MS else 16)
    return [AxisLabel(full[cut], full) for full in fulls]


def time_text(time_ms: int) -> str:
    try:
        return f"{_EPOCH + timedelta(milliseconds=time_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{time_ms} ms"


def duration(milliseconds: float) -> str:
    for unit, name in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s")):
        if milliseconds >= unit:
            return f"{milliseconds / unit:.3g} {name}"
    return f"{milliseconds:.3g} ms"
