"""DeleteRecords, and the offsets of the log after it."""

from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tools.differential.batches import batch
from tools.differential.scenarios.asking import data_topic, every_version, fetch, fetch_partition, produce
from tools.differential.steps import RequestStep, Scenario

_TOPIC = "trimmed"
_COMPACTED = "trimmed-compacted"
_BOTH = "trimmed-both"
_TIMEOUT_MS = 10_000
_EARLIEST = -2


def _trim(
    name: str,
    offset: int,
    *,
    topic: str = _TOPIC,
    partition: int = 0,
    version: int = 2,
    timeout_ms: int = _TIMEOUT_MS,
) -> RequestStep:
    asked = DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])
    return RequestStep(name, DELETE_RECORDS, version, DeleteRecordsRequest([asked], timeout_ms))


SCENARIOS = (
    Scenario(
        "delete-records",
        (
            *(produce(f"batch {number}", _TOPIC, batch(b"a", b"b", b"c")) for number in range(3)),
            produce("compacted", _COMPACTED, batch(b"a", b"b")),
            produce("compacted and deleted", _BOTH, batch(b"a", b"b")),
            *(_trim(f"v{v}", 2 + v, version=v) for v in every_version(DELETE_RECORDS)),
            *(
                _trim(f"v{v} missing", 2, version=v, topic="trimmed-missing")
                for v in every_version(DELETE_RECORDS)
            ),
            _trim("less than before", 2),
            _trim("beyond the end", 10),
            _trim("-2", -2),
            _trim("invalid topic", 1, topic="bad name"),
            _trim("partition 9", 1, partition=9),
            _trim("compacted topic", 1, topic=_COMPACTED),
            _trim("compacted and deleted topic", 1, topic=_BOTH),
            _trim("empty partition", -1, partition=1),
            fetch("before the start", _TOPIC, fetch_partition(0, 3)),
            fetch("at the start, inside a batch", _TOPIC, fetch_partition(0, 4)),
            RequestStep(
                "earliest",
                LIST_OFFSETS,
                7,
                ListOffsetsRequest(
                    -1, 0, [ListOffsetsTopic(_TOPIC, [ListOffsetsPartition(0, -1, _EARLIEST)])]
                ),
            ),
            _trim("at the end", 9),
            _trim("everything", -1),
            _trim("everything, no time", -1, timeout_ms=0),
            fetch("nothing left", _TOPIC, fetch_partition(0, 9)),
            produce("afterwards", _TOPIC, batch()),
            produce("refused afterwards", _TOPIC, batch(record_count=5, last_offset_delta=4)),
            RequestStep(
                "twice",
                DELETE_RECORDS,
                2,
                DeleteRecordsRequest(
                    [
                        DeleteRecordsTopic(
                            _TOPIC, [DeleteRecordsPartition(0, 1), DeleteRecordsPartition(0, 2)]
                        )
                    ],
                    _TIMEOUT_MS,
                ),
            ),
            RequestStep("nothing", DELETE_RECORDS, 2, DeleteRecordsRequest([], _TIMEOUT_MS)),
        ),
        (
            data_topic(_TOPIC, 2),
            data_topic(_COMPACTED, cleanup_policy="compact"),
            data_topic(_BOTH, cleanup_policy="compact,delete"),
        ),
    ),
)
