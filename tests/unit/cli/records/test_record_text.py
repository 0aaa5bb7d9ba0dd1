"""Records as lines: what is read becomes what is sent, what is printed can be read again."""

import errno
import io
import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.records.record_input import (
    OutgoingRecord,
    json_records,
    numbered_lines,
    plain_records,
    record_of_json,
)
from penstock.cli.records.record_output import BytesFormat, BytesFormats, IncomingRecord, formatter
from penstock.errors import CommandFailed

NOTHING = OutgoingRecord(None)


def incoming(**changes: Any) -> IncomingRecord:
    record = IncomingRecord("orders", 2, 41, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("a", None)))
    return record._replace(**changes)


def shown(format_: str, record: IncomingRecord, forms: BytesFormats = BytesFormats()) -> bytes:  # noqa: B008
    return formatter(format_, forms)(record)


def test_each_line_is_a_value_byte_for_byte() -> None:
    lines = list(plain_records(io.BytesIO(b"one\n\n\xff two \r\nthree"), NOTHING, None))

    assert [record.value for record in lines] == [b"one", b"", b"\xff two \r", b"three"]


def test_the_first_separator_ends_the_key() -> None:
    (record,) = plain_records(io.BytesIO(b"a:b:c\n"), NOTHING, b":")

    assert (record.key, record.value) == (b"a", b"b:c")


def test_a_line_without_its_separator_is_named_by_number() -> None:
    with pytest.raises(CommandFailed, match="line 2 has no key"):
        list(plain_records(io.BytesIO(b"a:1\nb\n"), NOTHING, b":"))


def test_a_line_that_never_ends_is_refused() -> None:
    assert len(list(numbered_lines(io.BytesIO(b"123456789\n"), bytes_max=10))) == 1
    with pytest.raises(CommandFailed, match="line 1 is longer than 10 bytes"):
        list(numbered_lines(io.BytesIO(b"12345678901"), bytes_max=10))


def test_json_says_everything_of_a_record() -> None:
    line = b'{"key":"k","value":null,"headers":{"a":"1"},"partition":3,"timestamp":5}\n\n'

    assert list(json_records(io.BytesIO(line), NOTHING)) == [OutgoingRecord(None, b"k", (("a", b"1"),), 3, 5)]


def test_json_leaves_the_rest_to_the_options() -> None:
    pattern = OutgoingRecord(None, b"shared", (("all", b"x"),), 7)

    (record,) = json_records(io.BytesIO(b'{"value_base64":"/w=="}'), pattern)

    assert record == OutgoingRecord(b"\xff", b"shared", (("all", b"x"),), 7)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([], "a JSON object is needed"),
        ({"key": "a"}, "has no value"),
        ({"value": 1}, "put it in quotes"),
        ({"valeu": "1"}, "'valeu' is no field"),
        ({"value": "1", "value_hex": "31"}, "value is given twice"),
        ({"value_base64": "!"}, "^value_base64 is not base64$"),
        ({"value": "1", "headers": {"a": {"base64": "!"}}}, "^the value of a header is not base64$"),
        ({"key_hex": "zz", "value": "1"}, "^key_hex is not hexadecimal: use an even number of"),
        ({"value": "1", "partition": -1}, "partition must be a whole number from 0 to 2147483647"),
        ({"value": "1", "partition": True}, "partition must be a whole number"),
        ({"value": "1", "timestamp": "now"}, "timestamp must be a whole number"),
        (
            {"value": "1", "timestamp": 2**63},
            "timestamp must be a whole number from 0 to 9223372036854775807",
        ),
        ({"value": "1", "headers": [["a"]]}, "headers must be"),
        ({"value": "1", "headers": "ab"}, "headers must be"),
        ({"value": "1", "headers": 5}, "headers must be"),
    ],
)
def test_json_that_is_no_record_is_refused(fields: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        record_of_json(fields, NOTHING)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"nope", "from character 1 on it is not JSON"),
        (b'{"value": "a"', "from character 14 on it is not JSON"),
        (b'{"value": "\xff"}', "byte 12 is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"value": ' + b"9" * 5_000 + b"}", "the number 99999999999999999999... is too long"),
        (b'{"value": "a", "value": "b"}', "'value' is given twice"),
        (b'{"value": "a", "headers": {"h": "1", "h": "2"}}', "'h' is given twice"),
    ],
)
def test_a_line_that_is_no_record_is_refused_in_words_for_its_author(line: bytes, problem: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        list(json_records(io.BytesIO(b'{"value": "fine"}\n' + line), NOTHING))

    assert str(refused.value).startswith(f"line 2 is not a record: {problem}")


def test_an_input_that_fails_is_told_in_a_sentence() -> None:
    class Broken(io.BytesIO):
        def readline(self, _: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(CommandFailed, match="cannot read the input: Input/output error"):
        list(plain_records(Broken(), NOTHING, None))


def test_raw_is_the_value_and_nothing_else() -> None:
    assert shown("raw", incoming(value=b"\xff\x00")) == b"\xff\x00\n"
    assert shown("raw", incoming(value=None)) == b"\n"
    assert shown("raw", incoming(value=b"\xff"), BytesFormats(value=BytesFormat.HEX)) == b"ff\n"


def test_a_template_is_filled() -> None:
    assert (
        shown("%t/%p/%o %k=%v [%h] %T 100%%", incoming()) == b"orders/2/41 k=v [a=1,a=] 1700000000123 100%\n"
    )


def test_a_template_ends_its_line_once() -> None:
    assert shown(r"%k\t%v\n", incoming()) == b"k\tv\n"


@pytest.mark.parametrize("template", ["%q", "%v %", "text"])
def test_a_template_that_means_nothing_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"means nothing|names nothing"):
        formatter(template, BytesFormats())


CONTENT = st.none() | st.binary(max_size=20)


@given(
    key=CONTENT,
    value=CONTENT,
    headers=st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3),
    form=st.sampled_from(BytesFormat),
)
def test_what_is_printed_as_json_can_be_sent_again(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], form: BytesFormat
) -> None:
    record = incoming(key=key, value=value, headers=tuple(headers))
    line = shown("json", record, BytesFormats(form, form))

    (again,) = json_records(io.BytesIO(line), NOTHING)

    assert again == OutgoingRecord(value, key, tuple(headers), record.partition, record.timestamp)


def test_json_shows_text_as_text_and_bytes_as_base64() -> None:
    fields = json.loads(shown("json", incoming(key=b"\xff", value="é".encode())))

    assert (fields["key_base64"], fields["value"]) == ("/w==", "é")
    assert fields["headers"] == [["a", "1"], ["a", None]]
