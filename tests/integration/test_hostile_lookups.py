"""Batches whose headers claim a time that their records do not have, and who then asks for that time."""

import select
import time
from contextlib import ExitStack
from pathlib import Path

from penstock.limits import LOOKUP_RECORDS_MAX
from penstock.protocol.batches import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    seal_in_place,
)
from penstock.protocol.compression import Codec, compress
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.types import NO_PRODUCER, LeaderEpoch, Offset
from tests.integration.broker_process import eventually, serving
from tests.integration.hostile import processor_seconds
from tests.integration.raw_client import RawClient, batch_of, connected, records_of

VERSION = 9
NOW_MS = time.time_ns() // 1_000_000
RECORDS = LOOKUP_RECORDS_MAX * 3 // 4
BATCHES = 6
CLIENTS = 4


def claiming_batch(claimed_ms: int) -> bytes:
    """As many records of 1970 as are ever examined for one lookup, or nearly so."""
    # A record of nine bytes: length, attributes, time delta 0, offset delta, no key, no value, no headers.
    records = b"".join(
        bytes((16, 0, 0, number << 1 & 0x7F | 0x80, number >> 6 & 0x7F | 0x80, number >> 13, 1, 1, 0))
        for number in range(RECORDS)
    )
    payload = compress(Codec.ZSTD, records)
    header = BatchHeader(
        base_offset=Offset(0),
        batch_length=HEADER_BYTES - LOG_OVERHEAD + len(payload),
        leader_epoch=LeaderEpoch(-1),
        magic=MAGIC,
        crc=0,
        attributes=int(Codec.ZSTD),
        last_offset_delta=RECORDS - 1,
        base_timestamp=0,
        max_timestamp=claimed_ms,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=RECORDS,
    )
    batch = bytearray(HEADER.pack(*header)) + payload
    seal_in_place(batch)
    return bytes(batch)


def ask_for_time(client: RawClient, topic: str, timestamp_ms: int) -> None:
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=timestamp_ms)])
    client.send(LIST_OFFSETS, VERSION, ListOffsetsRequest(topics=[asked]))


def answer_of(client: RawClient) -> tuple[int, int]:
    _, reply = client.receive(LIST_OFFSETS, VERSION)
    entry = reply.topics[0].partitions[0]
    return entry.error_code, entry.offset


def test_lookups_of_what_headers_claim_hold_up_no_cold_fetch(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            for topic in ("claims", "sound"):
                client.create_topic(topic)
            batch = claiming_batch(NOW_MS)
            for _ in range(BATCHES):
                assert client.produce("claims", batch).error_code == 0
            for number in range(50):
                assert client.produce("sound", batch_of(b"%d" % number)).error_code == 0
        assert broker.stop() == 0  # what was found on disk is read by threads
        broker.start()
        with ExitStack() as stack:
            fetching, *asking = (stack.enter_context(connected(broker.bootstrap)) for _ in range(1 + CLIENTS))
            begun = processor_seconds(broker.pid)
            for client in asking:
                ask_for_time(client, "claims", NOW_MS)
            eventually(lambda: processor_seconds(broker.pid) > begun + 0.05)
            for offset in range(0, 50, 10):
                assert records_of(fetching.fetch("sound", offset))
            answered, _, _ = select.select([client.socket for client in asking], [], [], 0)
            assert len(answered) < CLIENTS, "the fetches waited for the lookups"
            # One batch was opened in vain. The next one's header answers: nothing before it is as new.
            assert {answer_of(client) for client in asking} == {(0, RECORDS)}
