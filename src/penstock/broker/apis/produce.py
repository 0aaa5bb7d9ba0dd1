"""Produce: api key 0, versions 3 to 13 (advertised from 0).

Appends record batches to partitions and returns a result for each.

Behaviour
    acks=0    no reply is sent; a failure closes the connection, so that the client refreshes its metadata
    acks=1    reply when the leader has the batch, on disk if the topic requires it; as acks=all
              while the metadata store is unavailable, because another broker may have been elected
    acks=all  reply when the high watermark has passed the batch; NOT_ENOUGH_REPLICAS if it cannot
    timeout   REQUEST_TIMED_OUT; the records are in the log and may still be committed, unless they
              still waited for validation by a worker thread: then they are not stored. With acks=0
              only VALIDATION_WAIT_MS_MAX counts
    batches   more than PRODUCE_BATCHES_MAX close the connection
Versions
    0 to 2 (old message formats) are rejected, as in Kafka
    3   record batch format 2           8   record errors and a message
    5   log start offset                9   flexible encoding
    7   zstd (76 before)               13   topic ids instead of names
Differs from Kafka
    G10 null records are rejected with INVALID_RECORD
    G11 a compression type above 4 is rejected with INVALID_RECORD, not UNKNOWN_SERVER_ERROR
    G18 a batch is not decoded: a malformed record in a valid batch is stored
    G19 a partition named twice in one request is appended to twice
    G21 a batch whose timestamp type is LogAppendTime is rejected
    G24 at most RECORDS_NAMED_MAX records of a request are named
    there are no transactions yet: a transactional batch is rejected with INVALID_TXN_STATE
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.data.append import BatchAppender, QueuedAppend
from penstock.broker.data.pending_produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    PRODUCE_LIMITS,
    PendingProduce,
    ProduceLimits,
    QueuedAppends,
    UnacknowledgedAppends,
    acknowledgeable_end,
    rejected_partition,
    require_success,
    weigh_produce,
)
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import TOPIC, ServedApi, topics_named
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.host.clock import Clock
from penstock.limits import RECORDS_NAMED_MAX
from penstock.metadata.cluster_image import INTERNAL_TOPICS
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation

ACKS_ALLOWED: Final = frozenset({-1, 0, 1})
TOPIC_IDS_SINCE: Final = 13


class Produce:
    # Kafka serves Produce from version 3 and advertises 0: old librdkafka infers from a higher minimum that
    # the broker supports no compression.
    api = ServedApi(
        PRODUCE,
        Operation.WRITE,
        TOPIC,
        topics_named("topic_data", "name"),
        weigh=weigh_produce,
        oldest_advertised=0,
    )

    def __init__(
        self,
        partitions: ReplicaManager,
        appender: BatchAppender,
        clock: Clock,
        is_store_unavailable: Callable[[], bool] = lambda: False,
        limits: ProduceLimits = PRODUCE_LIMITS,
    ) -> None:
        self._is_store_unavailable = is_store_unavailable
        self._partitions = partitions
        self._appender = appender
        self._clock = clock
        self._batches_max = limits.batches_max
        self._wait_ms_max = limits.validation_wait_ms_max

    def __call__(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | DeferredReply | None:
        answers: list[PartitionProduceResponse] = []
        waiting: UnacknowledgedAppends = []
        queued: QueuedAppends = []
        responses = []
        names_left, acks = RECORDS_NAMED_MAX, request.acks
        if acks == ACKS_LEADER and self._is_store_unavailable():
            # Another broker may have been elected, and this broker would not know. An acks=1 reply of a
            # deposed leader would confirm records that the new leader truncates.
            acks = ACKS_ALL
        now_ms = self._clock.wall_ms()
        for topic in request.topic_data:
            first = len(answers)
            for data in topic.partition_data:
                partition = None
                try:
                    partition = self._find(topic, data.index, acks, context)
                    appended = self._appender.append(partition, data.records, request, context, now_ms)
                except ApiError as rejection:
                    answer = rejected_partition(data.index, partition, rejection, names_left)
                    names_left -= len(answer.record_errors)
                    answers.append(answer)
                    continue
                if isinstance(appended, QueuedAppend):
                    queued.append((len(answers), partition, appended))
                    answers.append(PartitionProduceResponse(data.index))
                    continue
                reached = partition.high_watermark
                if acks != ACKS_ALL:
                    reached = acknowledgeable_end(partition, acks)
                if appended.end_offset > reached:
                    waiting.append((len(answers), partition, appended))
                start = partition.log.log_start_offset
                answers.append(
                    PartitionProduceResponse(
                        data.index, 0, appended.base_offset, appended.log_append_time_ms, start
                    )
                )
            if topic.partition_data:
                responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers[first:]))
        if waiting or queued:
            deadline = self._clock.monotonic() + request.timeout_ms / 1000
            pending = PendingProduce(responses, answers, deadline, acks)
            if queued:
                timeout_ms = self._wait_ms_max if acks == ACKS_NONE else request.timeout_ms
                wait_ms = min(timeout_ms, self._wait_ms_max)
                pending.wait_for_appends(queued, names_left=names_left, wait_ms=wait_ms)
            return pending.wait_for_acknowledgement(waiting)
        if acks == ACKS_NONE:
            require_success(answers)
            return None
        return ProduceResponse(responses)

    def _find(self, topic: TopicProduceData, index: int, acks: int, context: RequestContext) -> Partition:
        by_id = context.version >= TOPIC_IDS_SINCE
        partitions = self._partitions
        found = partitions.find_by_id(topic.topic_id, index) if by_id else partitions.find(topic.name, index)
        if context.denied and (found.name.topic if found else topic.name) in context.denied:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if found is None:
            raise partitions.missing_partition_error("" if by_id else topic.name, topic.topic_id, index)
        if acks not in ACKS_ALLOWED:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        if found.name.topic in INTERNAL_TOPICS:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if found.min_isr_error is not None and acks == ACKS_ALL:
            raise found.min_isr_error.again()
        return found

    def require_few_batches(self, request: ProduceRequest) -> None:
        """All batches are appended in one iteration of the loop. Even rejecting too many one by one takes
        long.
        """
        count, most = sum([len(topic.partition_data) for topic in request.topic_data]), self._batches_max
        if count > most:
            raise ProtocolError(f"a produce request has {count} batches; at most {most} are taken")
