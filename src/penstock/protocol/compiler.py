"""Turns message tables into functions, one for each message class and version, when first needed.

`decoder` and `encoder` answer with the compiled function, for callers that keep it; `decode` and
`encode` find it and call it. The source of every function can be read with `source_of`, and
tracebacks show its lines.

Only ProtocolError escapes a decoder, whatever the bytes are. An encoder trusts its message.
"""

import linecache
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from penstock.protocol.decoders import DecoderWriter
from penstock.protocol.encoders import EncoderWriter
from penstock.protocol.source_writer import Source
from penstock.types import Buffer

Message = TypeVar("Message", bound=msgspec.Struct)
Decoder = Callable[[Buffer, int], tuple[Message, int]]
Encoder = Callable[[Message], list[Buffer]]

_decoders: dict[tuple[type, int, bool], Decoder[Any]] = {}
_encoders: dict[tuple[type, int, bool], Encoder[Any]] = {}


def decode(
    message: type[Message], version: int, flexible: bool, data: Buffer, position: int = 0
) -> tuple[Message, int]:
    """The message that starts at `position`, and the position after it."""
    return decoder(message, version, flexible)(data, position)


def encode(message_class: type[Message], version: int, flexible: bool, message: Message) -> list[Buffer]:
    """Buffers to be written one after another. There is a single one if the message has no records."""
    return encoder(message_class, version, flexible)(message)


def decoder(message: type[Message], version: int, flexible: bool) -> Decoder[Message]:
    found = _decoders.get((message, version, flexible))
    if found is None:
        source = DecoderWriter(message, version, flexible).write()
        name = f"decode {message.__name__} version {version}"
        found = cast(Decoder[Any], _compile(source, name, "decode"))
        _decoders[message, version, flexible] = found
    return found


def encoder(message: type[Message], version: int, flexible: bool) -> Encoder[Message]:
    found = _encoders.get((message, version, flexible))
    if found is None:
        source = EncoderWriter(message, version, flexible).write()
        name = f"encode {message.__name__} version {version}"
        found = cast(Encoder[Any], _compile(source, name, "encode"))
        _encoders[message, version, flexible] = found
    return found


def source_of(message: type[Message], version: int, flexible: bool) -> str:
    """The source of the decoder and of the encoder."""
    writers = DecoderWriter(message, version, flexible), EncoderWriter(message, version, flexible)
    return "\n\n".join(writer.write().text() for writer in writers)


def _compile(source: Source, name: str, function: str) -> Callable[..., Any]:
    text, filename = source.text(), f"<{name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), source.namespace)
    return cast(Callable[..., Any], source.namespace[function])
