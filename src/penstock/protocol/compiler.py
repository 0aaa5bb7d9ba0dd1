"""The codec compiler: turns message tables into functions, one per message class and version, on first use.

`decoder` and `encoder` return the compiled function, for callers that keep it; `decode` and `encode` look
it up and call it. `source_of` returns the source of the functions, and tracebacks show its lines.

A decoder raises only ProtocolError, whatever the bytes are. An encoder does not check its message.
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

compiled_decoders: dict[tuple[type, int, bool], Decoder[Any]] = {}
_encoders: dict[tuple[type, int, bool], Encoder[Any]] = {}


def decode(
    message: type[Message], version: int, flexible: bool, data: Buffer, position: int = 0
) -> tuple[Message, int]:
    """Decode the message at `position`; returns it and the position after it."""
    return decoder(message, version, flexible)(data, position)


def encode(message_class: type[Message], version: int, flexible: bool, message: Message) -> list[Buffer]:
    """Encode a message into buffers to be written in order: a single one if the message has no records."""
    return encoder(message_class, version, flexible)(message)


def decoder(message: type[Message], version: int, flexible: bool) -> Decoder[Message]:
    found = compiled_decoders.get((message, version, flexible))
    if found is None:
        source = DecoderWriter(message, version, flexible).write()
        name = f"decode {message.__name__} version {version}"
        found = cast(Decoder[Any], _compile(source, name, "decode"))
        compiled_decoders[message, version, flexible] = found
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
    """Source of the decoder and of the encoder."""
    writers = DecoderWriter(message, version, flexible), EncoderWriter(message, version, flexible)
    return "\n\n".join(writer.write().text() for writer in writers)


def _compile(source: Source, name: str, function: str) -> Callable[..., Any]:
    text, filename = source.text(), f"<{name}>"
    # So that tracebacks show the generated lines.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    # The text is generated from message tables, never from input.
    exec(compile(text, filename, "exec"), source.namespace)
    return cast(Callable[..., Any], source.namespace[function])
