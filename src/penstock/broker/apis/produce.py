"""Produce: api key 0, versions 3 to 13 (advertised from 0).

Appends record batches to partitions and answers for each.

Behaviour
    acks=0    nothing is sent back; a failure closes the connection, so that the client looks again
    acks=1    answered as acks=all: what is acknowledged is safe
    acks=all  answered when the high watermark has passed the batch
    timeout   REQUEST_TIMED_OUT; the records are in the log and may still become safe
Versions
    3   record batch format 2           8   record errors and a message
    5   log start offset                9   flexible encoding
    7   zstd (76 before)               13   topic ids instead of names
Differs from Kafka
    G1  a batch is not opened: records that are malformed inside a sound batch are stored
    G2  a compression type above 4 is answered INVALID_RECORD, not UNKNOWN_SERVER_ERROR
    G3  a partition named twice in one request is appended to twice
    versions 0 to 2 (old message formats) are refused, as in Kafka
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.router import Later
from penstock.errors import ApiError, ErrorCode, ProtocolError, StorageFailed, StorageFull
from penstock.host.clock import Clock
from penstock.protocol.batches import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES
from penstock.protocol.compression import Codec
from penstock.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.replication.manager import Partitions
from penstock.replication.partition import Appended, Partition
from penstock.replication.waiting import ProduceWait
from penstock.types import Buffer

ACKS_NONE: Final = 0
ACKS_ALLOWED: Final = frozenset({-1, 0, 1})
TOPIC_IDS_SINCE: Final = 13
ZSTD_SINCE: Final = 7
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
# Errors found inside the log: the reply says where the log starts. Those found before say -1.
FOUND_IN_LOG: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


class Produce:
    def __init__(
        self, partitions: Partitions, clock: Clock, on_storage_failed: Callable[[StorageFailed], None]
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._on_storage_failed = on_storage_failed

    def __call__(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse | Later | None:
        now_ms = self._clock.wall_ms()
        answers: list[PartitionProduceResponse] = []
        waits_for: list[tuple[int, Partition, Appended]] = []
        responses = []
        for topic in request.topic_data:
            first = len(answers)
            for data in topic.partition_data:
                try:
                    partition = self._find(topic, data.index, request, context)
                    appended = self._append(partition, data, request, context, now_ms)
                except ApiError as refusal:
                    answers.append(self._refused(topic, data, refusal))
                    continue
                if appended.end_offset > partition.high_watermark:
                    waits_for.append((len(answers), partition, appended))
                answers.append(
                    PartitionProduceResponse(
                        data.index,
                        0,
                        appended.base_offset,
                        appended.log_append_time_ms,
                        partition.log.log_start_offset,
                    )
                )
            responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers[first:]))
        if request.acks == ACKS_NONE:
            _require_success(answers)
            return None
        if not waits_for:
            return ProduceResponse(responses)
        return self._wait(responses, answers, waits_for, request.timeout_ms)

    def _find(
        self, topic: TopicProduceData, index: int, request: ProduceRequest, context: RequestContext
    ) -> Partition:
        by_id = context.version >= TOPIC_IDS_SINCE
        find = self._partitions
        found = find.find_by_id(topic.topic_id, index) if by_id else find.find(topic.name, index)
        if context.denied and (found.name.topic if found else topic.name) in context.denied:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if request.acks not in ACKS_ALLOWED:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        if found.name.topic in INTERNAL_TOPICS:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return found

    def _append(
        self,
        partition: Partition,
        data: PartitionProduceData,
        request: ProduceRequest,
        context: RequestContext,
        now_ms: int,
    ) -> Appended:
        records = data.records
        if context.version < ZSTD_SINCE and _codec(records) == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        assert records is None or isinstance(records, memoryview), "records are decoded to views"
        try:
            return partition.append(records, now_ms)
        except StorageFull as full:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(full)) from full
        except StorageFailed as failure:
            self._on_storage_failed(failure)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)) from failure

    def _refused(
        self, topic: TopicProduceData, data: PartitionProduceData, refusal: ApiError
    ) -> PartitionProduceResponse:
        start = -1
        if refusal.code in FOUND_IN_LOG:
            found = self._partitions.find(topic.name, data.index)
            found = found or self._partitions.find_by_id(topic.topic_id, data.index)
            start = found.log.log_start_offset if found else -1
        return PartitionProduceResponse(
            index=data.index,
            error_code=refusal.code,
            base_offset=-1,
            log_start_offset=start,
            record_errors=[BatchIndexAndErrorMessage(number, refusal.detail) for number in refusal.records],
            error_message=refusal.detail or None,
        )

    def _wait(
        self,
        responses: list[TopicProduceResponse],
        answers: list[PartitionProduceResponse],
        waits_for: list[tuple[int, Partition, Appended]],
        timeout_ms: int,
    ) -> Later:
        later = Later()

        def done(wait: ProduceWait) -> None:
            for number, code in wait.errors.items():
                answers[number].error_code = code
                answers[number].base_offset = -1
            later.finish(ProduceResponse(responses))

        wait = ProduceWait(self._clock.monotonic() + timeout_ms / 1000, done)
        for number, partition, appended in waits_for:
            partition.produce_waits.add(appended.end_offset, wait, number)
        return later


def _require_success(answers: list[PartitionProduceResponse]) -> None:
    failed = next((answer for answer in answers if answer.error_code), None)
    if failed is not None:
        code = ErrorCode(failed.error_code).name
        raise ProtocolError(f"a produce with acks=0 failed for partition {failed.index}: {code}")


def _codec(records: Buffer | None) -> int:
    """Of a batch that has not been checked yet."""
    return records[ATTRIBUTES_AT + 1] & CODEC_MASK if records and len(records) >= HEADER_BYTES else Codec.NONE
