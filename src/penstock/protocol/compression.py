"""The codecs of record batches: compression, and decompression with a size limit.

The broker keeps batches as producers sent them, so most brokers never use this module. Lookups by
timestamp, compacted topics, `compression.type` and tools use it, on data from untrusted clients.

Rule 1: no codec returns more than `limit_bytes`, and none holds more than a small multiple of it meanwhile.
        2 KB of zstd can announce 64 MiB; the announcement alone allocates nothing.
Rule 2: the data is one complete frame and nothing after it. Every client writes that, and a second frame
        would only make the work for a few bytes harder to bound.
Rule 3: every exception of a library about the bytes becomes CorruptData.
Rule 4: libraries are imported when their codec is first used: together they cost start-up time and memory
        that most brokers do not need.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from penstock.errors import CorruptData
from penstock.limits import DECOMPRESSION_WINDOW_BYTES_MAX
from penstock.types import Buffer

# A zstd block of four bytes can stand for 128 KiB and the library expands all of its input, so this bounds
# how far one step can overshoot the limit: 8 MiB.
_ZSTD_STEP_BYTES = 256

_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_LENGTH_BYTES = 4
_SNAPPY_LENGTH_BYTES_MAX = 5


class Codec(IntEnum):
    """Compression codecs, numbered as in the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Name in Kafka's configuration."""
        return self.name.lower()


LEVELS: Mapping[Codec, Sequence[int]] = MappingProxyType(
    {Codec.GZIP: (-1, *range(1, 10)), Codec.LZ4: range(1, 18), Codec.ZSTD: range(-131_072, 23)}
)
"""Levels that Kafka's configuration allows; gzip's -1 is zlib's default. A codec that is not listed has
none."""


def codec_named(name: str) -> Codec | None:
    """Codec for a value of `compression.type`; None if the value names no codec."""
    if name == "uncompressed":
        return Codec.NONE
    return _CODECS_BY_LABEL.get(name)


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress to one complete frame. The level must be one of `LEVELS`; None: the codec's default."""
    assert level is None or level in LEVELS.get(codec, ()), f"{codec.label} has no level {level}"
    return _CODERS[codec].compress(data, level)


def decompress(codec: Codec, data: Buffer, *, limit_bytes: int) -> bytes:
    """Decompress one frame. Raises CorruptData if the result exceeds `limit_bytes`."""
    assert limit_bytes >= 0
    return _CODERS[codec].decompress(data, limit_bytes)


def _too_large(codec: Codec, limit_bytes: int) -> CorruptData:
    return CorruptData(f"{codec.label} data expands beyond the limit of {limit_bytes} bytes")


def _require_one_frame(codec: Codec, *, complete: bool, unused: bytes | None) -> None:
    if not complete:
        raise CorruptData(f"{codec.label} data ends before its frame does")
    if unused:
        raise CorruptData(f"{codec.label} data is followed by {len(unused)} bytes that belong to nothing")


def _none_compress(data: Buffer, _level: int | None) -> bytes:
    return bytes(data)


def _none_decompress(data: Buffer, limit_bytes: int) -> bytes:
    if len(data) > limit_bytes:
        raise CorruptData(f"uncompressed data of {len(data)} bytes exceeds the limit of {limit_bytes} bytes")
    return bytes(data)


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    effective = zlib.Z_DEFAULT_COMPRESSION if level is None else level
    compressor = zlib.compressobj(effective, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()


def _gzip_decompress(data: Buffer, limit_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        # One byte above the limit distinguishes a full result from a truncated one.
        expanded = decompressor.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise CorruptData(f"gzip data is malformed: {error}") from error
    if len(expanded) > limit_bytes:
        raise _too_large(Codec.GZIP, limit_bytes)
    _require_one_frame(Codec.GZIP, complete=decompressor.eof, unused=decompressor.unused_data)
    return expanded


def _snappy_compress(data: Buffer, _level: int | None) -> bytes:
    # Java's framing and not one raw block: every client reads it, and it has no size limit.
    from cramjam import snappy

    view = memoryview(data)
    pieces = [_XERIAL_HEADER]
    # At least one block, even if empty: some clients do not recognise a header without a block.
    for start in range(0, max(len(view), 1), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_BYTES])))
        pieces += (len(block).to_bytes(_XERIAL_LENGTH_BYTES, "big"), block)
    return b"".join(pieces)


def _snappy_decompress(data: Buffer, limit_bytes: int) -> bytes:
    framed = bytes(data)
    if not framed.startswith(_XERIAL_MAGIC):
        return _snappy_block(framed, room=limit_bytes, limit_bytes=limit_bytes)
    if len(framed) < len(_XERIAL_HEADER):
        raise CorruptData("snappy data ends inside its header")
    expanded = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(framed):
        start = position + _XERIAL_LENGTH_BYTES
        position = start + int.from_bytes(framed[position:start], "big")
        if start > len(framed) or position > len(framed):
            raise CorruptData("snappy data ends inside a block")
        expanded += _snappy_block(
            framed[start:position], room=limit_bytes - len(expanded), limit_bytes=limit_bytes
        )
    return bytes(expanded)


def _snappy_block(block: bytes, *, room: int, limit_bytes: int) -> bytes:
    """Expand a raw block. It announces its expanded size, which is checked before anything is allocated."""
    from cramjam import DecompressionError, snappy

    size = _snappy_block_size(block)
    if size > room:
        raise _too_large(Codec.SNAPPY, limit_bytes)
    try:
        expanded = bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise CorruptData(f"snappy data is malformed: {error}") from error
    if len(expanded) != size:
        raise CorruptData(f"a snappy block announces {size} bytes and holds {len(expanded)}")
    return expanded


def _snappy_block_size(block: bytes) -> int:
    size = 0
    for index, byte in enumerate(block[:_SNAPPY_LENGTH_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptData("a snappy block does not announce its size")


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    # Kafka's Java reader rejects linked blocks, and the checksum of the batch already covers the content.
    compressed: bytes = frame.compress(
        data, compression_level=level or 0, block_linked=False, content_checksum=False, store_size=False
    )
    return compressed


def _lz4_decompress(data: Buffer, limit_bytes: int) -> bytes:
    from lz4 import frame

    decompressor = frame.LZ4FrameDecompressor()
    try:
        expanded: bytes = decompressor.decompress(data, max_length=limit_bytes + 1)
    except RuntimeError as error:  # the only type this library raises for bad bytes
        raise CorruptData(f"lz4 data is malformed: {error}") from error
    if len(expanded) > limit_bytes:
        raise _too_large(Codec.LZ4, limit_bytes)
    _require_one_frame(Codec.LZ4, complete=decompressor.eof, unused=decompressor.unused_data)
    return expanded


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    from zstandard import ZstdCompressor

    return ZstdCompressor(level=3 if level is None else level).compress(data)


def _zstd_decompress(data: Buffer, limit_bytes: int) -> bytes:
    # In small steps: the library's one-shot call trusts the announced size, and its reader cannot
    # distinguish a truncated frame from a complete one.
    from zstandard import ZstdDecompressor, ZstdError

    decompressor = ZstdDecompressor(max_window_size=DECOMPRESSION_WINDOW_BYTES_MAX).decompressobj()
    view = memoryview(data)
    expanded = bytearray()
    position = 0
    while position < len(view) and not decompressor.eof:
        try:
            expanded += decompressor.decompress(view[position : position + _ZSTD_STEP_BYTES])
        except ZstdError as error:
            raise CorruptData(f"zstd data is malformed: {error}") from error
        if len(expanded) > limit_bytes:
            raise _too_large(Codec.ZSTD, limit_bytes)
        position += _ZSTD_STEP_BYTES
    unused = decompressor.unused_data + bytes(view[position:])
    _require_one_frame(Codec.ZSTD, complete=decompressor.eof, unused=unused)
    return bytes(expanded)


class _Coder(NamedTuple):
    compress: Callable[[Buffer, int | None], bytes]
    decompress: Callable[[Buffer, int], bytes]


_CODECS_BY_LABEL = {codec.label: codec for codec in Codec}

_CODERS = {
    Codec.NONE: _Coder(_none_compress, _none_decompress),
    Codec.GZIP: _Coder(_gzip_compress, _gzip_decompress),
    Codec.SNAPPY: _Coder(_snappy_compress, _snappy_decompress),
    Codec.LZ4: _Coder(_lz4_compress, _lz4_decompress),
    Codec.ZSTD: _Coder(_zstd_compress, _zstd_decompress),
}
