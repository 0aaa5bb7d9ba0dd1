"""The fuzz targets. Each takes any bytes, and raises only errors that its production callers handle."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from penstock.config.sources import load
from penstock.errors import ConfigError, CorruptData, ProtocolError
from penstock.host.os_disk import OsDisk
from penstock.log.partition_log import LogSettings
from penstock.log.recovery import open_log
from penstock.metadata import documents
from penstock.protocol.batches import check_client_shape, parse_header, seal_in_place, split_batches
from penstock.protocol.compiler import decoder, encode
from penstock.protocol.compression import Codec, decompress
from penstock.protocol.connection import FrameReceiver
from penstock.protocol.frames import parse_request_header
from penstock.protocol.records import (
    iterate_records,
    keys_missing,
    recompress,
    timed_records,
)
from tests.protocol.samples import CASES
from tools.fuzz import seeds

LIMIT_BYTES = 128 * 1024
FRAME_BYTES_MAX = 4096
_SEGMENT = "00000000000000000000.log"
_SETTINGS = LogSettings(
    segment_bytes=1 << 20, segment_ms=10**10, index_interval_bytes=64, index_bytes_max=1 << 20
)
_KINDS: tuple[Any, ...] = (
    documents.TopicValue,
    documents.PartitionValue,
    documents.BrokerValue,
    documents.OverridesValue,
    documents.ProducerIdsValue,
)


class Target(NamedTuple):
    attempt: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]


def frames(data: bytes) -> None:
    """Check that any split of the bytes gives the same frames, or the same rejection."""
    whole = _split(data, [len(data)])
    cuts = [data[0] % 7 + 1 if data else 1] * (len(data) + 1)
    assert _split(data, cuts) == whole
    for frame in whole:
        if frame is not None:
            try:
                _, position = parse_request_header(memoryview(frame))
            except ProtocolError:
                continue
            assert position <= len(frame)


def _split(data: bytes, sizes: Sequence[int]) -> list[bytes | None]:
    """The frames in order; None at the end if the stream was rejected."""
    receiver = FrameReceiver(FRAME_BYTES_MAX)
    found: list[bytes | None] = []
    position = 0
    try:
        for size in sizes:
            piece = data[position : position + size]
            position += len(piece)
            while piece:
                piece = piece[_feed(receiver, piece, found) :]
    except ProtocolError:
        found.append(None)
    return found


def _feed(receiver: FrameReceiver, piece: bytes, found: list[bytes | None]) -> int:
    """Feed bytes as a connection does, without memory budgets. Returns the number of bytes consumed."""
    if not receiver.is_unfinished:
        shared = memoryview(bytearray(piece))
        position = 0
        while (whole := receiver.next_frame(shared, position)) is not None:
            found.append(bytes(whole[0]))
            position = whole[1]
        receiver.move_to_own_buffer(shared[position:])
        return len(piece)
    room = receiver.frame_buffer()
    count = min(len(room), len(piece))
    room[:count] = piece[:count]
    if (full := receiver.received_into_frame(count)) is None:
        return count
    if len(full) == 4:
        receiver.release_frame()
        receiver.move_to_own_buffer(full)
    elif receiver.grow_bytes:
        receiver.grow()
    else:
        found.append(bytes(full[4:]))
        receiver.release_frame()
    return count


def requests(data: bytes) -> None:
    """Check that a body is rejected, or decodes to a value that encodes and decodes to the same value."""
    if len(data) < 2:
        return
    case = CASES[int.from_bytes(data[:2], "big") % len(CASES)]
    decode = decoder(case.message, case.version, case.flexible)
    try:
        message, end = decode(memoryview(data[2:]), 0)
    except ProtocolError:
        return
    assert 0 <= end <= len(data) - 2
    encoded = b"".join(encode(case.message, case.version, case.flexible, message))
    again, _ = decode(memoryview(encoded), 0)
    assert b"".join(encode(case.message, case.version, case.flexible, again)) == encoded


def batches(data: bytes) -> None:
    """Check a batch with a corrected checksum, so that the code behind the checksum runs."""
    batch = bytearray(data)
    try:
        header = parse_header(batch)
        if header.size == len(batch):
            seal_in_place(batch)
        check_client_shape(parse_header(batch))
    except CorruptData:
        pass
    for read in (
        lambda: len(list(iterate_records(batch, limit_bytes=LIMIT_BYTES))),
        lambda: len(list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True))),
        lambda: len(keys_missing(batch, limit_bytes=LIMIT_BYTES)),
        lambda: len(list(timed_records(batch, limit_bytes=LIMIT_BYTES)[1])),
        lambda: recompress(batch, Codec.GZIP, limit_bytes=LIMIT_BYTES),
    ):
        try:
            read()
        except CorruptData:
            continue
    try:
        walked = [0, *(at + header.size for at, header in split_batches(batch))]
    except CorruptData:
        return
    assert all(before < after for before, after in pairwise(walked))
    assert walked[-1] <= len(batch)


def decompressors(data: bytes) -> None:
    if not data:
        return
    codec = Codec(data[0] % len(Codec))
    try:
        expanded = decompress(codec, data[1:], limit_bytes=LIMIT_BYTES)
    except CorruptData:
        return
    assert len(expanded) <= LIMIT_BYTES


def recovery(data: bytes) -> None:
    """Check that recovery of any segment file ends, and that a second recovery changes nothing."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-", dir=_memory_folder()))
    try:
        (folder / _SEGMENT).write_bytes(data)
        first = _recovered(folder)
        left = (folder / _SEGMENT).read_bytes() if (folder / _SEGMENT).exists() else b""
        assert data.startswith(left)
        assert _recovered(folder) == first
    finally:
        shutil.rmtree(folder)


def _recovered(folder: Path) -> tuple[int, int] | None:
    try:
        recovered = open_log(OsDisk(), str(folder), _SETTINGS)
    except CorruptData:
        return None
    try:
        return recovered.log.log_start_offset, recovered.log.log_end_offset
    finally:
        recovered.log.close()


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def metadata_values(data: bytes) -> None:
    if not data:
        return
    kind = _KINDS[data[0] % len(_KINDS)]
    try:
        value = documents.decode_document(kind, "key", data[1:])
    except CorruptData:
        return
    assert documents.decode_document(kind, "key", documents.encode_document(value)) == value


def configs(data: bytes) -> None:
    """Check the bytes as a configuration file, and as single settings."""
    text = data.decode(errors="replace")
    for file, sets in ((data, []), (None, text.split("\0"))):
        try:
            load({}, sets, file)
        except ConfigError:
            continue


def _request_seeds() -> list[bytes]:
    return [number.to_bytes(2, "big") + body for number, body in seeds.requests()]


TARGETS = {
    "frames": Target(frames, seeds.frames),
    "requests": Target(requests, _request_seeds),
    "batches": Target(batches, seeds.batches),
    "decompressors": Target(decompressors, seeds.compressed),
    "recovery": Target(recovery, seeds.segments),
    "metadata-values": Target(metadata_values, seeds.metadata_values),
    "configs": Target(configs, seeds.configs),
}
