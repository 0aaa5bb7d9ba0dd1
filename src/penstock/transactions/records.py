# ruff: noqa: RUF012 - msgspec makes a new empty list for every instance
"""The records of `__transaction_state`, in the format of Kafka 4.2.

The key is a type (int16), of which there is only 0, and the transactional id. The value is a version (int16)
and the state of that id. A record without a value is a tombstone: it deletes the id.

Rule 1: versions 0 and 1 of the value are read. Version 1 is written: Kafka writes it from
        `transaction.version` 1 on.
Rule 2: a key of another type is ignored. Newer software wrote it.
Rule 3: everything else that cannot be read is CorruptData: no Kafka version has written it.
"""

from __future__ import annotations

from typing import Annotated, Final

from penstock.coordinator.outcome import StateRecord
from penstock.coordinator.record_codec import PENSTOCK_TAG, PREFIX, decode_fields, read_prefix
from penstock.errors import CorruptData
from penstock.protocol.compiler import encode
from penstock.protocol.schema import FrozenStruct, Int8, Int16, Int32, Int64, String, Struct, tagged, versions
from penstock.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NEW_EPOCH_VERSION,
    NO_PRODUCER_EPOCH,
    PREDECESSORS,
    PREPARED,
    SAME_EPOCH_VERSION,
    ProducerIdentity,
    Transaction,
    TransactionStatus,
)
from penstock.types import NO_PRODUCER, NO_TIMESTAMP, Buffer, ProducerId, TopicPartition

KEY_TYPE: Final = 0
_KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
"""The version that is written, the newest one of Kafka 4.2."""
_FIRST_FLEXIBLE: Final = 1
_EPOCH_NOT_RECORDED: Final = -2


class TransactionLogKey(FrozenStruct, frozen=True):
    transactional_id: String = ""


class PartitionsSchema(Struct):
    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Struct):
    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, versions(1), tagged(0)] = NO_PRODUCER
    next_producer_id: Annotated[Int64, versions(1), tagged(1)] = NO_PRODUCER
    producer_epoch: Int16 = 0
    next_producer_epoch: Annotated[Int16, versions(1), tagged(3)] = NO_PRODUCER_EPOCH
    """Kafka's two-phase commit uses it. It is read and not used: a next producer id begins with epoch 0."""
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, versions(1), tagged(2)] = SAME_EPOCH_VERSION
    previous_producer_epoch: Annotated[Int16, versions(1), tagged(PENSTOCK_TAG, always=True)] = (
        _EPOCH_NOT_RECORDED
    )
    """Epoch that goes with the previous producer id. Kafka keeps it in memory only, and skips unknown tags.
    With it a new coordinator recognises a request whose reply was lost when the old one died."""


def encode_key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id)
    return PREFIX.pack(KEY_TYPE) + b"".join(encode(TransactionLogKey, _KEY_VERSION, False, key))


def decode_key(data: Buffer) -> str | None:
    """Return the transactional id, or None for a key of an unknown type."""
    if read_prefix(data, "key") != KEY_TYPE:
        return None
    return decode_fields(TransactionLogKey, _KEY_VERSION, False, data).transactional_id


def encode_value(value: TransactionLogValue, version: int = VALUE_VERSION) -> bytes:
    is_flexible = version >= _FIRST_FLEXIBLE
    return PREFIX.pack(version) + b"".join(encode(TransactionLogValue, version, is_flexible, value))


def decode_value(data: Buffer) -> TransactionLogValue:
    version = read_prefix(data, TransactionLogValue.__name__)
    if not 0 <= version <= VALUE_VERSION:
        raise CorruptData(f"{TransactionLogValue.__name__}: version {version} is not in 0 to {VALUE_VERSION}")
    return decode_fields(TransactionLogValue, version, version >= _FIRST_FLEXIBLE, data)


def record_of(transaction: Transaction) -> StateRecord:
    return StateRecord(encode_key(transaction.transactional_id), encode_value(value_of(transaction)))


def tombstone(transactional_id: str) -> StateRecord:
    return StateRecord(encode_key(transactional_id), None)


def value_of(transaction: Transaction) -> TransactionLogValue:
    by_topic: dict[str, PartitionsSchema] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, PartitionsSchema(topic)).partition_ids.append(index)
    return TransactionLogValue(
        producer_id=transaction.producer.producer_id,
        previous_producer_id=transaction.previous.producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status,
        transaction_partitions=None if transaction.status is EMPTY else list(by_topic.values()),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
        previous_producer_epoch=transaction.previous.epoch,
    )


def transaction_of(transactional_id: str, value: TransactionLogValue) -> Transaction:
    status = _status_of(value)
    if value.producer_id < 0 or value.producer_epoch < 0:
        raise CorruptData(f"no producer has the id {value.producer_id} and the epoch {value.producer_epoch}")
    return Transaction(
        transactional_id=transactional_id,
        producer=ProducerIdentity(ProducerId(value.producer_id), value.producer_epoch),
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        previous=ProducerIdentity(ProducerId(value.previous_producer_id), _previous_epoch(value, status)),
        partitions=frozenset(
            TopicPartition(of_topic.topic, index)
            for of_topic in value.transaction_partitions or ()
            for index in of_topic.partition_ids
        ),
        started_ms=max(value.transaction_start_timestamp_ms, NO_TIMESTAMP),
        updated_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
        next_producer_id=ProducerId(value.next_producer_id),
    )


def _status_of(value: TransactionLogValue) -> TransactionStatus:
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        status = TransactionStatus.DEAD
    if status not in PREDECESSORS:
        raise CorruptData(f"no transaction is stored in state {value.transaction_status}")
    return status


def _previous_epoch(value: TransactionLogValue, status: TransactionStatus) -> int:
    """Epoch before the last end of a transaction; in a record of Kafka it follows from the other fields."""
    if value.previous_producer_epoch != _EPOCH_NOT_RECORDED:
        return value.previous_producer_epoch
    has_ended = status in PREPARED or status in (COMPLETE_COMMIT, COMPLETE_ABORT)
    if not has_ended or value.client_transaction_version < NEW_EPOCH_VERSION:
        return NO_PRODUCER_EPOCH
    is_new_id = value.previous_producer_id != value.producer_id
    return CLIENT_EPOCH_MAX if is_new_id else value.producer_epoch - 1
