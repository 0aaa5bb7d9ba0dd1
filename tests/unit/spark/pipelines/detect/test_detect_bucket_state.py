"""What is remembered of many keys: as if each were alone, and the same after it was text."""

from hypothesis import given
from hypothesis import strategies as some

from penstock.spark.pipelines.detect.bucket_state import BucketState, StateKey
from penstock.spark.pipelines.detect.rule_evaluation import Alert, RuleState, apply_events
from penstock.spark.pipelines.detect.rules import DetectRule, RuleKind
from penstock.spark.pipelines.detect.windows import RuleEvent

COUNT = DetectRule("fast", RuleKind.COUNT, 3, 1_000)
SESSION = DetectRule("long", RuleKind.SESSION, 3, 1_000)
RULES = {"fast": COUNT, "long": SESSION}
A = StateKey("fast", "a")


def test_what_is_remembered_survives_as_text() -> None:
    state = BucketState(None, RULES)
    assert state.text() is None
    assert state.evaluate({A: [RuleEvent(0, 0, 0), RuleEvent(500, 0, 1)]}, 0).alerts == []
    again = BucketState(state.text(), RULES)
    (alert,) = again.evaluate({A: [RuleEvent(900, 0, 2)]}, 0).alerts
    assert (alert.rule, alert.key, alert.events) == ("fast", "a", 3)
    assert again.text() is None


def test_keys_and_rules_do_not_mix() -> None:
    state = BucketState(None, RULES)
    keys = [A, StateKey("fast", "b"), StateKey("long", "a")]
    assert state.evaluate({key: [RuleEvent(0, 0, 0), RuleEvent(1, 0, 1)] for key in keys}, 0).alerts == []
    found = state.evaluate({StateKey("fast", "b"): [RuleEvent(2, 0, 2)]}, 0)
    assert [(alert.rule, alert.key) for alert in found.alerts] == [("fast", "b")]


def test_sessions_end_when_the_watermark_comes_without_new_events() -> None:
    state = BucketState(None, RULES)
    state.evaluate({StateKey("long", "a"): [RuleEvent(time, 0, time) for time in (0, 500, 900)]}, 0)
    state.evaluate({StateKey("long", "b"): [RuleEvent(5_000, 0, 9)]}, 0)
    assert state.wake_ms == 1_900
    again = BucketState(state.text(), RULES)
    assert again.evaluate({}, 1_899).alerts == []
    (alert,) = again.evaluate({}, 1_900).alerts
    assert (alert.key, alert.events, again.wake_ms) == ("a", 3, 6_000)


def test_late_events_and_forgotten_ones_are_told_with_their_rule() -> None:
    state = BucketState(None, RULES)
    found = state.evaluate(
        {A: [RuleEvent(5, 0, 0)], StateKey("long", "a"): [RuleEvent(5, 0, 0), RuleEvent(20, 0, 1)]}, 10
    )
    assert found.late == [("fast", RuleEvent(5, 0, 0)), ("long", RuleEvent(5, 0, 0))]
    much = {"much": DetectRule("much", RuleKind.SUM, 1e12, 10**9, field="amount")}
    found = BucketState(None, much).evaluate(
        {StateKey("much", "a"): [RuleEvent(time, 0, time) for time in range(2_003)]}, 0
    )
    assert found.forgotten == {"much": 3}


def test_a_removed_rule_is_forgotten_and_a_changed_one_begins_anew() -> None:
    state = BucketState(None, RULES)
    state.evaluate({A: [RuleEvent(0, 0, 0)], StateKey("long", "a"): [RuleEvent(0, 0, 0)]}, 0)
    text = state.text()
    assert BucketState(text, {}).text() is None
    assert "fast" not in (BucketState(text, {"long": SESSION}).text() or "")
    assert BucketState(text, {"fast": SESSION._replace(name="fast")}).text() is None
    assert BucketState(text, {"fast": COUNT._replace(at_least=9), "long": SESSION}).text() == text


@given(
    some.lists(
        some.tuples(some.sampled_from(["a", "b", "c"]), some.integers(0, 4_000), some.integers(0, 1_500)),
        max_size=30,
    )
)
def test_each_key_fares_as_if_it_were_alone(rows: list[tuple[str, int, int]]) -> None:
    """The watermark moves with every row; keys that are alone are called each time."""
    text, watermark_ms = None, 0
    alone: dict[StateKey, RuleState] = {StateKey(rule, key): () for rule in RULES for key in "abc"}
    expected: list[Alert] = []
    found: list[Alert] = []
    for offset, (key, time_ms, moved_ms) in enumerate(rows):
        watermark_ms += moved_ms
        event = RuleEvent(time_ms, 0, offset)
        state = BucketState(text, RULES)
        found += state.evaluate({StateKey(rule, key): [event] for rule in RULES}, watermark_ms).alerts
        text = state.text()
        for state_key, held in sorted(alone.items()):
            new = [event] if state_key.key == key else []
            outcome = apply_events(RULES[state_key.rule], state_key.key, held, new, watermark_ms)
            alone[state_key] = outcome.held
            expected += outcome.alerts
    assert found == expected
