"""WriteTxnMarkers: api key 27, versions 1 to 2, flexible throughout.

A transaction coordinator tells partition leaders the outcome of transactions. Kafka removed version 0.

Versions
    2   transaction version (KIP-1228): from 2 on, a marker has a newer producer epoch than the batches
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int8, Int16, Int32, Int64, String, Struct, versions


class WritableTxnMarkerTopic(Struct):
    name: String = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Struct):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, versions(2)] = 0


class WriteTxnMarkersRequest(Struct):
    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Struct):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Struct):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Struct):
    markers: list[WritableTxnMarkerResult] = []


WRITE_TXN_MARKERS = Api(
    key=27,
    versions=(1, 2),
    flexible=1,
    request=WriteTxnMarkersRequest,
    response=WriteTxnMarkersResponse,
)
