"""The schema language of message tables, and its reader.

A message is a `Struct` whose annotations are its layout on the wire, in wire order. A handler gets the type
that mypy sees (`int`, `str`, ...); the rest of the annotation is the encoding:

    versions(4)       only from version 4 on;  versions(4, 7): only in versions 4 to 7
    X | None          may be null;  with nullable(10): only from version 10 on
    tagged(0)         is in the tag section of flexible versions, left out when it has its default
                      unless it is always written: tagged(0, always=True)
    READY             an array whose elements may be of a subclass with pre-encoded bytes of the same
                      version, `encoded`: they are sent as they are
    RARE              almost always empty, null or default: `encoders.py` describes the effect

Rule 1: every field has a default, which is its value in versions that lack the field.
Rule 2: `fields_of` reads the annotations when a codec is first needed. Importing tables is cheap.
Rule 3: messages have no reference cycles, so the garbage collector need not track them (gc=False).
"""

from collections.abc import Sequence
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from penstock.types import Buffer, TopicId


class Struct(msgspec.Struct, gc=False):
    """Base class of every message and of nearly every part of one."""


class FrozenStruct(msgspec.Struct, frozen=True, gc=False):
    """Base class of parts that are used as defaults, and so must never change."""


class Fixed(msgspec.Struct, frozen=True):
    """A fixed-size value, with its format in the `struct` module."""

    format: str
    size: int


class Text(msgspec.Struct, frozen=True):
    """UTF-8 text after its length."""


class Blob(msgspec.Struct, frozen=True):
    """Bytes after their length. Records are never copied: decoding returns a view, encoding emits the
    buffers."""

    is_records: bool = False


class Nested(msgspec.Struct, frozen=True):
    """A nested struct."""

    message: type[msgspec.Struct]


FieldKind = Fixed | Text | Blob | Nested

Bool = Annotated[bool, Fixed("?", 1)]
Int8 = Annotated[int, Fixed("b", 1)]
Int16 = Annotated[int, Fixed("h", 2)]
Int32 = Annotated[int, Fixed("i", 4)]
Int64 = Annotated[int, Fixed("q", 8)]
Uuid = Annotated[bytes, Fixed("16s", 16)]
TopicUuid = Annotated[TopicId, Fixed("16s", 16)]
String = Annotated[str, Text()]
Bytes = Annotated[bytes, Blob()]
Records = Annotated[Buffer, Blob(is_records=True)]
GatheredRecords = Annotated[Buffer | Sequence[Buffer], Blob(is_records=True)]
"""Records that may also be encoded from several buffers, which follow one another on the wire."""

NO_UUID: Final = bytes(16)
OPERATIONS_NOT_REQUESTED: Final = -(2**31)
"""Value of an authorised-operations bit set that the client did not request."""

VERSION_MAX: Final = 32767


class Versions(msgspec.Struct, frozen=True):
    first: int
    last: int


class Nullable(msgspec.Struct, frozen=True):
    first: int


class Tag(msgspec.Struct, frozen=True):
    number: int
    always: bool


class Rare(msgspec.Struct, frozen=True):
    pass


class Ready(msgspec.Struct, frozen=True):
    pass


RARE: Final = Rare()
READY: Final = Ready()


def versions(first: int, last: int = VERSION_MAX) -> Versions:
    return Versions(first, last)


def nullable(first: int) -> Nullable:
    return Nullable(first)


def tagged(number: int, always: bool = False) -> Tag:
    return Tag(number, always)


Request = TypeVar("Request", bound=Struct)
Response = TypeVar("Response", bound=Struct)
Request_co = TypeVar("Request_co", bound=Struct, covariant=True)
Response_co = TypeVar("Response_co", bound=Struct, covariant=True)


class Api(msgspec.Struct, Generic[Request_co, Response_co], frozen=True):
    """An API: its key, the versions of its tables, and the first flexible version (None: no version is)."""

    key: int
    versions: tuple[int, int]
    flexible: int | None
    request: type[Request_co]
    response: type[Response_co]

    @property
    def name(self) -> str:
        """Kafka's name of the API, with which its messages begin."""
        return self.request.__name__.removesuffix("Request")

    def has_version(self, version: int) -> bool:
        first, last = self.versions
        return first <= version <= last

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible


class FieldSpec(msgspec.Struct, frozen=True):
    """One field of a message table, in the form for the compiler."""

    name: str
    kind: FieldKind
    default: object
    is_array: bool = False
    first: int = 0
    last: int = VERSION_MAX
    nullable_from: int | None = None
    tag: int | None = None
    is_always_sent: bool = False
    is_rare: bool = False
    may_be_ready: bool = False

    def is_in(self, version: int) -> bool:
        return self.first <= version <= self.last

    def is_nullable(self, version: int) -> bool:
        return self.nullable_from is not None and version >= self.nullable_from


@cache
def fields_of(message: type[msgspec.Struct]) -> tuple[FieldSpec, ...]:
    """Fields of a message table in wire order."""
    hints = get_type_hints(message, include_extras=True)
    # An instance without arguments has the defaults.
    pattern = message()
    return tuple(_field(name, hints[name], getattr(pattern, name)) for name in message.__struct_fields__)


def _field(name: str, hint: Any, default: object) -> FieldSpec:
    marks, hint = _marks(hint)
    is_nullable, hint = _without_none(hint)
    # Marks may be inside or outside of `| None`.
    inner_marks, hint = _marks(hint)
    marks = [*marks, *inner_marks]
    is_array = get_origin(hint) is list
    if is_array:
        element_marks, hint = _marks(get_args(hint)[0])
        marks.extend(element_marks)
    span = _find(marks, Versions) or Versions(0, VERSION_MAX)
    null = _find(marks, Nullable) or Nullable(0)
    tag = _find(marks, Tag)
    return FieldSpec(
        name=name,
        kind=_kind(name, hint, marks),
        default=default,
        is_array=is_array,
        first=span.first,
        last=span.last,
        nullable_from=null.first if is_nullable else None,
        tag=tag.number if tag else None,
        is_always_sent=tag is not None and tag.always,
        is_rare=RARE in marks,
        may_be_ready=READY in marks,
    )


def _marks(hint: Any) -> tuple[list[object], Any]:
    if get_origin(hint) is Annotated:
        return list(hint.__metadata__), hint.__origin__
    return [], hint


def _without_none(hint: Any) -> tuple[bool, Any]:
    options = get_args(hint)
    if NoneType not in options:
        return False, hint
    (rest,) = [option for option in options if option is not NoneType]
    return True, rest


_Mark = TypeVar("_Mark")


def _find(marks: list[object], wanted: type[_Mark]) -> _Mark | None:
    return next((mark for mark in marks if isinstance(mark, wanted)), None)


def _kind(name: str, hint: Any, marks: list[object]) -> FieldKind:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return Nested(hint)
    kind = next((mark for mark in marks if isinstance(mark, Fixed | Text | Blob)), None)
    assert kind is not None, f"field {name} has a type that says nothing about the wire: {hint}"
    return kind
