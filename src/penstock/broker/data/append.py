"""From a produce request to a partition's log, and from the disk's troubles to Kafka's error codes.

A batch that takes long to look into is given to a worker thread, and what comes for its partition
meanwhile waits behind it: batches are appended in the order they came, whichever connection sent
them. Idempotent producers rely on it.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.context import RequestContext
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.host.keyed_jobs import KeyedJob
from penstock.limits import INSPECTION_BYTES
from penstock.log.deep_validation import DeepValidation, ValidatedBatch
from penstock.protocol.batches import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES
from penstock.protocol.compression import Codec
from penstock.protocol.messages.produce import ProduceRequest
from penstock.replication.partition import Appended, Partition
from penstock.types import Buffer

ZSTD_SINCE: Final = 7


class QueuedAppend:
    """A batch that is looked into, or waits behind one that is. Its outcome always comes later."""

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
        """The batch is not stored, and nobody told of it, unless it has been already."""
        job_queue = self._partition.job_queue
        assert job_queue is not None, "somebody was waited for"
        if self._job is not None and job_queue.drop(self._job):
            self.end()


class BatchAppender:
    def __init__(
        self,
        on_full: Callable[[StorageFull], None],
        on_failed: Callable[[StorageFailed], None],
        leadership_confirmed: Callable[[Partition, str], bool],
    ) -> None:
        """`leadership_confirmed`: whether this broker certainly leads
        (broker/replication/leadership_check.py).
        """
        self._leadership_confirmed = leadership_confirmed
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
        """Append one batch, or raise the ApiError that answers for its partition."""
        if context.version < ZSTD_SINCE and _codec(records) == Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        assert records is None or isinstance(records, memoryview), "records are decoded to views"
        try:
            answer = partition.try_append(records, now_ms)
        except (StorageFull, StorageFailed, ApiError) as problem:
            if (rejection := self._rejection(partition, problem, request)) is problem:
                raise
            raise rejection from problem
        return self._wait(partition, answer, request) if isinstance(answer, DeepValidation) else answer

    def _wait(
        self, partition: Partition, inspection: DeepValidation, request: ProduceRequest
    ) -> QueuedAppend:
        job_queue, turn = partition.job_queue, QueuedAppend(partition)
        assert job_queue is not None, "what is to wait has somebody to wait for"
        size_bytes = INSPECTION_BYTES + len(inspection.batch)
        if not job_queue.has_room(partition, size_bytes):
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "too many batches wait to be looked into; try again later"
            )

        def inspected(result: ValidatedBatch | None, error: BaseException | None) -> None:
            turn.end()
            try:
                outcome = self._stored(partition, result, error, request)
            except BaseException:
                # Whatever it was, requests behind this one must not wait for ever.
                turn.finish(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
                raise
            turn.finish(outcome)

        # A copy: the request's own bytes are overwritten by the next that is read.
        job = job_queue.add(partition, size_bytes, inspection.copied().run, inspected)
        assert job is not None, "there was room for it"
        turn.begin(job)
        return turn

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
            assert result is not None, "an inspection has a result or an error"
            return partition.store(result)
        except (StorageFull, StorageFailed, ApiError) as problem:
            return self._rejection(partition, problem, request)

    def _rejection(self, partition: Partition, problem: Exception, request: ProduceRequest) -> ApiError:
        if isinstance(problem, StorageFull):
            self._on_full(problem)
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))
        if isinstance(problem, StorageFailed):
            self._on_failed(problem)
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))
        assert isinstance(problem, ApiError)
        if problem.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            leadership_confirmed = self._leadership_confirmed(partition, problem.detail)
            return (
                problem
                if leadership_confirmed
                else ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another may lead")
            )
        if problem.code is ErrorCode.INVALID_TXN_STATE and request.transactional_id is None:
            return ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return problem


def _codec(records: Buffer | None) -> int:
    """Of a batch that has not been checked yet."""
    return records[ATTRIBUTES_AT + 1] & CODEC_MASK if records and len(records) >= HEADER_BYTES else Codec.NONE
