"""What rules find in the events of a key, without Spark."""

import json
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from penstock.spark.pipelines.detect.rule_evaluation import Alert, RuleResult, RuleState, apply_events
from penstock.spark.pipelines.detect.rules import EVENTS_MAX, NUMBER_MAX, DetectRule, RuleKind
from penstock.spark.pipelines.detect.sessions import EventSession
from penstock.spark.pipelines.detect.windows import RuleEvent
from penstock.types import TopicId

COUNT = DetectRule("fast", RuleKind.COUNT, 3, 1_000)
SUM = DetectRule("much", RuleKind.SUM, 100.0, 1_000, field="amount")
DISTINCT = DetectRule("many", RuleKind.DISTINCT, 2, 1_000, field="country")
SESSION = DetectRule("long", RuleKind.SESSION, 3, 1_000, lasting_ms=500)


def events(times: Iterable[int], amount: float = 0.0) -> list[RuleEvent]:
    return [RuleEvent(time, 0, offset, amount) for offset, time in enumerate(times)]


def found(rule: DetectRule, rows: Sequence[RuleEvent], *, watermark_ms: int = 0) -> RuleResult:
    return apply_events(rule, "card", (), rows, watermark_ms)


def offsets(alert: Alert) -> list[int]:
    return [offset for _, _, offset in alert.evidence]


def test_so_many_within_the_window_are_an_alert_and_one_fewer_is_none() -> None:
    assert found(COUNT, events([0, 500])).alerts == []
    (alert,) = found(COUNT, events([0, 500, 999])).alerts
    assert (alert.rule, alert.key, alert.events, offsets(alert)) == ("fast", "card", 3, [0, 1, 2])
    assert (alert.start_ms, alert.end_ms, alert.measure) == (0, 999, 3)
    for times in ([0, 500, 1_000], [0, 1_000, 500], [500, 1_000, 0]):
        assert found(COUNT, events(times)).alerts == [], "a window has its length, not more"


def test_numbers_beyond_what_can_be_summed_are_no_end_of_it() -> None:
    """A checkpoint may hold them."""
    for number in (1e305, float("inf")):
        held = [RuleEvent(0, 0, 0, -number), RuleEvent(1, 0, 1, number)]
        (alert,) = apply_events(SUM, "card", held, [RuleEvent(2, 0, 2, number)], 0).alerts
        assert alert.measure >= NUMBER_MAX
        assert json.loads(alert.text("payments"))["count"] == alert.events


def test_events_may_come_in_any_order_of_time() -> None:
    (alert,) = found(COUNT, events([900, 5_000, 100, 400])).alerts
    assert offsets(alert) == [2, 3, 0]


def test_an_alert_uses_up_its_events() -> None:
    outcome = found(COUNT, events(range(0, 800, 100)))
    assert [offsets(alert) for alert in outcome.alerts] == [[0, 1, 2], [3, 4, 5]]
    assert len(outcome.held) == 2


def test_a_sum_is_reached_exactly() -> None:
    tenths = [RuleEvent(10 * number, 0, number, 0.1) for number in range(3)]
    (alert,) = found(SUM._replace(at_least=0.3), tenths).alerts
    assert alert.measure == 0.3
    assert found(SUM, events([0, 1], 49.99)).alerts == []
    assert offsets(found(SUM, events([0, 2_000, 2_999], 50.0)).alerts[0]) == [1, 2]


def test_a_refund_does_not_hide_what_came_after_it() -> None:
    rows = [RuleEvent(0, 0, 0, -500.0), RuleEvent(1, 0, 1, 60.0), RuleEvent(2, 0, 2, 40.0)]
    assert offsets(found(SUM, rows).alerts[0]) == [1, 2]


def test_different_values_are_counted_once_each() -> None:
    def row(offset: int, country: str) -> RuleEvent:
        return RuleEvent(offset, 0, offset, text=country)

    assert found(DISTINCT, [row(0, "AT"), row(1, "AT")]).alerts == []
    (alert,) = found(DISTINCT, [row(0, "AT"), row(1, "AT"), row(2, "DE")]).alerts
    assert (alert.events, alert.measure) == (3, 2)


def test_what_is_behind_the_watermark_is_handed_back_and_not_looked_at() -> None:
    outcome = found(COUNT, events([100, 4_000, 4_100, 3_999, 4_200]), watermark_ms=4_000)
    assert [event.offset for event in outcome.late] == [0, 3]
    assert [offsets(alert) for alert in outcome.alerts] == [[1, 2, 4]]


def test_events_are_forgotten_when_none_can_come_near_them() -> None:
    held = found(COUNT, events([100, 900])).held
    assert apply_events(COUNT, "card", held, [], 1_099).held == held
    kept = apply_events(COUNT, "card", held, [], 1_100)
    assert kept.held == [RuleEvent(900, 0, 1)]
    assert kept.wake_ms == 1_900
    assert not apply_events(COUNT, "card", held, [], 1_900).held


def test_a_session_is_an_alert_when_it_is_over() -> None:
    outcome = found(SESSION, events([0, 900, 1_800]), watermark_ms=0)
    assert (outcome.alerts, outcome.wake_ms) == ([], 2_800)
    assert apply_events(SESSION, "card", outcome.held, [], 2_799).alerts == []
    ended = apply_events(SESSION, "card", outcome.held, [], 2_800)
    (alert,) = ended.alerts
    assert not ended.held
    assert (alert.start_ms, alert.end_ms, alert.events, offsets(alert)) == (0, 1_800, 3, [0, 1, 2])


def test_a_pause_ends_a_session_and_an_event_in_between_joins_two() -> None:
    assert len(found(SESSION, events([1_100, 1_200, 100, 0])).held) == 2
    apart = found(SESSION, events([0, 100, 1_100, 1_200]))
    assert len(apart.held) == 2
    assert apply_events(SESSION, "card", apart.held, [], 9_000).alerts == [], "two payments each"
    between = apply_events(SESSION, "card", apart.held, [RuleEvent(600, 0, 9)], 0)
    (alert,) = apply_events(SESSION, "card", between.held, [], 9_000).alerts
    assert offsets(alert) == [0, 1, 9, 2, 3]


def test_a_short_session_is_no_alert() -> None:
    assert apply_events(SESSION, "card", found(SESSION, events([0, 1, 2])).held, [], 9_000).alerts == []


def test_sessions_that_are_over_end_before_new_rows_begin_others() -> None:
    held = found(SESSION, events([0, 500, 900])).held
    outcome = apply_events(SESSION, "card", held, [RuleEvent(5_000, 0, 9)], 5_000)
    assert [offsets(alert) for alert in outcome.alerts] == [[0, 1, 2]]
    assert outcome.held == [EventSession(5_000, 5_000, 1, ((5_000, 0, 9),))]


def test_long_sessions_remember_some_positions_and_count_the_others() -> None:
    outcome = found(SESSION, events(range(0, 100_000, 500)))
    (alert,) = apply_events(SESSION, "card", outcome.held, [], 10**9).alerts
    assert (alert.events, len(alert.evidence)) == (200, 100)


def test_one_key_cannot_fill_the_memory() -> None:
    rule = SUM._replace(at_least=1e9, span_ms=10**9)
    outcome = found(rule, events(range(EVENTS_MAX + 5), 1.0))
    held = outcome.held
    assert (outcome.forgotten, len(held), held[0][0]) == (5, EVENTS_MAX, 5)


def test_ids_are_the_same_in_another_run_and_different_for_other_alerts() -> None:
    rows = events([0, 1, 2, 3, 4, 5])
    first, second = found(COUNT, rows).alerts
    assert [alert.id for alert in found(COUNT, rows).alerts] == [first.id, second.id]
    (of_another,) = apply_events(COUNT._replace(name="other"), "card", (), rows[:3], 0).alerts
    (of_another_key,) = apply_events(COUNT, "card-2", (), rows[:3], 0).alerts
    assert len({first.id, second.id, of_another.id, of_another_key.id}) == 4


def test_ids_of_another_topic_or_of_one_made_anew_are_different() -> None:
    """A consumer that remembers ids must not take a true alert for one that it has seen."""
    (alert,) = found(COUNT, events([0, 1, 2])).alerts
    old, new = TopicId(b"a" * 16), TopicId(b"b" * 16)
    assert alert.with_topic_id("payments", old) == alert.with_topic_id("payments", old)
    ids = [alert.with_topic_id(topic, each).id for topic in ("payments", "refunds") for each in (old, new)]
    assert len(set(ids)) == 4
    (at_other_times,) = found(COUNT, events([0, 1, 3])).alerts
    assert at_other_times.id != alert.id


def test_an_alert_as_json_says_what_and_where() -> None:
    (alert,) = found(COUNT, events([0, 500, 1_500_000, 900])).alerts
    document = json.loads(alert.text("payments"))
    assert document["rule"] == "fast"
    assert (document["key"], document["count"], document["measure"]) == ("card", 3, 3)
    assert (document["topic"], document["from"]) == ("payments", "1970-01-01T00:00:00.000+00:00")
    assert document["evidence"][2] == {
        "partition": 0,
        "offset": 3,
        "time": "1970-01-01T00:00:00.900+00:00",
    }


@given(
    times=some.lists(some.integers(0, 6_000), max_size=40),
    cuts=some.lists(some.integers(0, 40), max_size=4),
    rule=some.sampled_from([COUNT, SUM._replace(at_least=30.0), SESSION]),
)
def test_how_the_stream_was_cut_does_not_matter(times: list[int], cuts: list[int], rule: DetectRule) -> None:
    rows = events(times, 10.0)
    whole = apply_events(rule, "card", (), rows, 0)
    held: RuleState = ()
    alerts: list[Alert] = []
    places = [0, *sorted(cuts), len(rows)]
    for first, last in pairwise(places):
        part = rows[first:last]
        random.Random(len(part)).shuffle(part)
        outcome = apply_events(rule, "card", held, part, 0)
        held = outcome.held
        alerts += outcome.alerts
    assert (list(held), alerts) == (list(whole.held), whole.alerts)


@given(times=some.lists(some.integers(0, 30).map(lambda number: 100 * number), max_size=30))
def test_alerts_are_found_wherever_a_slow_search_finds_one(times: list[int]) -> None:
    rows = events(times)
    left: list[RuleEvent] = []
    expected = []
    for row in rows:
        left = sorted([*left, row])
        for event in left:
            inside = [each for each in left if event.time_ms <= each.time_ms < event.time_ms + 1_000]
            if len(inside) >= COUNT.at_least:
                expected.append([each.offset for each in inside])
                left = [each for each in left if each not in inside]
                break
    assert [offsets(alert) for alert in found(COUNT, rows).alerts] == expected
