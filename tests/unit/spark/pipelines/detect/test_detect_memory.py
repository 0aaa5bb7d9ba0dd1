"""What is remembered of many keys: as if each were alone, and the same after it was text."""

from hypothesis import given
from hypothesis import strategies as some

from penstock.spark.pipelines.detect.memory import BucketMemory, MemoryKey
from penstock.spark.pipelines.detect.rules import DetectRule, RuleKind
from penstock.spark.pipelines.detect.state import Alert, RuleMemory, apply_events
from penstock.spark.pipelines.detect.windows import RuleEvent

COUNT = DetectRule("fast", RuleKind.COUNT, 3, 1_000)
SESSION = DetectRule("long", RuleKind.SESSION, 3, 1_000)
RULES = {"fast": COUNT, "long": SESSION}
A = MemoryKey("fast", "a")


def test_what_is_remembered_survives_as_text() -> None:
    memory = BucketMemory(None, RULES)
    assert memory.text() is None
    assert memory.look({A: [RuleEvent(0, 0, 0), RuleEvent(500, 0, 1)]}, 0).alerts == []
    again = BucketMemory(memory.text(), RULES)
    (alert,) = again.look({A: [RuleEvent(900, 0, 2)]}, 0).alerts
    assert (alert.rule, alert.key, alert.events) == ("fast", "a", 3)
    assert again.text() is None


def test_keys_and_rules_do_not_mix() -> None:
    memory = BucketMemory(None, RULES)
    looks = [A, MemoryKey("fast", "b"), MemoryKey("long", "a")]
    assert memory.look({look: [RuleEvent(0, 0, 0), RuleEvent(1, 0, 1)] for look in looks}, 0).alerts == []
    found = memory.look({MemoryKey("fast", "b"): [RuleEvent(2, 0, 2)]}, 0)
    assert [(alert.rule, alert.key) for alert in found.alerts] == [("fast", "b")]


def test_sessions_end_when_the_watermark_comes_without_new_events() -> None:
    memory = BucketMemory(None, RULES)
    memory.look({MemoryKey("long", "a"): [RuleEvent(time, 0, time) for time in (0, 500, 900)]}, 0)
    memory.look({MemoryKey("long", "b"): [RuleEvent(5_000, 0, 9)]}, 0)
    assert memory.wake_ms == 1_900
    again = BucketMemory(memory.text(), RULES)
    assert again.look({}, 1_899).alerts == []
    (alert,) = again.look({}, 1_900).alerts
    assert (alert.key, alert.events, again.wake_ms) == ("a", 3, 6_000)


def test_late_events_and_forgotten_ones_are_told_with_their_rule() -> None:
    memory = BucketMemory(None, RULES)
    found = memory.look(
        {A: [RuleEvent(5, 0, 0)], MemoryKey("long", "a"): [RuleEvent(5, 0, 0), RuleEvent(20, 0, 1)]}, 10
    )
    assert found.late == [("fast", RuleEvent(5, 0, 0)), ("long", RuleEvent(5, 0, 0))]
    much = {"much": DetectRule("much", RuleKind.SUM, 1e12, 10**9, field="amount")}
    found = BucketMemory(None, much).look(
        {MemoryKey("much", "a"): [RuleEvent(time, 0, time) for time in range(2_003)]}, 0
    )
    assert found.forgotten == {"much": 3}


def test_a_removed_rule_is_forgotten_and_a_changed_one_begins_anew() -> None:
    memory = BucketMemory(None, RULES)
    memory.look({A: [RuleEvent(0, 0, 0)], MemoryKey("long", "a"): [RuleEvent(0, 0, 0)]}, 0)
    text = memory.text()
    assert BucketMemory(text, {}).text() is None
    assert "fast" not in (BucketMemory(text, {"long": SESSION}).text() or "")
    assert BucketMemory(text, {"fast": SESSION._replace(name="fast")}).text() is None
    assert BucketMemory(text, {"fast": COUNT._replace(at_least=9), "long": SESSION}).text() == text


@given(
    some.lists(
        some.tuples(some.sampled_from(["a", "b", "c"]), some.integers(0, 4_000), some.integers(0, 1_500)),
        max_size=30,
    )
)
def test_each_key_fares_as_if_it_were_alone(rows: list[tuple[str, int, int]]) -> None:
    """The watermark moves with every row; keys that are alone are called each time."""
    text, watermark_ms = None, 0
    alone: dict[MemoryKey, RuleMemory] = {MemoryKey(rule, key): () for rule in RULES for key in "abc"}
    expected: list[Alert] = []
    found: list[Alert] = []
    for offset, (key, time_ms, moved_ms) in enumerate(rows):
        watermark_ms += moved_ms
        event = RuleEvent(time_ms, 0, offset)
        memory = BucketMemory(text, RULES)
        found += memory.look({MemoryKey(rule, key): [event] for rule in RULES}, watermark_ms).alerts
        text = memory.text()
        for look, held in sorted(alone.items()):
            new = [event] if look.key == key else []
            outcome = apply_events(RULES[look.rule], look.key, held, new, watermark_ms)
            alone[look] = outcome.held
            expected += outcome.alerts
    assert found == expected
