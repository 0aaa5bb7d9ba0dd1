"""State of all rules for many keys, serialized as one text that Spark stores. Pure.

Keys are assigned to BUCKETS by their hash, and Spark keeps one state per bucket. Spark spends milliseconds of
Python on every group that has rows, so a batch of ten thousand cards would take a minute with one group per
card. With buckets, the cost of a batch is the cost of its rows and of reading and writing the state.

Rule 1: the result of a rule for a key does not depend on the other keys in the bucket.
Rule 2: the state of a removed rule is dropped; a rule whose kind has changed starts with empty state.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.spark.pipelines.detect.rule_evaluation import Alert, RuleState, apply_events
from penstock.spark.pipelines.detect.rules import DetectRule
from penstock.spark.pipelines.detect.windows import RuleEvent

BUCKETS: Final = 256
"""Number of buckets. Part of every checkpoint: with another number, keys would be in other buckets."""


class StateKey(NamedTuple):
    """Rule and key that a state belongs to."""

    rule: str
    key: str


class EvaluationResult(NamedTuple):
    """Results of all rules for the keys of one bucket in one micro-batch."""

    alerts: list[Alert]
    late: list[tuple[str, RuleEvent]]
    """Late events, each with the rule that could not evaluate it."""
    forgotten: dict[str, int]
    """Events per rule that were removed before they expired, because a key had more than EVENTS_MAX."""


class BucketState:
    """States of all rules for the keys of one bucket."""

    def __init__(self, text: str | None, rules: Mapping[str, DetectRule]) -> None:
        self._rules = rules
        self._held: dict[StateKey, tuple[int, RuleState]] = {}
        for name, kind, keys in [] if text is None else json.loads(text):
            # Removed rules, and rules of another kind than before, lose their state (rule 2).
            if name in rules and rules[name].kind.value == kind:
                self._held |= {StateKey(name, key): (wake_ms, held) for key, (wake_ms, held) in keys.items()}

    def evaluate(self, events: Mapping[StateKey, Sequence[RuleEvent]], watermark_ms: int) -> EvaluationResult:
        """Evaluate new events, and keys whose wake time the watermark has passed."""
        found = EvaluationResult([], [], {})
        due = [key for key, (wake_ms, _) in self._held.items() if wake_ms <= watermark_ms]
        # Sorted, so that a batch that is run again produces its alerts in the same order.
        for key in sorted({*events, *due}):
            held = self._held.pop(key, (0, ()))[1]
            outcome = apply_events(self._rules[key.rule], key.key, held, events.get(key, ()), watermark_ms)
            if outcome.held:
                self._held[key] = (outcome.wake_ms, outcome.held)
            found.alerts.extend(outcome.alerts)
            found.late.extend((key.rule, event) for event in outcome.late)
            if outcome.forgotten:
                found.forgotten[key.rule] = found.forgotten.get(key.rule, 0) + outcome.forgotten
        return found

    @property
    def wake_ms(self) -> int:
        """Return the watermark at which the bucket must be evaluated again without new events."""
        return min((wake_ms for wake_ms, _ in self._held.values()), default=0)

    def text(self) -> str | None:
        """Serialize the state; None if there is none."""
        if not self._held:
            return None
        by_rule: dict[str, dict[str, Any]] = {}
        for key, held in sorted(self._held.items(), key=lambda each: each[0]):
            by_rule.setdefault(key.rule, {})[key.key] = held
        document = [(name, self._rules[name].kind.value, mine) for name, mine in by_rule.items()]
        return json.dumps(document, separators=(",", ":"))
