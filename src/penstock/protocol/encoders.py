"""The encoder generator: writes the source of an encoder for one message and version.

The encoder collects small byte strings in `parts` and joins them at the end. Adjacent fixed-size fields are
packed with one `pack`, together with the length of the field after them. Records go to the output without a
copy: the parts before them are joined, and a new list of parts begins.

Structs with RARE fields are encoded in two ways. The first one is for the usual case, in which all of them
are empty: their bytes are constants, and the fixed-size runs on both sides become one. The second one is
general and always correct.

A value that does not fit its field is a bug of the caller: `struct.error` escapes.
"""

from struct import pack

import msgspec

from penstock.protocol.decoders import has_records
from penstock.protocol.schema import Blob, FieldSpec, Fixed, Nested, Text, fields_of
from penstock.protocol.source_writer import Source


def unsigned_varint_bytes(value: int) -> bytes:
    """Encode an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


ONE_BYTE_VARINTS = tuple(unsigned_varint_bytes(value) for value in range(128))


class EncoderWriter:
    def __init__(self, message: type[msgspec.Struct], version: int, flexible: bool) -> None:
        self.source = Source()
        self._message = message
        self._version = version
        self._flexible = flexible
        self._has_records = has_records(message, version)
        self._run: list[tuple[str, str]] = []
        self.source.namespace.update(
            ONE_BYTE_VARINTS=ONE_BYTE_VARINTS,
            unsigned_varint_bytes=unsigned_varint_bytes,
            join=b"".join,
            pack=pack,
        )

    def write(self) -> Source:
        line, block = self.source.line, self.source.block
        with block("def encode(message):"):
            line("parts = []")
            if self._has_records:
                line("out = []")
            self._put_struct("message", self._message)
            self._flush()
            if self._has_records:
                with block("if parts:"):
                    line("out.append(join(parts))")
                line("return out")
            else:
                line("return [join(parts)]")
        return self.source

    # Runs of fixed size

    def _put(self, formats: str, expression: str) -> None:
        """Add a field to the run that the next `_flush` packs."""
        self._run.append((formats, expression))

    def _put_zeros(self, count: int) -> None:
        self._run.extend([("x", "")] * count)

    def _take_run(self, last_format: str = "", last: str = "") -> str:
        """Expression that packs the run. The caller clears the run, or reuses it for another form."""
        formats = "".join(each for each, _ in self._run) + last_format
        expressions = [expression for _, expression in self._run if expression]
        if last:
            expressions.append(last)
        if not expressions:
            return repr(bytes(len(formats)))
        return f"{self.source.packer(formats)}({', '.join(expressions)})"

    def _flush(self) -> None:
        if self._run:
            self.source.line(f"parts.append({self._take_run()})")
            self._run.clear()

    def _flush_with_length(self, length: str, classic: str) -> None:
        """End the run with a length. `length` is a name or a small expression, -1 for null."""
        line, block = self.source.line, self.source.block
        if not self._flexible:
            self._put(classic, length)
            self._flush()
            return
        compact = self.source.variable("compact")
        line(f"{compact} = {length} + 1")
        if self._run:
            with block(f"if {compact} < 128:"):
                line(f"parts.append({self._take_run('B', compact)})")
            with block(f"elif {compact} < 16384:"):
                both = f"({compact} & 127 | 128) << 8 | {compact} >> 7"
                line(f"parts.append({self._take_run('H', both)})")
            with block("else:"):
                line(f"parts.append({self._take_run()} + unsigned_varint_bytes({compact}))")
            self._run.clear()
        else:
            short, long = f"ONE_BYTE_VARINTS[{compact}]", f"unsigned_varint_bytes({compact})"
            line(f"parts.append({short} if {compact} < 128 else {long})")

    # Structs

    def _put_struct(self, item: str, message: type[msgspec.Struct]) -> None:
        fields = [field for field in fields_of(message) if field.is_in(self._version)]
        rare = [field for field in fields if field.is_rare]
        if not rare or any(field.is_always_sent for field in fields):
            self._put_fields(item, fields, rare_are_empty=False)
            return
        if self._flexible:
            rare = rare + [field for field in fields if field.tag is not None]
        self._flush()
        with self.source.block(
            f"if {' and '.join(self._is_empty_condition(item, field) for field in rare)}:"
        ):
            self._put_fields(item, fields, rare_are_empty=True)
            self._flush()
        with self.source.block("else:"):
            self._put_fields(item, fields, rare_are_empty=False)
            self._flush()

    def _is_empty_condition(self, item: str, field: FieldSpec) -> str:
        if field.is_array:
            return f"not {item}.{field.name}"
        return f"{item}.{field.name} is {self._default(field)}"

    def _default(self, field: FieldSpec) -> str:
        if field.default is None:
            return "None"
        return self.source.bind(f"DEFAULT_{field.name}", field.default)

    def _put_fields(self, item: str, fields: list[FieldSpec], rare_are_empty: bool) -> None:
        for field in fields:
            if field.tag is not None:
                continue
            if rare_are_empty and field.is_rare:
                self._put_empty(f"{item}.{field.name}", field)
            else:
                self._put_field(f"{item}.{field.name}", field)
        if self._flexible and rare_are_empty:
            self._put_zeros(1)
        elif self._flexible:
            self._put_tags(item, [field for field in fields if field.tag is not None])

    def _put_empty(self, value: str, field: FieldSpec) -> None:
        """Add a rare field that is null or an empty array, as constants in the run."""
        nullable = field.is_nullable(self._version)
        assert nullable or field.is_array, f"{field.name} is rare but has no empty form"
        if not field.is_array:
            assert isinstance(field.kind, Text), f"{field.name}: only arrays and strings can be rare"
            self._put("B" if self._flexible else "h", "0" if self._flexible else "-1")
        elif nullable:
            is_there = f"{value} is not None"
            self._put("B" if self._flexible else "i", is_there if self._flexible else f"({is_there}) - 1")
        else:
            self._put("B" if self._flexible else "i", "1" if self._flexible else "0")

    # Fields

    def _put_field(self, value: str, field: FieldSpec) -> None:
        nullable = field.is_nullable(self._version)
        if field.is_array:
            self._put_array(value, field, nullable)
        elif isinstance(field.kind, Nested) and nullable:
            # Kafka marks a null struct differently in the tag section than elsewhere.
            null = b"\xff" if field.tag is None else b"\x00"
            self._put_nullable_struct(value, field.kind.message, null)
        else:
            self._put_value(value, field, nullable)

    def _put_value(self, value: str, field: FieldSpec, nullable: bool) -> None:
        match field.kind:
            case Fixed(format=formats):
                self._put(formats, value)
            case Text():
                self._put_bytes(value, nullable, convert=".encode()", classic="h")
            case Blob(is_records=True):
                self._put_records(value, nullable)
            case Blob():
                self._put_bytes(value, nullable, convert="", classic="i")
            case Nested(message=message):
                name = self.source.variable("item")
                self.source.line(f"{name} = {value}")
                self._put_struct(name, message)

    def _put_nullable_struct(self, value: str, message: type[msgspec.Struct], null: bytes) -> None:
        line, block = self.source.line, self.source.block
        name = self.source.variable("item")
        line(f"{name} = {value}")
        self._flush()
        with block(f"if {name} is None:"):
            line(f"parts.append({null!r})")
        with block("else:"):
            self._put("b", "1")
            self._put_struct(name, message)
            self._flush()

    def _put_bytes(self, value: str, nullable: bool, convert: str, classic: str) -> None:
        line = self.source.line
        name = self.source.variable("encoded")
        if nullable:
            line(f"{name} = {value}")
            with self.source.block(f"if {name} is None:"):
                line(f"{name}, length = b'', -1")
            with self.source.block("else:"):
                line(f"{name} = {name}{convert}")
                line(f"length = len({name})")
            self._flush_with_length("length", classic)
        else:
            line(f"{name} = {value}{convert}")
            self._flush_with_length(f"len({name})", classic)
        line(f"parts.append({name})")

    def _put_records(self, value: str, nullable: bool) -> None:
        line, block = self.source.line, self.source.block
        name = self.source.variable("records")
        gathered = f"type({name}) is list or type({name}) is tuple"
        line(f"{name} = {value}")
        with block(f"if {gathered}:"):
            line(f"length = sum(map(len, {name}))")
        if nullable:
            with block(f"elif {name} is None:"):
                line("length = -1")
        with block("else:"):
            line(f"length = len({name})")
        self._flush_with_length("length", "i")
        with block("if length > 0:"):
            line("out.append(join(parts))")
            line("parts.clear()")
            with block(f"if {gathered}:"):
                line(f"out.extend({name})")
            with block("else:"):
                line(f"out.append({name})")

    def _put_array(self, value: str, field: FieldSpec, nullable: bool) -> None:
        line = self.source.line
        name = self.source.variable(field.name)
        line(f"{name} = {value}")
        length = f"(-1 if {name} is None else len({name}))" if nullable else f"len({name})"
        self._flush_with_length(length, "i")
        if isinstance(field.kind, Fixed) and len(field.kind.format) == 1:
            with self.source.block(f"if {name}:"):
                line(f"parts.append(pack(f'>{{len({name})}}{field.kind.format}', *{name}))")
            return
        element = self.source.variable("element")
        with self.source.block(
            f"for {element} in {name} or ():" if nullable else f"for {element} in {name}:"
        ):
            if not isinstance(field.kind, Nested):
                self._put_value(element, field, nullable=False)
            elif field.may_be_ready:
                self._put_unless_ready(element, field.kind.message)
            else:
                self._put_struct(element, field.kind.message)
            self._flush()

    def _put_unless_ready(self, item: str, message: type[msgspec.Struct]) -> None:
        with self.source.block(f"if type({item}) is {self.source.bind(message.__name__, message)}:"):
            self._put_struct(item, message)
            self._flush()
        with self.source.block("else:"):
            self.source.line(f"parts.append({item}.encoded)")

    # Tag sections

    def _put_tags(self, item: str, tagged: list[FieldSpec]) -> None:
        if not tagged:
            self._put_zeros(1)
            return
        line, block = self.source.line, self.source.block
        sent = {field.name: self.source.variable("sent") for field in tagged}
        for field in tagged:
            line(f"{sent[field.name]} = {self._is_sent(f'{item}.{field.name}', field)}")
        self._put("B", " + ".join(sent.values()))
        self._flush()
        for field in sorted(tagged, key=lambda each: each.tag or 0):
            with block(f"if {sent[field.name]}:"):
                self._put_tag(f"{item}.{field.name}", field)

    def _put_tag(self, value: str, field: FieldSpec) -> None:
        line, tag = self.source.line, field.tag or 0
        if isinstance(field.kind, Fixed) and not field.is_array:
            # Its size is known without encoding it.
            for each in (*unsigned_varint_bytes(tag), *unsigned_varint_bytes(field.kind.size)):
                self._put("B", str(each))
            self._put(field.kind.format, value)
            self._flush()
            return
        mark = self.source.variable("mark")
        line(f"{mark} = len(parts)")
        self._put_field(value, field)
        self._flush()
        line(f"body = join(parts[{mark}:])")
        line(f"del parts[{mark}:]")
        line(f"parts.append({unsigned_varint_bytes(tag)!r} + unsigned_varint_bytes(len(body)) + body)")

    def _is_sent(self, value: str, field: FieldSpec) -> str:
        """Condition under which a tagged field is written: mostly, that it does not have its default."""
        if field.is_always_sent:
            return "True"
        if field.default is None:
            return f"{value} is not None"
        if field.default == []:
            return f"bool({value})"
        return f"{value} != {self._default(field)}"
