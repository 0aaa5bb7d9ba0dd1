"""Messages made from their own tables, for tests that compare codecs.

Values are drawn from a seeded source, with a taste for limits: the ends of every integer type, null,
empty, and lengths that take two bytes as a compact length. The same seed gives the same message.
"""

from random import Random
from typing import NamedTuple, TypeVar

import msgspec

from penstock.errors import ErrorCode
from penstock.protocol.apis import ALL, APIS, NOT_SERVED
from penstock.protocol.schema import Api, Blob, FieldSpec, Fixed, Nested, Struct, Text, fields_of

INTEGER_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
TEXTS = ("", "a", "orders", "réservé 時", "x" * 126, "y" * 127, "z" * 200)
BLOBS = (b"", b"\x00", bytes(range(256)), b"r" * 20_000)
TIMES_MS = (-1, 0, 1, 1_754_000_000_123)


Made = TypeVar("Made", bound=msgspec.Struct)


class Case(NamedTuple):
    """One side of one API at one version."""

    api: Api[Struct, Struct]
    side: str
    version: int

    @property
    def message(self) -> type[Struct]:
        return self.api.request if self.side == "request" else self.api.response

    @property
    def flexible(self) -> bool:
        return self.api.is_flexible(self.version)

    def __str__(self) -> str:
        return f"{self.api.name}-{self.side}-{self.version}"


CASES = [
    Case(api, side, version)
    for api in (*APIS.values(), *NOT_SERVED)
    for version in range(api.versions[0], api.versions[1] + 1)
    for side in ("request", "response")
]
KAFKA_CASES = [case for case in CASES if case.api in (*ALL, *NOT_SERVED)]
"""Without what only brokers of Penstock say to each other."""


def samples(case: Case, count: int = 8) -> list[Struct]:
    """The message with nothing but defaults, then `count` of them made at random."""
    random = Random(str(case))
    return [case.message(), *(sample(case.message, case.version, random) for _ in range(count))]


def sample(message: type[Made], version: int, random: Random) -> Made:
    return _struct(message, version, random, depth=0)


def _struct(message: type[Made], version: int, random: Random, depth: int) -> Made:
    fields = [field for field in fields_of(message) if field.is_in(version)]
    return message(
        **{
            field.name: _value(field, version, random, depth)
            for field in fields
            if field.tag is None or random.random() < 0.5
        }
    )


def _value(field: FieldSpec, version: int, random: Random, depth: int) -> object:
    if field.is_nullable(version) and random.random() < 0.3:
        return None
    if not field.is_array:
        return _element(field, version, random, depth)
    long = isinstance(field.kind, Fixed) or (isinstance(field.kind, Nested) and depth == 0)
    lengths = (0, 1, 2, 3, 130) if long and random.random() < 0.1 else (0, 1, 2)
    return [_element(field, version, random, depth) for _ in range(random.choice(lengths))]


def _element(field: FieldSpec, version: int, random: Random, depth: int) -> object:
    match field.kind:
        case Fixed(format=formats):
            return _fixed(field.name, formats, random)
        case Text():
            return random.choice(TEXTS)
        case Blob():
            return random.choice(BLOBS)
        case Nested(message=message):
            return _struct(message, version, random, depth + 1)


def _fixed(name: str, formats: str, random: Random) -> object:
    if formats == "?":
        return random.random() < 0.5
    if formats == "16s":
        return random.choice((bytes(16), random.randbytes(16)))
    if name.endswith("error_code"):
        return int(random.choice(list(ErrorCode)))
    if formats == "q" and name.endswith("_time_ms"):
        # kio makes dates and durations of these, which do not reach as far as the type does.
        return random.choice(TIMES_MS)
    limit = 1 << (INTEGER_BITS[formats] - 1)
    return random.choice((0, 1, -1, limit - 1, -limit, random.randrange(-limit, limit)))
