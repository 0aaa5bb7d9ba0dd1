"""A produce request from its appends until its reply can be sent.

A request waits at most twice for each of its partitions: for its queued append, if a worker thread validates
the batch, and then for the high watermark to pass the appended batch.

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
    INSPECTION_WAIT_MS_MAX,
    PRODUCE_BATCHES_MAX,
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

UnreplicatedAppends = list[tuple[int, Partition, Appended]]
"""The index of the partition's response, the partition, and the append that must be acknowledged before the
reply.
"""
QueuedAppends = list[tuple[int, Partition, QueuedAppend]]
"""The index of the partition's response, the partition, and the append that must be validated first."""


class ProduceLimits(NamedTuple):
    """How many batches a request may have, and how long one of them may stay queued."""

    batches_max: int = PRODUCE_BATCHES_MAX
    inspection_wait_ms_max: int = INSPECTION_WAIT_MS_MAX


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


class PendingProduce:
    __slots__ = ("_answers", "_is_local", "_later", "_responses", "_wait")

    def __init__(
        self,
        responses: list[TopicProduceResponse],
        answers: list[PartitionProduceResponse],
        deadline: float,
        acks: int = ACKS_ALL,
    ) -> None:
        self._is_local = acks == ACKS_LEADER
        """Whether the request waits for the leader only (acks=1), not for the in-sync replicas."""
        self._responses = responses
        self._answers = answers
        """All partition responses within `responses`, by their index in the request."""
        self._later = DeferredReply()
        self._wait = ProduceWait(deadline, self._done)

    def wait(self, waiting: UnreplicatedAppends) -> DeferredReply:
        for number, partition, appended in waiting:
            waits = partition.local_waits if self._is_local else partition.produce_waits
            waits.add(appended.end_offset, self._wait, number)
        return self._later

    def _done(self, wait: ProduceWait) -> None:
        for number, code in wait.errors.items():
            self._answers[number].error_code = code
            self._answers[number].base_offset = -1
        self._finish()

    def _finish(self) -> None:
        self._later.finish(ProduceResponse(self._responses))


class QueuedProduce(PendingProduce):
    """A pending produce with batches that must be validated first."""

    __slots__ = ("_is_abandoned", "_names_left", "_timer", "_turns")

    def begin(
        self, waiting: UnreplicatedAppends, turns: QueuedAppends, *, names_left: int, wait_ms: int
    ) -> DeferredReply:
        """`names_left`: how many rejected records the reply may still list. `wait_ms`: how long batches may
        stay queued.
        """
        self._later.abandon = self._abandon
        self._wait_for_turns(turns, names_left=names_left, wait_ms=wait_ms)
        return self.wait(waiting)

    def _wait_for_turns(self, turns: QueuedAppends, *, names_left: int, wait_ms: int) -> None:
        self._is_abandoned = False
        self._names_left = names_left
        self._turns: dict[int, QueuedAppend] = {}
        for number, partition, turn in turns:
            # Registered as outstanding before anything can finish: the reply must not be sent while a batch
            # is queued.
            self._wait.outstanding.add(number)
            self._turns[number] = turn
            turn.then = partial(self._has_had_its_turn, number, partition)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._time_is_up)

    def _has_had_its_turn(self, number: int, partition: Partition, outcome: Appended | ApiError) -> None:
        del self._turns[number]
        answer = self._answers[number]
        if isinstance(outcome, ApiError):
            _fill_rejection(answer, partition, outcome, self._names_left)
            self._names_left -= len(answer.record_errors)
            self._wait.reached(number)
            return
        answer.base_offset = outcome.base_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = partition.log.log_start_offset
        self._is_appended(number, partition, outcome)

    def _is_appended(self, number: int, partition: Partition, appended: Appended) -> None:
        # The append itself may have advanced the high watermark, if no other replica is in sync.
        if appended.end_offset > acknowledgeable_end(partition, is_local=self._is_local):
            waits = partition.local_waits if self._is_local else partition.produce_waits
            waits.add(appended.end_offset, self._wait, number)
        else:
            self._wait.reached(number)

    def _time_is_up(self) -> None:
        # Only queued batches fail here. A batch that was appended keeps waiting for its replicas until the
        # request's own deadline.
        for number in self._drop_turns():
            self._wait.failed(number, ErrorCode.REQUEST_TIMED_OUT)

    def _drop_turns(self) -> list[int]:
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            turn.drop()
        return list(turns)

    def _done(self, wait: ProduceWait) -> None:
        if not self._is_abandoned:
            self._timer.cancel()
            # After a failure or a timeout some batches may still be queued: rule 1.
            self._drop_turns()
            super()._done(wait)

    def _abandon(self) -> None:
        """Release the reply of a client that has disconnected. Its appended batches may still wait for
        replicas.
        """
        self._is_abandoned = True
        self._timer.cancel()
        # Rule 2: a batch that was not appended yet is dropped.
        self._drop_turns()
        self._responses, self._answers = [], []


class ProduceWithoutAcks(QueuedProduce):
    """A produce with acks=0: finished when all of its queued batches were appended or rejected."""

    __slots__ = ()

    def begin(
        self, waiting: UnreplicatedAppends, turns: QueuedAppends, *, names_left: int, wait_ms: int
    ) -> DeferredReply:
        self._wait_for_turns(turns, names_left=names_left, wait_ms=wait_ms)
        require_success(self._answers)  # batches that were rejected before any was queued
        return self._later

    def _is_appended(self, number: int, partition: Partition, appended: Appended) -> None:
        self._wait.reached(number)

    def _finish(self) -> None:
        try:
            require_success(self._answers)
        except ProtocolError as problem:
            self._later.finish(problem)
        else:
            self._later.finish(NoReply.DONE)


def acknowledgeable_end(partition: Partition, *, is_local: bool) -> Offset:
    """Offset up to which produce requests are acknowledged: the high watermark, or the leader's own end for
    acks=1.
    """
    leading = partition.leading
    return leading.own_end if is_local and leading is not None else partition.high_watermark


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
