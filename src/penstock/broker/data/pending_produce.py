"""A produce request from its appends until its reply can be sent.

A request waits at most twice for each of its partitions: for its queued append, if a worker thread validates
the batch, and then for the offset that its acks require to pass the appended batch.

Rule 1: a batch that is still queued when the request's time is up is not stored.
Rule 2: a queued batch is not stored either if the client that waits for its acknowledgement disconnects. With
        acks=0 the client waits for nothing, so a disconnect does not drop its batches.
"""

import asyncio
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.data.append import QueuedAppend
from penstock.broker.router import DeferredReply, NoReply
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.limits import (
    DECODED_PARTITION_BYTES,
    DECODED_REQUEST_BYTES,
    PRODUCE_BATCHES_MAX,
    VALIDATION_WAIT_MS_MAX,
)
from penstock.log.validation import InvalidBatch
from penstock.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.replication.partition import Appended, Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.types import Offset

# Errors found inside the log: the reply carries the log start offset. With any other error it is -1.
FOUND_IN_LOG: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1

UnacknowledgedAppends = list[tuple[int, Partition, Appended]]
"""The index of the partition's response, the partition, and the append that the reply waits for: until this
broker has it (acks=1), or all in-sync replicas have it (acks=all)."""
QueuedAppends = list[tuple[int, Partition, QueuedAppend]]
"""The index of the partition's response, the partition, and the append that must be validated first."""


class ProduceLimits(NamedTuple):
    """How many batches a request may have, how long one of them may stay queued, and what is not offered."""

    batches_max: int = PRODUCE_BATCHES_MAX
    validation_wait_ms_max: int = VALIDATION_WAIT_MS_MAX
    allows_transactions: bool = False
    """Whether transactional batches are appended. Off: without a transaction coordinator no client could end
    its transaction, and readers of committed records would wait for ever."""


PRODUCE_LIMITS: Final = ProduceLimits()


def weigh_produce(request: ProduceRequest, frame_bytes: int) -> int:
    """Weight of a pending produce: its records are in the log by then, so only a response for each batch
    counts.

    With acks=0 there are no responses. Batches in the validation queue are counted by that queue.
    """
    if request.acks == ACKS_NONE:
        return DECODED_REQUEST_BYTES
    count = sum([len(topic.partition_data) for topic in request.topic_data])
    return DECODED_REQUEST_BYTES + DECODED_PARTITION_BYTES * count


class PendingProduce(ProduceWait):
    """A produce request that waits: replied to when the wait that its partitions release has ended."""

    __slots__ = (
        "_acks",
        "_answers",
        "_is_abandoned",
        "_later",
        "_names_left",
        "_queued",
        "_responses",
        "_timer",
    )

    def __init__(
        self,
        responses: list[TopicProduceResponse],
        answers: list[PartitionProduceResponse],
        deadline: float,
        acks: int = ACKS_ALL,
    ) -> None:
        super().__init__(deadline, self._reply)
        self._acks = acks
        self._responses = responses
        self._answers = answers
        """All partition responses within `responses`, by their index in the request."""
        self._later = DeferredReply()
        self._timer: asyncio.TimerHandle | None = None
        """Ends the wait for queued appends; None: no batch was queued."""
        self._is_abandoned = False

    def wait_for_appends(self, queued: QueuedAppends, *, names_left: int, wait_ms: int) -> None:
        """`names_left`: how many rejected records the reply may still list. `wait_ms`: how long batches may
        stay queued.
        """
        self._names_left = names_left
        self._queued: dict[int, QueuedAppend] = {}
        """Appends that still wait for their validation, by the index of their response."""
        for number, partition, append in queued:
            # Registered as outstanding before anything can finish: the reply must not be sent while a batch
            # is queued.
            self.outstanding.add(number)
            self._queued[number] = append
            append.then = partial(self._append_ended, number, partition)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._time_is_up)
        if self._acks == ACKS_NONE:
            require_success(self._answers)  # batches that were rejected before any was queued
        else:
            self._later.abandon = self._abandon

    def wait_for_acknowledgement(self, waiting: UnacknowledgedAppends) -> DeferredReply:
        for number, partition, appended in waiting:
            waits = partition.own_end_waits if self._acks == ACKS_LEADER else partition.high_watermark_waits
            waits.add(appended.end_offset, self, number)
        return self._later

    def _append_ended(self, number: int, partition: Partition, outcome: Appended | ApiError) -> None:
        del self._queued[number]
        answer = self._answers[number]
        if isinstance(outcome, ApiError):
            _fill_rejection(answer, partition, outcome, self._names_left)
            self._names_left -= len(answer.record_errors)
            self.partition_done(number)
            return
        answer.base_offset = outcome.base_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = partition.log.log_start_offset
        # The append itself may have advanced the high watermark, if no other replica is in sync.
        if outcome.end_offset > acknowledgeable_end(partition, self._acks):
            self.wait_for_acknowledgement([(number, partition, outcome)])
        else:
            self.partition_done(number)

    def _time_is_up(self) -> None:
        # Only queued batches fail here. A batch that was appended keeps waiting, for a flush or for replicas,
        # until the request's own deadline.
        for number in self._drop_queued():
            self.failed(number, ErrorCode.REQUEST_TIMED_OUT)

    def _drop_queued(self) -> list[int]:
        """Drop the batches that are still queued (rules 1 and 2). Returns the indexes of their responses."""
        assert self._timer is not None, "there are queued batches"
        self._timer.cancel()
        queued, self._queued = self._queued, {}
        for append in queued.values():
            append.drop()
        return list(queued)

    def _abandon(self) -> None:
        """Release the reply of a client that has disconnected. Its appended batches may still wait for
        a flush or for replicas.
        """
        self._is_abandoned = True
        self._drop_queued()
        self._responses, self._answers = [], []

    def _reply(self, _: ProduceWait) -> None:
        if self._is_abandoned:
            return
        if self._timer is not None:
            self._drop_queued()  # after a failure or a timeout some batches may still be queued
        for number, code in self.errors.items():
            self._answers[number].error_code = code
            self._answers[number].base_offset = -1
        is_answered = self._acks != ACKS_NONE
        self._later.finish(ProduceResponse(self._responses) if is_answered else self._unanswered())

    def _unanswered(self) -> NoReply | ProtocolError:
        """The outcome with acks=0."""
        try:
            require_success(self._answers)
        except ProtocolError as problem:
            return problem
        return NoReply.DONE


def acknowledgeable_end(partition: Partition, acks: int) -> Offset:
    """Offset up to which produce requests are acknowledged: the high watermark, or the leader's own end for
    acks=1. With acks=0 nothing is waited for.
    """
    if acks == ACKS_NONE:
        return partition.log.log_end_offset
    leading = partition.leading
    return leading.own_end if acks == ACKS_LEADER and leading is not None else partition.high_watermark


def rejected_partition(
    index: int, partition: Partition | None, rejection: ApiError, names_left: int
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index)
    _fill_rejection(answer, partition, rejection, names_left)
    return answer


def _fill_rejection(
    answer: PartitionProduceResponse, partition: Partition | None, rejection: ApiError, names_left: int
) -> None:
    in_log = rejection.code in FOUND_IN_LOG and not isinstance(rejection, InvalidBatch)
    answer.error_code = rejection.code
    answer.base_offset = -1
    answer.log_start_offset = partition.log.log_start_offset if in_log and partition is not None else -1
    answer.record_errors = [
        BatchIndexAndErrorMessage(number, rejection.detail) for number in rejection.records[:names_left]
    ]
    answer.error_message = rejection.detail or None


def require_success(answers: list[PartitionProduceResponse]) -> None:
    failed = next((answer for answer in answers if answer.error_code), None)
    if failed is not None:
        code = ErrorCode(failed.error_code).name
        raise ProtocolError(f"a produce with acks=0 failed for partition {failed.index}: {code}")
