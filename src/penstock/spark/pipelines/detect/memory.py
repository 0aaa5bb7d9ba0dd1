"""What all rules remember of many keys, as one text that Spark keeps. Pure.

Keys are put into BUCKETS by their hash, and Spark's state is that of a bucket. Spark spends milliseconds of
Python on every group that has rows; a batch of ten thousand cards would take a minute if each were one.
With buckets the price of a batch is that of its rows and of reading and writing what is remembered.

Rule 1: what a rule does with a key does not depend on what else is in the bucket.
Rule 2: a rule that is no more is forgotten; one whose kind has changed begins anew.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.spark.pipelines.detect.rules import DetectRule
from penstock.spark.pipelines.detect.state import Alert, RuleMemory, apply_events
from penstock.spark.pipelines.detect.windows import RuleEvent

BUCKETS: Final = 256
"""Part of every checkpoint: another number would look for keys where they are not."""


class MemoryKey(NamedTuple):
    """Whose memory is meant."""

    rule: str
    key: str


class EvaluationResult(NamedTuple):
    alerts: list[Alert]
    late: list[tuple[str, RuleEvent]]
    """With the rule that could not look at it."""
    forgotten: dict[str, int]


class BucketMemory:
    def __init__(self, text: str | None, rules: Mapping[str, DetectRule]) -> None:
        self._rules = rules
        self._held: dict[MemoryKey, tuple[int, RuleMemory]] = {}
        for name, kind, keys in [] if text is None else json.loads(text):
            if name in rules and rules[name].kind.value == kind:
                self._held |= {MemoryKey(name, key): (wake_ms, held) for key, (wake_ms, held) in keys.items()}

    def look(self, events: Mapping[MemoryKey, Sequence[RuleEvent]], watermark_ms: int) -> EvaluationResult:
        """At new events; and at what the watermark has passed."""
        found = EvaluationResult([], [], {})
        due = [look for look, (wake_ms, _) in self._held.items() if wake_ms <= watermark_ms]
        for look in sorted({*events, *due}):
            held = self._held.pop(look, (0, ()))[1]
            outcome = apply_events(self._rules[look.rule], look.key, held, events.get(look, ()), watermark_ms)
            if outcome.held:
                self._held[look] = (outcome.wake_ms, outcome.held)
            found.alerts.extend(outcome.alerts)
            found.late.extend((look.rule, event) for event in outcome.late)
            if outcome.forgotten:
                found.forgotten[look.rule] = found.forgotten.get(look.rule, 0) + outcome.forgotten
        return found

    @property
    def wake_ms(self) -> int:
        """When the watermark is here, there is something to do without new events."""
        return min((wake_ms for wake_ms, _ in self._held.values()), default=0)

    def text(self) -> str | None:
        """None if nothing is remembered."""
        if not self._held:
            return None
        keys: dict[str, dict[str, Any]] = {}
        for look, held in sorted(self._held.items(), key=lambda each: each[0]):
            keys.setdefault(look.rule, {})[look.key] = held
        document = [(name, self._rules[name].kind.value, mine) for name, mine in keys.items()]
        return json.dumps(document, separators=(",", ":"))
