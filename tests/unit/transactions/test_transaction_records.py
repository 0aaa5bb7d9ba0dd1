"""The records of `__transaction_state`, in bytes that Kafka 4.2's own classes read and write again."""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.transactions.records import (
    PartitionsSchema,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    record_of,
    transaction_of,
)
from penstock.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    NO_IDENTITY,
    PREDECESSORS,
    Transaction,
    TransactionStatus,
)
from penstock.types import ProducerId, TopicPartition
from tests.protocol.samples import sample
from tests.unit.transactions.transactions_support import TV1, TV2, identity

NOW_MS = 1754000000123
KEY = "0000 0001 74"
# producer id, epoch, timeout, state
HEAD = "0000000000000007 0005 0000ea60"
TIMES = "00000198628c047b 00000198628c0093"
ONE_PARTITION_V0 = "00000001 0006 6f7264657273 00000001 00000003"
ONE_PARTITION_V1 = "02 076f7264657273 02 00000003 00"
PREVIOUS_IS_7 = "00 08 0000000000000007"
NEXT_IS_9 = "01 08 0000000000000009"
VERSION_2 = "02 02 0002"
EPOCH_4 = "904e 02 0004"
"""The field that Kafka does not have: tag 10,000, two bytes."""

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, *_ = TransactionStatus


def value(status: TransactionStatus, **changes: object) -> TransactionLogValue:
    is_empty = status is EMPTY
    fields: dict[str, object] = {
        "producer_id": 7,
        "producer_epoch": 5,
        "transaction_timeout_ms": 60_000,
        "transaction_status": status,
        "transaction_partitions": None if is_empty else [PartitionsSchema("orders", [3])],
        "transaction_last_update_timestamp_ms": NOW_MS,
        "transaction_start_timestamp_ms": NOW_MS - 1_000,
    }
    return TransactionLogValue(**{**fields, **changes})  # type: ignore[arg-type]


NOT_RECORDED = "904e 02 fffe"
"""The field that Kafka does not have, in a value that was read from Kafka: tag 10,000, two bytes."""
# The version, the value, its fields without tags, and the tags.
KNOWN_TO_KAFKA: dict[str, tuple[int, TransactionLogValue, str, list[str]]] = {
    "an open transaction, version 0": (0, value(ONGOING), f"0000 {HEAD} 01 {ONE_PARTITION_V0} {TIMES}", []),
    "an id without a transaction, version 0": (
        0,
        value(EMPTY, transaction_start_timestamp_ms=-1),
        f"0000 {HEAD} 00 ffffffff 00000198628c047b ffffffffffffffff",
        [],
    ),
    "a transaction without partitions, version 0": (
        0,
        value(COMPLETE_COMMIT, transaction_partitions=[]),
        f"0000 {HEAD} 04 00000000 {TIMES}",
        [],
    ),
    "an open transaction, version 1": (
        1,
        value(ONGOING, previous_producer_id=7),
        f"0001 {HEAD} 01 {ONE_PARTITION_V1} {TIMES}",
        [PREVIOUS_IS_7],
    ),
    "a commit with a new epoch": (
        1,
        value(PREPARE_COMMIT, previous_producer_id=7, client_transaction_version=2),
        f"0001 {HEAD} 02 {ONE_PARTITION_V1} {TIMES}",
        [PREVIOUS_IS_7, VERSION_2],
    ),
    "an abort that needs a new producer id": (
        1,
        value(PREPARE_ABORT, previous_producer_id=7, next_producer_id=9, client_transaction_version=2),
        f"0001 {HEAD} 03 {ONE_PARTITION_V1} {TIMES}",
        [PREVIOUS_IS_7, NEXT_IS_9, VERSION_2],
    ),
    "an id without a transaction, version 1": (
        1,
        value(EMPTY, transaction_start_timestamp_ms=-1),
        f"0001 {HEAD} 00 00 00000198628c047b ffffffffffffffff",
        [],
    ),
}


def with_tags(version: int, fields: str, tags: list[str]) -> bytes:
    return bytes.fromhex(fields if version == 0 else f"{fields} {len(tags):02x} {' '.join(tags)}")


def test_a_key_is_written_and_read_as_kafka_writes_it() -> None:
    assert encode_key("t") == bytes.fromhex(KEY)
    assert decode_key(bytes.fromhex(KEY)) == "t"


@pytest.mark.parametrize("name", KNOWN_TO_KAFKA)
def test_a_value_is_read_and_written_as_kafka_writes_it(name: str) -> None:
    version, expected, fields, tags = KNOWN_TO_KAFKA[name]
    assert decode_value(with_tags(version, fields, tags)) == expected
    # Kafka skips the additional tag, and keeps it when it writes the value again.
    assert encode_value(expected, version) == with_tags(version, fields, [*tags, NOT_RECORDED])


def test_the_epoch_before_is_in_a_tag_that_kafka_skips() -> None:
    state = Transaction(
        "t", identity(7, 5), 60_000, previous=identity(7, 4), updated_ms=NOW_MS, client_version=TV2
    )
    key, written = record_of(state)
    assert key == bytes.fromhex(KEY)
    assert written is not None
    assert (
        written.hex()
        == bytes.fromhex(
            f"0001 {HEAD} 00 00 00000198628c047b ffffffffffffffff 03 {PREVIOUS_IS_7} {VERSION_2} {EPOCH_4}"
        ).hex()
    )


@pytest.mark.parametrize("status", PREDECESSORS)
@pytest.mark.parametrize("previous", [NO_IDENTITY, identity(7, 4), identity(3, CLIENT_EPOCH_MAX)])
def test_a_state_comes_back_from_its_record(status: TransactionStatus, previous: object) -> None:
    partitions = [TopicPartition("orders", 3), TopicPartition("orders", 1), TopicPartition("a", 0)]
    state = Transaction(
        "t",
        identity(7, 5),
        60_000,
        status,
        previous,  # type: ignore[arg-type]
        frozenset() if status is EMPTY else frozenset(partitions),
        started_ms=NOW_MS - 1_000,
        updated_ms=NOW_MS,
        client_version=TV2,
        next_producer_id=ProducerId(9),
    )
    key, data = record_of(state)
    assert data is not None
    transactional_id = decode_key(key)
    assert transactional_id is not None
    assert transaction_of(transactional_id, decode_value(data)) == state


@pytest.mark.parametrize(
    ("changes", "previous"),
    [
        ({"client_transaction_version": TV1}, identity(7, -1)),
        ({"client_transaction_version": TV2}, identity(7, 4)),
        ({"client_transaction_version": TV2, "producer_id": 9, "producer_epoch": 0}, identity(7, 32766)),
    ],
)
def test_the_epoch_before_follows_from_a_record_of_kafka(
    changes: dict[str, object], previous: object
) -> None:
    """An EndTxn whose reply was lost is recognised although Kafka's coordinator died."""
    written = value(COMPLETE_COMMIT, previous_producer_id=7, **changes)
    assert transaction_of("t", written).previous == previous


@pytest.mark.parametrize("number", [-1, 1, 2, 32767])
def test_a_key_of_a_type_to_come_is_ignored(number: int) -> None:
    assert decode_key(number.to_bytes(2, signed=True) + b"whatever") is None


def test_a_tag_to_come_is_skipped() -> None:
    data = bytes.fromhex(f"0001 {HEAD} 00 00 {TIMES} 02 03 02 0000 07 03 ffffff")
    assert decode_value(data).next_producer_epoch == 0


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("", "key: 0 bytes are too few"),
        ("0000 0002 74", "TransactionLogKey: .*"),
        ("0000 ffff", "TransactionLogKey: transactional_id is null"),
        ("0000 0001 ff", "TransactionLogKey: .*utf-8"),
        ("0000 0001 74 00", "TransactionLogKey: 1 bytes follow its end"),
    ],
)
def test_a_key_that_nothing_wrote_is_corrupt(data: str, complaint: str) -> None:
    with pytest.raises(CorruptData, match=complaint):
        decode_key(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("", "TransactionLogValue: 0 bytes are too few"),
        (f"0002 {HEAD}", "TransactionLogValue: version 2 is not in 0 to 1"),
        (f"ffff {HEAD}", "TransactionLogValue: version -1 is not in 0 to 1"),
        (f"0001 {HEAD} 01", "TransactionLogValue: .*"),
        (f"0000 {HEAD} 00 ffffffff {TIMES} 00", "TransactionLogValue: 1 bytes follow its end"),
    ],
)
def test_a_value_that_nothing_wrote_is_corrupt(data: str, complaint: str) -> None:
    with pytest.raises(CorruptData, match=complaint):
        decode_value(bytes.fromhex(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"transaction_status": 6},
        {"transaction_status": 7},
        {"transaction_status": 8},
        {"transaction_status": -1},
        {"producer_id": -1},
        {"producer_epoch": -1},
    ],
)
def test_a_state_that_is_never_stored_is_corrupt(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptData):
        transaction_of("t", value(ONGOING, **changes))


@given(st.sampled_from([0, 1]), st.integers(0, 2**32))
def test_every_value_comes_back_in_every_version(version: int, seed: int) -> None:
    made = sample(TransactionLogValue, version, Random(seed))
    for buffer in (bytes, bytearray, memoryview):
        assert decode_value(buffer(encode_value(made, version))) == made


@given(st.sampled_from([0, 1]), st.integers(0, 2**32))
def test_a_value_cut_short_is_corrupt(version: int, seed: int) -> None:
    random = Random(seed)
    data = encode_value(sample(TransactionLogValue, version, random), version)
    with pytest.raises(CorruptData):
        decode_value(data[: random.randrange(len(data))])


@given(st.sampled_from([b"", b"\x00\x00", b"\x00\x01"]), st.binary(max_size=200))
def test_any_bytes_are_a_record_or_corrupt(start: bytes, noise: bytes) -> None:
    with suppress(CorruptData):
        decode_key(start + noise)
    with suppress(CorruptData):
        transaction_of("t", decode_value(start + noise))
