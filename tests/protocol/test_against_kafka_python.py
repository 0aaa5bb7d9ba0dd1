"""Our bytes mean to kafka-python what they mean to us, and it would have written the same ones.

It knows no consumer groups of the new protocol and no UnregisterBroker; for those, kio is the only witness.
"""

import importlib
import uuid
import warnings
from typing import Any

import msgspec
import pytest

from penstock.protocol.compiler import decode, encode
from penstock.protocol.schema import OPERATIONS_NOT_REQUESTED, Struct, fields_of
from tests.protocol.samples import KAFKA_CASES, Case, samples

PACKAGES = ("producer", "consumer", "metadata", "admin")
UNKNOWN_TO_IT = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "UnregisterBroker"}
KNOWN_TO_IT = [case for case in KAFKA_CASES if case.api.name not in UNKNOWN_TO_IT]


def their_class(case: Case) -> Any:
    for package in PACKAGES:
        with warnings.catch_warnings():
            # It reads its schemas with functions that Python 3.11 and 3.12 call deprecated.
            warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
            module = importlib.import_module(f"kafka.protocol.{package}")
        if hasattr(module, case.message.__name__):
            return getattr(module, case.message.__name__)
    raise LookupError(case.message.__name__)


def attribute(theirs: Any, name: str) -> Any:
    """In two responses it has a name of its own for the authorised operations."""
    return getattr(theirs, name) if name in theirs.fields else theirs.authorized_operations


def assert_same(ours: object, theirs: Any, version: int) -> None:
    if isinstance(ours, msgspec.Struct):
        if theirs is None:
            assert ours == type(ours)(), "a tagged struct it does not find is none to it, the default to us"
            return
        for field in fields_of(type(ours)):
            if field.is_in(version):
                assert_same(getattr(ours, field.name), attribute(theirs, field.name), version)
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for element, their_element in zip(ours, theirs, strict=True):
            assert_same(element, their_element, version)
    elif isinstance(theirs, uuid.UUID):
        assert theirs.bytes == ours
    elif isinstance(theirs, set):
        assert isinstance(ours, int)
        assert theirs == {bit for bit in range(32) if ours >> bit & 1}
    elif theirs is None:
        assert ours in (None, bytes(16), OPERATIONS_NOT_REQUESTED)
    else:
        assert theirs == ours


@pytest.mark.parametrize("case", KNOWN_TO_IT, ids=str)
def test_kafka_python_reads_what_we_write_and_writes_the_same_bytes(case: Case) -> None:
    their_message = their_class(case)
    api_message = importlib.import_module("kafka.protocol.api_message").ApiMessage
    for message in samples(case):
        encoded = b"".join(encode(case.message, case.version, case.flexible, message))
        # The methods of the base class: some classes wrap them to correct what a user passed.
        theirs = api_message.decode.__func__(their_message, encoded, version=case.version)
        assert_same(message, theirs, case.version)
        assert bytes(api_message.encode(theirs)) == encoded
        ours, end = decode(case.message, case.version, case.flexible, memoryview(encoded))
        assert isinstance(ours, Struct)
        assert (ours, end) == (message, len(encoded))
