"""WriteTxnMarkers: api key 27, versions 1 to 2.

Ends transactions in the partitions that this broker leads: appends a marker for each, with acks=all.

Behaviour
    Allowed to clients that may act as a broker (CLUSTER_ACTION on the cluster): transaction coordinators, and
    administrators that abort a transaction which nothing else ends.
    The reply is sent when all in-sync replicas have the markers; TRANSACTION_MARKERS_WAIT_MS_MAX later with
    REQUEST_TIMED_OUT for the rest. Repeating a request is safe: a marker that is in the log is not appended
    again, and succeeds.
    A marker of an older producer epoch than the partition knows is INVALID_PRODUCER_EPOCH. So is one of the
    same epoch, if a transaction is open and the transaction version is 2: there every end raises the epoch.
    A coordinator that was replaced gets TRANSACTION_COORDINATOR_FENCED.
    Internal topics get INVALID_TOPIC_EXCEPTION: their coordinators would not notice the marker.
    More than TRANSACTION_MARKERS_MAX markers close the connection.
Versions
    2  transaction version
Differs from Kafka
    A repeated marker is not appended a second time.
"""

from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.data.append import BatchAppender
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.host.clock import Clock
from penstock.limits import TRANSACTION_MARKERS_MAX, TRANSACTION_MARKERS_WAIT_MS_MAX
from penstock.metadata.cluster_image import INTERNAL_TOPICS
from penstock.protocol.control_batches import EndTransactionMarker
from penstock.protocol.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.replication.partition import Appended, Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.replication.replica_manager import ReplicaManager
from penstock.security.access import Operation
from penstock.types import NO_TOPIC_ID, Offset, ProducerId

EPOCH_PER_TRANSACTION_SINCE: Final = 2
"""Transaction version in which the coordinator raises the producer epoch with every transaction."""

UnreplicatedMarker = tuple[Partition, Offset, WritableTxnMarkerPartitionResult]
"""A partition, the end offset of its marker, and the entry of the reply."""


class PendingMarkers(ProduceWait):
    """A request whose markers are appended and not yet replicated."""

    __slots__ = ("_entries", "_is_abandoned", "_response", "later")

    def __init__(self, response: WriteTxnMarkersResponse, deadline: float) -> None:
        super().__init__(deadline, self._reply)
        self._response = response
        self._entries: list[WritableTxnMarkerPartitionResult] = []
        self._is_abandoned = False
        self.later = DeferredReply(abandon=self._abandon)

    def wait(self, unreplicated: list[UnreplicatedMarker]) -> DeferredReply:
        self._entries = [entry for _, _, entry in unreplicated]
        self.outstanding.update(range(len(unreplicated)))
        for number, (partition, end_offset, _) in enumerate(unreplicated):
            partition.high_watermark_waits.add(end_offset, self, number)
        return self.later

    def _abandon(self) -> None:
        self._is_abandoned = True

    def _reply(self, _: ProduceWait) -> None:
        for number, code in self.errors.items():
            self._entries[number].error_code = code
        if not self._is_abandoned:
            self.later.finish(self._response)


class WriteTxnMarkers:
    api = ServedApi(WRITE_TXN_MARKERS, Operation.CLUSTER_ACTION, ON_CLUSTER, cluster_name)

    def __init__(
        self,
        partitions: ReplicaManager,
        appender: BatchAppender,
        clock: Clock,
        *,
        wait_ms_max: int = TRANSACTION_MARKERS_WAIT_MS_MAX,
        markers_max: int = TRANSACTION_MARKERS_MAX,
    ) -> None:
        self._partitions = partitions
        self._appender = appender
        self._clock = clock
        self._wait_ms_max = wait_ms_max
        self._markers_max = markers_max

    def require_few_markers(self, request: WriteTxnMarkersRequest) -> None:
        """All markers are appended in one iteration of the loop."""
        count = sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics)
        if count > self._markers_max:
            raise ProtocolError(f"a request has {count} markers; at most {self._markers_max} are taken")

    def __call__(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse | DeferredReply:
        unreplicated: list[UnreplicatedMarker] = []
        response = WriteTxnMarkersResponse(
            [self._result(marker, context, unreplicated) for marker in request.markers]
        )
        # A later marker of the request may have moved the high watermark past earlier ones.
        unreplicated = [waiting for waiting in unreplicated if waiting[1] > waiting[0].high_watermark]
        if not unreplicated:
            return response
        deadline = self._clock.monotonic() + self._wait_ms_max / 1000
        return PendingMarkers(response, deadline).wait(unreplicated)

    def _result(
        self, written: WritableTxnMarker, context: RequestContext, unreplicated: list[UnreplicatedMarker]
    ) -> WritableTxnMarkerResult:
        result = WritableTxnMarkerResult(written.producer_id)
        for topic in written.topics:
            entries = [WritableTxnMarkerPartitionResult(index) for index in topic.partition_indexes]
            result.topics.append(WritableTxnMarkerTopicResult(topic.name, entries))
            for entry in entries:
                try:
                    if context.cluster_denied:
                        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                    partition = self._found(topic.name, entry.partition_index)
                    appended = self._append(partition, written)
                except ApiError as rejection:
                    entry.error_code = rejection.code
                    continue
                unreplicated.append((partition, appended.end_offset, entry))
        return result

    def _append(self, partition: Partition, written: WritableTxnMarker) -> Appended:
        if min(written.producer_id, written.producer_epoch) < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a marker names a producer id and its epoch")
        marker = EndTransactionMarker(
            ProducerId(written.producer_id),
            written.producer_epoch,
            written.transaction_result,
            written.coordinator_epoch,
        )
        must_be_newer = written.transaction_version >= EPOCH_PER_TRANSACTION_SINCE
        now_ms = self._clock.wall_ms()
        return self._appender.append_marker(partition, marker, now_ms, must_be_newer=must_be_newer)

    def _found(self, topic: str, index: int) -> Partition:
        found = self._partitions.find(topic, index)
        if found is None:
            raise self._partitions.missing_partition_error(topic, NO_TOPIC_ID, index)
        if topic in INTERNAL_TOPICS:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if found.min_isr_error is not None:
            raise found.min_isr_error.again()
        return found
