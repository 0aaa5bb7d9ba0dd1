"""What counts as a violation, and how it is told."""

import pytest

from penstock.errors import ConfigError
from penstock.spark.lake.lake_table import OffsetSpan
from penstock.spark.pipelines.audit.ids import IdKind, IdPart, parse_ids
from penstock.spark.pipelines.audit.report import AuditReport, Finding, id_text, spans_text, violation_kinds


def report(
    *findings: Finding, strict: bool = False, complete: bool = False, ignored: str = ""
) -> AuditReport:
    kinds = violation_kinds(strict=strict, complete=complete, ignored=[ignored])
    return AuditReport({"records of topics": 1_000}, findings, kinds, 1.25)


LOST = Finding("lost", "orders/0", 3, "records are not in the table", ("offsets 1 to 3",))
BEHIND = Finding("behind", "orders/0", 10, "offsets not archived yet")
UNKNOWN = Finding("unknown", "orders/0", 2, "offsets before the topic's are missing")


def test_a_loss_is_a_violation_unless_it_is_ignored() -> None:
    assert not report(LOST).is_clean
    assert report(LOST, ignored="lost").is_clean
    assert report(LOST._replace(number=0)).is_clean


def test_what_is_behind_or_unknown_is_one_only_if_asked() -> None:
    assert report(BEHIND, UNKNOWN).is_clean
    assert report(BEHIND, UNKNOWN, complete=True).violations == [BEHIND]
    assert report(BEHIND, UNKNOWN, strict=True).violations == [UNKNOWN]


def test_lines_begin_with_violations_and_end_with_the_verdict() -> None:
    lines = report(BEHIND, LOST).lines()
    assert lines[0] == "VIOLATION  lost: orders/0: 3 records are not in the table (offsets 1 to 3)"
    assert lines[1] == "note       orders/0: 10 offsets not archived yet"
    assert lines[-1] == "verdict                    violations: lost"
    assert report().lines()[-1].endswith("clean")


def test_a_document_has_all_numbers() -> None:
    document = report(LOST, LOST, BEHIND).document()
    assert (document["clean"], document["lost"], document["behind"], document["order"]) == (False, 6, 10, 0)
    assert [each["kind"] for each in document["violations"]] == ["lost", "lost"]


def test_examples_say_how_many_more_there_are() -> None:
    finding = Finding("duplicated", "orders", 7, "records arrived more than once", ("a", "b"))
    assert finding.line() == "orders: 7 records arrived more than once (a; b, and 5 more)"


def test_ranges_that_touch_are_one() -> None:
    spans = [OffsetSpan(100, 200), OffsetSpan(0, 100), OffsetSpan(300, 301)]
    assert spans_text(spans, is_all=True) == ("offsets 0 to 199", "offset 300")
    assert spans_text(spans, is_all=False)[-1] == "and others"
    many = [OffsetSpan(10 * index, 10 * index + 2) for index in range(9)]
    assert len(spans_text(many, is_all=True)) == 6


def test_ids_are_shown_as_text_where_they_are_text() -> None:
    assert id_text([b"key", b"\xff\x00", b"a\nb"]) == "key 0xff00 'a\\nb'"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("key", IdPart(IdKind.KEY)),
        ("header:message-id", IdPart(IdKind.HEADER, "message-id")),
        ("header:a:b", IdPart(IdKind.HEADER, "a:b")),
        ("json:order.id", IdPart(IdKind.JSON, "order.id")),
        ("replay", IdPart(IdKind.REPLAY)),
    ],
)
def test_an_id_is_understood(text: str, part: IdPart) -> None:
    assert parse_ids([text]) == (part,)
    assert str(part) == text


@pytest.mark.parametrize(
    "text", ["", "colour", "header", "header:", "key:x", "replay:1", "json:a..b", "json:$"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--id"):
        parse_ids([text])


def test_replay_stands_alone() -> None:
    with pytest.raises(ConfigError, match="stands alone"):
        parse_ids(["key", "replay"])
