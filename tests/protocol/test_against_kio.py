"""Our bytes mean to kio what they mean to us, and kio would have written the same ones.

For every API, version and direction: encode with the tables, read with kio, compare field by field,
let kio write it again, compare the bytes.
"""

import dataclasses
import datetime
import importlib
import io
import uuid
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from penstock.protocol.compiler import decode, encode
from penstock.protocol.messages.describe_transactions import DescribeTransactionsResponse
from penstock.protocol.schema import Fixed, Nested, fields_of
from tests.protocol.samples import KAFKA_CASES, Case, samples

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def kio_class(case: Case) -> Any:
    """The module is imported here, one version at a time: all of kio takes seconds to import."""
    index = importlib.import_module("kio.schema.index")
    name = index.api_key_map[case.api.key]
    module = importlib.import_module(f"kio.schema.{name}.v{case.version}.{case.side}")
    return getattr(module, case.message.__name__)


def is_known_to_kio(message: msgspec.Struct) -> bool:
    """kio reads no start time of -1, which Kafka sends for an id that has no transaction."""
    if not isinstance(message, DescribeTransactionsResponse):
        return True
    return all(state.transaction_start_time_ms >= 0 for state in message.transaction_states)


def as_on_the_wire(value: object, missing_uuid: bool) -> object:
    """kio's richer types, as the numbers and bytes they stand for."""
    match value:
        case None if missing_uuid:
            return bytes(16)
        case uuid.UUID():
            return value.bytes
        case Enum():
            return value.value
        case datetime.timedelta():
            return value // MILLISECOND
        case datetime.datetime():
            return (value - EPOCH) // MILLISECOND
        case _:
            return value


def assert_same(ours: object, theirs: Any, version: int) -> None:
    if isinstance(ours, msgspec.Struct):
        names = [field.name for field in fields_of(type(ours)) if field.is_in(version)]
        their_names = [field.name for field in dataclasses.fields(theirs)]
        assert [name.removesuffix("_ms") for name in names] == [
            name.removesuffix("_ms") for name in their_names
        ]
        for name, their_name in zip(names, their_names, strict=True):
            assert_same(getattr(ours, name), getattr(theirs, their_name), version)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for element, their_element in zip(ours, theirs, strict=True):
            assert_same(element, their_element, version)
    elif isinstance(ours, int) and theirs is None:
        assert ours == -1, "kio reads a timestamp of -1 as none"
    else:
        assert as_on_the_wire(theirs, missing_uuid=ours == bytes(16)) == ours


def innermost(hint: Any) -> Any:
    """The class within `tuple[X, ...] | None` and its parts."""
    while parts := [part for part in get_args(hint) if part not in (NoneType, ...)]:
        (hint,) = parts
    return hint


def assert_same_table(ours: type[msgspec.Struct], theirs: Any, version: int) -> None:
    hints = get_type_hints(theirs)
    fields = [field for field in fields_of(ours) if field.is_in(version)]
    for field, their_field in zip(fields, dataclasses.fields(theirs), strict=True):
        where = f"{ours.__name__}.{field.name}"
        hint, default = hints[their_field.name], their_field.default
        if isinstance(field.kind, Fixed) and not field.is_array:
            assert not field.is_nullable(version), where
            if default is not dataclasses.MISSING and default is not None:
                assert as_on_the_wire(default, missing_uuid=False) == field.default, where
            continue
        assert (NoneType in get_args(hint)) == field.is_nullable(version), where
        if isinstance(field.kind, Nested):
            assert_same_table(field.kind.message, innermost(hint), version)


@pytest.mark.parametrize("case", KAFKA_CASES, ids=str)
def test_our_tables_have_the_nulls_and_the_defaults_that_kio_has(case: Case) -> None:
    assert_same_table(case.message, kio_class(case), case.version)


@pytest.mark.parametrize("case", KAFKA_CASES, ids=str)
def test_kio_reads_what_we_write_and_writes_the_same_bytes(case: Case) -> None:
    serial = importlib.import_module("kio.serial")
    their_class = kio_class(case)
    read, write = serial.entity_reader(their_class), serial.entity_writer(their_class)
    for message in filter(is_known_to_kio, samples(case)):
        encoded = b"".join(encode(case.message, case.version, case.flexible, message))
        theirs, size = read(encoded, 0)
        assert size == len(encoded)
        assert_same(message, theirs, case.version)
        with io.BytesIO() as again:
            write(again, theirs)
            assert again.getvalue() == encoded
        ours, end = decode(case.message, case.version, case.flexible, memoryview(encoded))
        assert (ours, end) == (message, len(encoded))
