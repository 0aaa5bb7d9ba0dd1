"""Appends the batches of a produce request to partition logs, and maps storage failures to Kafka error codes.

Most batches are validated by their header and appended at once. A batch that needs a long deep validation is
validated by a worker thread. Batches that arrive for the same partition meanwhile queue behind it, so that
batches are appended in the order in which the broker received them, whichever connection sent them.
Idempotent producers rely on that order.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.context import RequestContext
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.host.keyed_jobs import KeyedJob
from penstock.limits import VALIDATION_OVERHEAD_BYTES
from penstock.log.deep_validation import DeepValidation, ValidatedBatch
from penstock.protocol.batches import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES
from penstock.protocol.compression import Codec
from penstock.protocol.control_batches import EndTransactionMarker
from penstock.protocol.messages.produce import ProduceRequest
from penstock.replication.partition import Appended, Partition
from penstock.types import Buffer

ZSTD_SINCE: Final = 7


class QueuedAppend:
    """A batch that is being validated by the worker thread, or queued behind such a batch. Its outcome is
    always delivered later, through `then`.
    """

    __slots__ = ("_job", "_partition", "then")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._job: KeyedJob | None = None
        self.then: Callable[[Appended | ApiError], None] | None = None

    def begin(self, job: KeyedJob) -> None:
        self._job = job
        self._partition.batches_waiting += 1

    def end(self) -> None:
        self._partition.batches_waiting -= 1

    def finish(self, outcome: Appended | ApiError) -> None:
        if self.then is not None:
            self.then(outcome)

    def drop(self) -> None:
        """Discard the batch without storing it and without calling `then`, unless it was finished before."""
        job_queue = self._partition.job_queue
        assert job_queue is not None, "the batch was queued"
        if self._job is not None and job_queue.drop(self._job):
            self.end()


class BatchAppender:
    def __init__(
        self,
        on_full: Callable[[StorageFull], None],
        on_failed: Callable[[StorageFailed], None],
        leadership_confirmed: Callable[[Partition, str], bool],
        *,
        allows_transactions: bool = False,
    ) -> None:
        """`leadership_confirmed` returns whether this broker certainly leads the partition
        (broker/replication/leadership_check.py). `allows_transactions`: see `ProduceLimits`.
        """
        self._leadership_confirmed = leadership_confirmed
        self._allows_transactions = allows_transactions
        self._on_full = on_full
        self._on_failed = on_failed

    def append(
        self,
        partition: Partition,
        records: Buffer | None,
        request: ProduceRequest,
        context: RequestContext,
        now_ms: int,
    ) -> Appended | QueuedAppend:
        """Append one batch, or raise the ApiError to return for its partition."""
        if context.version < ZSTD_SINCE and _codec(records) == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        assert records is None or isinstance(records, memoryview), "records are decoded to views"
        try:
            allows_transactions = self._allows_transactions and request.transactional_id is not None
            answer = partition.try_append(records, now_ms, allows_transactions=allows_transactions)
        except (StorageFull, StorageFailed, ApiError) as problem:
            if (rejection := self._rejection(partition, problem, request)) is problem:
                raise
            raise rejection from problem
        return self._queue(partition, answer, request) if isinstance(answer, DeepValidation) else answer

    def append_marker(
        self, partition: Partition, marker: EndTransactionMarker, now_ms: int, *, must_be_newer: bool
    ) -> Appended:
        """Append a transaction's marker, or raise the ApiError to return for its partition."""
        try:
            return partition.append_marker(marker, now_ms, must_be_newer=must_be_newer)
        except (StorageFull, StorageFailed) as problem:
            raise self._storage_error(problem) from problem

    def _queue(
        self, partition: Partition, validation: DeepValidation, request: ProduceRequest
    ) -> QueuedAppend:
        job_queue, queued = partition.job_queue, QueuedAppend(partition)
        assert job_queue is not None, "without a queue every validation runs at once"
        size_bytes = VALIDATION_OVERHEAD_BYTES + len(validation.batch)
        if not job_queue.has_room(partition, size_bytes):
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "too many batches wait for validation; try again later"
            )

        def validated(result: ValidatedBatch | None, error: BaseException | None) -> None:
            # Decremented on every path: while the count is above 0, all later batches of the partition are
            # queued.
            queued.end()
            # Replies leave in request order, so requests behind this one would wait for ever without an
            # outcome.
            outcome: Appended | ApiError = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            try:
                outcome = self._stored(partition, result, error, request)
            finally:
                queued.finish(outcome)

        # The batch is copied because the connection overwrites the request's bytes with the next read.
        job = job_queue.add(partition, size_bytes, validation.copied().run, validated)
        assert job is not None, "there was room for it"
        queued.begin(job)
        return queued

    def _stored(
        self,
        partition: Partition,
        result: ValidatedBatch | None,
        error: BaseException | None,
        request: ProduceRequest,
    ) -> Appended | ApiError:
        try:
            if error is not None:
                raise error
            assert result is not None, "a validation has a result or an error"
            return partition.append_validated(result)
        except (StorageFull, StorageFailed, ApiError) as problem:
            return self._rejection(partition, problem, request)

    def _storage_error(self, problem: StorageFull | StorageFailed) -> ApiError:
        if isinstance(problem, StorageFull):
            self._on_full(problem)
        else:
            self._on_failed(problem)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))

    def _rejection(self, partition: Partition, problem: Exception, request: ProduceRequest) -> ApiError:
        if isinstance(problem, StorageFull | StorageFailed):
            return self._storage_error(problem)
        assert isinstance(problem, ApiError)
        if problem.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A deposed leader finds a sequence gap where the real leader has the missing batches. Producers
            # treat this error as fatal, so it is returned only by a confirmed leader; otherwise the producer
            # gets a retriable error.
            if not self._leadership_confirmed(partition, problem.detail):
                return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another may lead")
            return problem
        if problem.code is ErrorCode.INVALID_TXN_STATE and request.transactional_id is None:
            return ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return problem


def _codec(records: Buffer | None) -> int:
    """Compression codec of a batch that has not been validated yet."""
    return records[ATTRIBUTES_AT + 1] & CODEC_MASK if records and len(records) >= HEADER_BYTES else Codec.NONE
