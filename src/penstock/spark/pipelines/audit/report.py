"""Report of an audit: the findings, which of them are violations, and their text. Pure.

Kinds of violations:

    lost         a record of the topic is missing where it must be by now
    duplicated   a record is there more than once
    different    a record is there with another key, value, time or other headers
    order        records of a key, or rows of a file, are in another order
    files        files of the table are missing, or foreign files lie where readers of the folder see them
    unknown      cannot be decided: the topic no longer has the record, or it has no id (with --strict)
    behind       the last records of the topic have not arrived yet                     (with --complete)
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.spark.lake.lake_table import OffsetSpan
from penstock.spark.pipelines.common import report

KINDS: Final = ("lost", "duplicated", "different", "order", "files", "unknown", "behind")
OPTIONAL_KINDS: Final = ("unknown", "behind")
EXAMPLES_MAX: Final = 5


class Finding(NamedTuple):
    """Finding of one kind at one location."""

    kind: str
    where: str
    number: int
    what: str
    """Description, printed after the number."""
    examples: tuple[str, ...] = ()

    def line(self) -> str:
        rest = self.number - len(self.examples)
        more = f", and {rest:,} more" if self.examples and rest > 0 and self.kind != "lost" else ""
        examples = f" ({'; '.join(self.examples)}{more})" if self.examples else ""
        return f"{self.where}: {self.number:,} {self.what}{examples}"


class AuditReport(NamedTuple):
    checked: dict[str, int]
    """Numbers of rows or records that were checked."""
    findings: tuple[Finding, ...]
    violation_kinds: frozenset[str]
    """Kinds that count as violations in this audit."""
    seconds: float

    @property
    def violations(self) -> list[Finding]:
        return [
            finding for finding in self.findings if finding.kind in self.violation_kinds and finding.number
        ]

    @property
    def notes(self) -> list[Finding]:
        return [
            finding
            for finding in self.findings
            if finding.kind not in self.violation_kinds and finding.number
        ]

    @property
    def is_clean(self) -> bool:
        return not self.violations

    def total(self, kind: str) -> int:
        return sum(finding.number for finding in self.findings if finding.kind == kind)

    def document(self) -> dict[str, Any]:
        return report.document(
            {
                "pipeline": "audit",
                "clean": self.is_clean,
                "checked": self.checked,
                **{kind: self.total(kind) for kind in KINDS},
                "violations": [finding._asdict() for finding in self.violations],
                "notes": [finding._asdict() for finding in self.notes],
                "seconds": self.seconds,
            }
        )

    def lines(self) -> list[str]:
        kinds = {finding.kind for finding in self.violations}
        verdict = "clean" if self.is_clean else f"violations: {', '.join(sorted(kinds))}"
        finding_lines = [f"VIOLATION  {finding.kind}: {finding.line()}" for finding in self.violations]
        finding_lines += [f"note       {finding.line()}" for finding in self.notes]
        facts = {f"checked {name}": count for name, count in self.checked.items()}
        return [*finding_lines, *report.lines({**facts, "seconds": self.seconds, "verdict": verdict})]


def violation_kinds(*, strict: bool, complete: bool, ignored: Iterable[str]) -> frozenset[str]:
    wanted = set(KINDS) - set(OPTIONAL_KINDS)
    wanted |= {"unknown"} if strict else set()
    wanted |= {"behind"} if complete else set()
    return frozenset(wanted - set(ignored))


def spans_text(spans: Sequence[OffsetSpan], *, is_all: bool) -> tuple[str, ...]:
    """Return the first few ranges as text, with adjacent ranges joined."""
    joined: list[OffsetSpan] = []
    for span in sorted(spans):
        if joined and joined[-1].end >= span.start:
            joined[-1] = OffsetSpan(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    shown = [_span_text(span) for span in joined[:EXAMPLES_MAX]]
    if len(joined) > EXAMPLES_MAX or not is_all:
        shown.append("and others")
    return tuple(shown)


def _span_text(span: OffsetSpan) -> str:
    last = span.end - 1
    return f"offset {span.start}" if span.start == last else f"offsets {span.start} to {last}"


def id_text(parts: Sequence[bytes]) -> str:
    """Return the id for users: printable text where possible, else hexadecimal digits."""
    return " ".join(_text(part) for part in parts)


def _text(part: bytes) -> str:
    try:
        text = bytes(part).decode()
    except UnicodeDecodeError:
        return f"0x{bytes(part).hex()}"
    return text if text.isprintable() else ascii(text)
