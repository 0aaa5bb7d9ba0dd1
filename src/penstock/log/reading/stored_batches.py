"""Reading all batches of a segment from the device, one after another: a start and a cleaning do that.

Every batch is validated by its checksum, and by its position: it begins where the one before ends. The
checksum does not cover the base offset.
"""

from collections.abc import Callable, Iterator

from penstock.errors import CorruptData
from penstock.host.disk import File
from penstock.log.reading.cold_reading import validate_stored_batch, wrong_offset_error
from penstock.protocol.batches import HEADER_BYTES, BatchHeader, parse_header
from penstock.types import Offset


def stored_batches(
    file: File,
    start: int,
    end: int,
    expected: Offset | None,
    *,
    chunk_bytes: int,
    on_read: Callable[[int], None] = lambda count: None,
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches between two positions. Raises CorruptData at the first invalid one.

    `expected`: first offset of the first batch; None: any. `on_read`: called with the size of every read.
    """

    def chunk_of(length: int) -> bytes:
        chunk = file.read(position, min(max(length, chunk_bytes), end - position))
        on_read(len(chunk))
        return chunk

    position = chunk_at = start
    chunk = b""
    while position < end:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = chunk_of(HEADER_BYTES), position
        header = parse_header(chunk, position - chunk_at)
        where = f"{file.path} at {position}"
        if position + header.size > end:
            raise CorruptData(f"{file.path} ends inside the batch at {position}")
        if expected is not None and header.base_offset != expected:
            raise wrong_offset_error(where, header, expected)
        if position + header.size > chunk_at + len(chunk):
            chunk, chunk_at = chunk_of(header.size), position
        at = position - chunk_at
        validate_stored_batch(chunk, header, at, where)
        yield header, memoryview(chunk)[at : at + header.size]
        expected = header.next_offset
        position += header.size
