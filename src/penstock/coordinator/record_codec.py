"""Keys and values of the records in internal topics: a number (int16), and fields that follow it.

The number of a key is the type of the record; that of a value is the version of its fields. Each topic has
its own table of types: `groups/records.py`, `transactions/records.py`.

Rule 1: bytes that cannot be decoded raise CorruptData.
"""

from struct import Struct as Layout
from typing import Final, TypeVar

import msgspec

from penstock.errors import CorruptData, ProtocolError
from penstock.protocol.compiler import decode
from penstock.types import Buffer

PREFIX: Final = Layout(">h")
PENSTOCK_TAG: Final = 10_000
"""Tag of a field that Kafka does not have. Kafka's own tags count from zero."""

Decoded = TypeVar("Decoded", bound=msgspec.Struct)


def read_prefix(data: Buffer, what: str) -> int:
    """Return the number with which a key or a value begins. `what` names it in errors."""
    if len(data) < PREFIX.size:
        raise CorruptData(f"{what}: {len(data)} bytes are too few to say what it is")
    number: int = PREFIX.unpack_from(data)[0]
    return number


def decode_fields(kind: type[Decoded], version: int, flexible: bool, data: Buffer) -> Decoded:
    """Decode the fields after the prefix. They must end where `data` ends."""
    try:
        decoded, end = decode(kind, version, flexible, data, PREFIX.size)
    except ProtocolError as problem:
        raise CorruptData(str(problem)) from problem
    if end != len(data):
        raise CorruptData(f"{kind.__name__}: {len(data) - end} bytes follow its end")
    return decoded
