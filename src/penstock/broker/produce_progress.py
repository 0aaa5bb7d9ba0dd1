"""One produce from its appends until it can be answered.

Each of its partitions is waited for at most twice: for its turn, if its batch is looked into by a
worker thread, and then for the high watermark to pass what was appended.
"""

from functools import partial
from typing import Final

from penstock.broker.appending import Turn
from penstock.broker.router import Later
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.log.validation import NotABatch
from penstock.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.replication.partition import Appended, Partition
from penstock.replication.waiting import ProduceWait

# Errors found inside the log: the reply says where the log starts. Those found before say -1.
FOUND_IN_LOG: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

Waiting = list[tuple[int, Partition, Appended]]
"""The number of the answer, and what must become safe before it is given."""
Turns = list[tuple[int, Partition, Turn]]
"""The number of the answer, and what must be looked into before that."""


class ProduceInProgress:
    __slots__ = ("_answers", "_later", "_responses", "_wait")

    def __init__(
        self,
        responses: list[TopicProduceResponse],
        answers: list[PartitionProduceResponse],
        deadline: float,
    ) -> None:
        self._responses = responses
        self._answers = answers
        """Those within the responses, by their number."""
        self._later = Later()
        self._wait = ProduceWait(deadline, self._done)

    def wait(self, waiting: Waiting, turns: Turns) -> Later:
        for number, partition, turn in turns:
            self._wait.outstanding.add(number)
            turn.then = partial(self._has_had_its_turn, number, partition)
        for number, partition, appended in waiting:
            partition.produce_waits.add(appended.end_offset, self._wait, number)
        return self._later

    def _has_had_its_turn(self, number: int, partition: Partition, outcome: Appended | ApiError) -> None:
        answer, wait = self._answers[number], self._wait
        if isinstance(outcome, ApiError):
            _refuse(answer, partition, outcome)
            wait.reached(number)
            return
        answer.base_offset, end_offset = outcome.base_offset, outcome.end_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = partition.log.log_start_offset
        if end_offset > partition.high_watermark:
            partition.produce_waits.add(end_offset, wait, number)
        else:
            wait.reached(number)

    def _done(self, wait: ProduceWait) -> None:
        for number, code in wait.errors.items():
            self._answers[number].error_code = code
            self._answers[number].base_offset = -1
        self._later.finish(ProduceResponse(self._responses))


def refused(index: int, partition: Partition | None, refusal: ApiError) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index)
    _refuse(answer, partition, refusal)
    return answer


def _refuse(answer: PartitionProduceResponse, partition: Partition | None, refusal: ApiError) -> None:
    in_log = refusal.code in FOUND_IN_LOG and not isinstance(refusal, NotABatch)
    answer.error_code = refusal.code
    answer.base_offset = -1
    answer.log_start_offset = partition.log.log_start_offset if in_log and partition is not None else -1
    answer.record_errors = [BatchIndexAndErrorMessage(number, refusal.detail) for number in refusal.records]
    answer.error_message = refusal.detail or None


def require_success(answers: list[PartitionProduceResponse]) -> None:
    failed = next((answer for answer in answers if answer.error_code), None)
    if failed is not None:
        code = ErrorCode(failed.error_code).name
        raise ProtocolError(f"a produce with acks=0 failed for partition {failed.index}: {code}")
