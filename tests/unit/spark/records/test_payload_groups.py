"""How much of what was compressed is held at a time."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from penstock.protocol.compression import Codec
from penstock.spark.records.batch_table import read_table
from penstock.spark.records.encode import encode
from penstock.spark.records.payload_groups import payload_groups

RECORD_BYTES = 1_000
RECORDS_PER_BATCH = 10


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_no_piece_is_larger_than_its_limit_and_one_batch(codec: Codec) -> None:
    values = pa.array([bytes(RECORD_BYTES)] * RECORDS_PER_BATCH, pa.binary())
    (batch,) = encode(None, values, None, None, codec=codec, batch_bytes_max=1 << 20)
    # The offset of its first record is what a batch begins with.
    log = b"".join(struct.pack(">q", RECORDS_PER_BATCH * number) + batch[8:] for number in range(20))
    view = memoryview(log)
    table = read_table(view, np.frombuffer(view, np.uint8))
    found = list(payload_groups(view, table, decompressed_bytes_max=1 << 20, group_bytes=25_000))
    assert sum(held.size for held, _ in found) == 20
    largest = RECORDS_PER_BATCH * (RECORD_BYTES + 100)
    assert all(len(payloads.view) < 25_000 + largest for _, payloads in found)
    assert len(found) < 20, "several are decoded together"
