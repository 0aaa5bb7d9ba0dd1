"""The decoder generator: writes the source of a decoder for one message and version.

The decoder is straight-line code: nested structs are inlined, arrays become loops, and adjacent fixed-size
fields are read with one `unpack_from`, together with the length of the field after them.

Positions: `p` only grows, because every length is checked to be non-negative before it is added. A slice
past the end is short and a read past the end raises, so a single comparison of `p` with `limit` at the end
detects every field that ran over. Only what costs memory is checked immediately. An array's length is
compared with the remaining bytes before its list is made, and charged to a budget of ELEMENTS_MAX for the
whole message, because an element of three bytes becomes an object of a hundred and takes a microsecond.
Compact lengths are charged as on the wire, one too large, so that empty arrays are not free either.
"""

from struct import error as StructError
from struct import unpack_from

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.schema import Blob, FieldSpec, Fixed, Nested, Text, fields_of
from penstock.protocol.source_writer import Source
from penstock.types import Buffer

VARINT_BYTES_MAX = 5
ELEMENTS_MAX = 200_000


def varint_after(data: Buffer, p: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte has the continuation bit."""
    byte = data[p]
    value = first - 0x80 + (byte << 7)
    if byte < 0x80:
        return value, p + 1
    for shift in range(14, 7 * VARINT_BYTES_MAX, 7):
        p += 1
        byte = data[p]
        value += (byte - 1) << shift
        if byte < 0x80:
            return value, p + 1
    raise ProtocolError(f"a varint is longer than {VARINT_BYTES_MAX} bytes")


def unsigned_varint(data: Buffer, p: int) -> tuple[int, int]:
    """Read an unsigned varint of the protocol. (Lengths in records are zigzag varints.)"""
    first = data[p]
    return (first, p + 1) if first < 0x80 else varint_after(data, p + 1, first)


def skip_tags(data: Buffer, p: int, count: int) -> int:
    """Skip a tag section without known tags; returns the position after it. `count` is its first byte."""
    if count > 0x7F:
        count, p = varint_after(data, p, count)
    limit = len(data)
    for _ in range(count):
        _tag, p = unsigned_varint(data, p)
        size, p = unsigned_varint(data, p)
        p += size
        if p > limit:
            raise ProtocolError("a tagged field runs past the end of the message")
    return p


def has_records(message: type[msgspec.Struct], version: int) -> bool:
    fields = [field for field in fields_of(message) if field.is_in(version)]
    return any(field.kind == Blob(is_records=True) for field in fields) or any(
        has_records(field.kind.message, version) for field in fields if isinstance(field.kind, Nested)
    )


def size_min(message: type[msgspec.Struct], version: int, flexible: bool) -> int:
    """Minimum size of a struct on the wire."""
    fields = [field for field in fields_of(message) if field.is_in(version) and field.tag is None]
    return sum(_field_size_min(field, version, flexible) for field in fields) + flexible


def _field_size_min(field: FieldSpec, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    return _element_size_min(field, version, flexible, nullable=field.is_nullable(version))


def _element_size_min(field: FieldSpec, version: int, flexible: bool, nullable: bool = False) -> int:
    match field.kind:
        case Fixed(size=size):
            return size
        case Text():
            return 1 if flexible else 2
        case Blob():
            return 1 if flexible else 4
        case Nested(message=message):
            return 1 if nullable else size_min(message, version, flexible)


class DecoderWriter:
    """Writes a decoder, field by field in wire order. Each `_read...` returns the expression of the value."""

    def __init__(self, message: type[msgspec.Struct], version: int, flexible: bool) -> None:
        self.source = Source()
        self._message = message
        self._version = version
        self._flexible = flexible
        self._keeps_view = has_records(message, version)
        self._run: list[tuple[str, str]] = []
        self.source.namespace.update(
            ProtocolError=ProtocolError,
            StructError=StructError,
            unpack_from=unpack_from,
            unsigned_varint=unsigned_varint,
            varint_after=varint_after,
            skip_tags=skip_tags,
        )

    def write(self) -> Source:
        line, block = self.source.line, self.source.block
        with block("def decode(data, p=0):"):
            kept = "memoryview" if self._keeps_view else "bytes"
            with block(f"if type(data) is not {kept}:"):
                line(f"data = {kept}(data)")
            line("limit = len(data)")
            line(f"budget = {ELEMENTS_MAX}")
            with block("try:"):
                line(f"message = {self._read_struct(self._message)}")
            with block("except (StructError, IndexError, UnicodeDecodeError) as problem:"):
                line(f"raise ProtocolError(f'{self._message.__name__}: {{problem}}') from problem")
            with block("if p > limit:"):
                self._write_raise("the message ends too early")
            line("return message, p")
        return self.source

    def _write_raise(self, reason: str) -> None:
        self.source.line(f"raise ProtocolError({f'{self._message.__name__}: {reason}'!r})")

    # Runs of fixed size

    def _add_to_run(self, formats: str, stem: str) -> str:
        """Add a field to the run that the next `_flush` reads; the name may be used after that."""
        name = self.source.variable(stem)
        self._run.append((formats, name))
        return name

    def _flush(self) -> None:
        if not self._run:
            return
        formats = "".join(each for each, _ in self._run)
        names = ", ".join(name for _, name in self._run)
        self._run.clear()
        if formats == "B":
            self.source.line(f"{names} = data[p]")
            self.source.line("p += 1")
            return
        unpack, size = self.source.unpacker(formats)
        self.source.line(f"{names}, = {unpack}(data, p)")
        self.source.line(f"p += {size}")

    # Structs and their fields

    def _read_struct(self, message: type[msgspec.Struct]) -> str:
        fields = fields_of(message)
        present = [field for field in fields if field.is_in(self._version)]
        values = {field.name: self._read_field(field) for field in present if field.tag is None}
        if self._flexible:
            values |= self._read_tags([field for field in present if field.tag is not None])
        self._flush()
        while fields and fields[-1].name not in values:
            fields = fields[:-1]
        arguments = [values.get(field.name) or self._default(field) for field in fields]
        return f"{self.source.bind(message.__name__, message)}({', '.join(arguments)})"

    def _default(self, field: FieldSpec) -> str:
        if field.default == []:
            return "[]"
        if isinstance(field.default, msgspec.Struct):
            return self.source.bind(f"DEFAULT_{field.name}", field.default)
        return repr(field.default)

    def _read_field(self, field: FieldSpec) -> str:
        nullable = field.is_nullable(self._version)
        if field.is_array:
            return self._read_array(field, nullable)
        if isinstance(field.kind, Nested) and nullable:
            return self._read_nullable_struct(field, field.kind.message)
        return self._read_value(field, nullable)

    def _read_value(self, field: FieldSpec, nullable: bool) -> str:
        match field.kind:
            case Fixed(format=formats):
                return self._add_to_run(formats, field.name)
            case Text():
                return self._read_text(field.name, nullable)
            case Blob(is_records=is_records):
                return self._read_blob(field.name, nullable, is_records)
            case Nested(message=message):
                return self._read_struct(message)

    def _read_nullable_struct(self, field: FieldSpec, message: type[msgspec.Struct]) -> str:
        present, value = self._add_to_run("b", "present"), self.source.variable(field.name)
        self._flush()
        null = f"{present} < 0" if field.tag is None else f"{present} == 0"
        with self.source.block(f"if {null}:"):
            self.source.line(f"{value} = None")
        with self.source.block("else:"):
            self.source.line(f"{value} = {self._read_struct(message)}")
        return value

    # Values behind a length

    def _read_length(self, classic: str, long: bool = False) -> str:
        """Variable with the length as on the wire: compact lengths are one too large, and 0 is null.

        Where two bytes are usual (`long`), they are read without a call.
        """
        line, block = self.source.line, self.source.block
        length = self._add_to_run("B" if self._flexible else classic, "length")
        self._flush()
        if not self._flexible:
            return length
        with block(f"if {length} > 127:"):
            rest = f"{length}, p = varint_after(data, p, {length})"
            if not long:
                line(rest)
                return length
            line("second = data[p]")
            with block("if second < 128:"):
                line(f"{length} += (second << 7) - 128")
                line("p += 1")
            with block("else:"):
                line(rest)
        return length

    def _read_text(self, name: str, nullable: bool) -> str:
        copy = ".tobytes()" if self._keeps_view else ""
        return self._take(name, self._read_length("h"), f"data[p:end]{copy}.decode()", nullable)

    def _read_blob(self, name: str, nullable: bool, is_records: bool) -> str:
        expression = "data[p:end]" if is_records or not self._keeps_view else "data[p:end].tobytes()"
        return self._take(name, self._read_length("i", long=True), expression, nullable)

    def _take(self, name: str, length: str, expression: str, nullable: bool) -> str:
        line, block = self.source.line, self.source.block
        value = self.source.variable(name)
        with block(f"if {length}:" if self._flexible else f"if {length} >= 0:"):
            line(f"end = p + {length} - 1" if self._flexible else f"end = p + {length}")
            line(f"{value} = {expression}")
            line("p = end")
        if nullable:
            with block("else:" if self._flexible else f"elif {length} == -1:"):
                line(f"{value} = None")
        if not (nullable and self._flexible):
            with block("else:"):
                self._write_raise(f"{name} is null or has a negative length")
        return value

    def _read_array(self, field: FieldSpec, nullable: bool) -> str:
        line, block = self.source.line, self.source.block
        length, value = self._read_length("i"), self.source.variable(field.name)
        smallest = _element_size_min(field, self._version, self._flexible)
        # Elements without bytes would make the count unbounded by the size of the message.
        assert smallest > 0, f"elements of {field.name} may take no bytes: their count is unbounded"
        null, bytes_needed = f"{length} < 0", f"{length} * {smallest}"
        if self._flexible:
            null, bytes_needed = f"{length} == 0", f"({length} - 1) * {smallest}"
        if not nullable:
            self._charge(field, length, f"{null} or budget < 0 or {bytes_needed} > limit - p")
            self._read_elements(field, length, value)
            return value
        with block(f"if {length} == {0 if self._flexible else -1}:"):
            line(f"{value} = None")
        with block("else:"):
            self._charge(field, length, f"{null} or budget < 0 or {bytes_needed} > limit - p")
            self._read_elements(field, length, value)
        return value

    def _charge(self, field: FieldSpec, length: str, impossible: str) -> None:
        self.source.line(f"budget -= {length}")
        with self.source.block(f"if {impossible}:"):
            self._write_raise(f"{field.name} has an impossible length")

    def _read_elements(self, field: FieldSpec, length: str, value: str) -> None:
        line = self.source.line
        if isinstance(field.kind, Fixed) and len(field.kind.format) == 1:
            if self._flexible:
                line(f"{length} -= 1")
            line(f"{value} = list(unpack_from(f'>{{{length}}}{field.kind.format}', data, p))")
            line(f"p += {length} * {field.kind.size}")
            return
        line(f"{value} = []")
        with self.source.block(f"for _ in range({'1, ' if self._flexible else ''}{length}):"):
            element = self._read_value(field, nullable=False)
            self._flush()
            line(f"{value}.append({element})")

    # Tag sections

    def _read_tags(self, tagged: list[FieldSpec]) -> dict[str, str]:
        line, block = self.source.line, self.source.block
        count = self._add_to_run("B", "tags")
        self._flush()
        if not tagged:
            with block(f"if {count}:"):
                line(f"p = skip_tags(data, p, {count})")
            return {}
        values = {field.name: self.source.variable(field.name) for field in tagged}
        for field in tagged:
            line(f"{values[field.name]} = {self._default(field)}")
        with block(f"if {count}:"):
            with block(f"if {count} > 127:"):
                line(f"{count}, p = varint_after(data, p, {count})")
            seen, tag, after = (self.source.variable(stem) for stem in ("seen", "tag", "after"))
            line(f"{seen} = 0")
            with block(f"for _ in range({count}):"):
                self._read_tag_header(tag, after)
                for field in tagged:
                    self._read_tag(field, values[field.name], tag, seen)
                self._close_tag(tagged, tag, after)
        return values

    def _read_tag_header(self, tag: str, after: str) -> None:
        self.source.line(f"{tag}, p = unsigned_varint(data, p)")
        self.source.line("size, p = unsigned_varint(data, p)")
        self.source.line(f"{after} = p + size")
        with self.source.block(f"if {after} > limit:"):
            self._write_raise("a tagged field runs past the end of the message")

    def _read_tag(self, field: FieldSpec, value: str, tag: str, seen: str) -> None:
        assert field.tag is not None
        with self.source.block(f"if {tag} == {field.tag}:"):
            with self.source.block(f"if {seen} & {1 << field.tag}:"):
                self._write_raise(f"{field.name} is there twice")
            self.source.line(f"{seen} |= {1 << field.tag}")
            expression = self._read_field(field)
            self._flush()
            self.source.line(f"{value} = {expression}")

    def _close_tag(self, tagged: list[FieldSpec], tag: str, after: str) -> None:
        known = ", ".join(str(field.tag) for field in tagged)
        with self.source.block(f"if {tag} in ({known},) and p != {after}:"):
            self._write_raise("a tagged field has the wrong size")
        self.source.line(f"p = {after}")
