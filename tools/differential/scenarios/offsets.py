"""ListOffsets, OffsetForLeaderEpoch, InitProducerId, FindCoordinator."""

from penstock.protocol.compression import Codec
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tools.differential.batches import BASE_MS, batch, timed
from tools.differential.scenarios.asking import data_topic, every_version, produce
from tools.differential.steps import RequestStep, Scenario

_TOPIC = "listed"
_APPENDED = "listed-appended"
_SPECIAL = (-1, -2, -3, -4, -5, -6, -7, -100)
_SPECIAL_BELOW_THEIR_VERSION = ((-3, 1), (-3, 6), (-3, 7), (-4, 7), (-4, 8), (-5, 8), (-5, 9), (-6, 10))
_DELTAS = (-5, 0, 1, 10, 15, 21, 25, 30, 35, 41, 45, 50, 51, 1000)
_TIMEOUT_MS = 60_000


def _list(name: str, timestamp: int, *, version: int = 11, topic: str = _TOPIC, **fields: int) -> RequestStep:
    asked = ListOffsetsPartition(fields.get("partition", 0), fields.get("epoch", -1), timestamp)
    request = ListOffsetsRequest(fields.get("replica", -1), fields.get("isolation", 0))
    request.topics = [ListOffsetsTopic(topic, [asked])]
    request.timeout_ms = _TIMEOUT_MS
    return RequestStep(name, LIST_OFFSETS, version, request)


def _list_twice(name: str, *others: ListOffsetsPartition) -> RequestStep:
    partitions = [ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2), *others]
    return RequestStep(
        name, LIST_OFFSETS, 7, ListOffsetsRequest(-1, 0, [ListOffsetsTopic(_TOPIC, partitions)])
    )


def _epoch(name: str, epoch: int, *, version: int = 4, topic: str = "epochs", **fields: int) -> RequestStep:
    asked = OffsetForLeaderPartition(fields.get("partition", 0), fields.get("current", -1), epoch)
    request = OffsetForLeaderEpochRequest(fields.get("replica", -1), [OffsetForLeaderTopic(topic, [asked])])
    return RequestStep(name, OFFSET_FOR_LEADER_EPOCH, version, request)


def _producer(
    name: str,
    version: int = 5,
    transactional_id: str | None = None,
    timeout_ms: int = _TIMEOUT_MS,
    producer: tuple[int, int] = (-1, -1),
) -> RequestStep:
    asked = InitProducerIdRequest(transactional_id, timeout_ms, *producer)
    return RequestStep(name, INIT_PRODUCER_ID, version, asked, eventually=True)


def _coordinator(name: str, version: int, *keys: str, kind: int = 0) -> RequestStep:
    if version < 4:
        asked = FindCoordinatorRequest(keys[0], kind)
    else:
        asked = FindCoordinatorRequest("", kind, list(keys))
    return RequestStep(name, FIND_COORDINATOR, version, asked, eventually=True)


SCENARIOS = (
    Scenario(
        "list-offsets",
        (
            produce("plain batch", _TOPIC, timed(BASE_MS, BASE_MS + 10, BASE_MS + 20)),
            produce(
                "compressed batch", _TOPIC, timed(BASE_MS + 50, BASE_MS + 30, BASE_MS + 40, codec=Codec.GZIP)
            ),
            produce("older batch", _TOPIC, timed(BASE_MS + 25, BASE_MS + 35)),
            produce("a batch as new as the newest", _TOPIC, timed(BASE_MS + 5, BASE_MS + 50)),
            produce("append time", _APPENDED, batch(b"a", b"b")),
            *(_list(f"v{v} latest", -1, version=v) for v in every_version(LIST_OFFSETS)),
            *(_list(f"v{v} by time", BASE_MS + 1, version=v) for v in every_version(LIST_OFFSETS)),
            *(_list(f"v{v} missing", -1, version=v, topic="listed-missing") for v in (1, 4, 6, 11)),
            *(_list(f"{special}", special) for special in _SPECIAL),
            *(_list(f"{special}, empty partition", special, partition=1) for special in _SPECIAL),
            *(_list(f"{special} v{v}", special, version=v) for special, v in _SPECIAL_BELOW_THEIR_VERSION),
            *(_list(f"base {delta:+d} ms", BASE_MS + delta) for delta in _DELTAS),
            _list("time 0", 0),
            _list("far future", 2**62),
            _list("by time, empty partition", BASE_MS, partition=1),
            _list("append time, 0", 0, topic=_APPENDED),
            _list("append time, -3", -3, topic=_APPENDED),
            _list("read committed", -1, isolation=1),
            _list("isolation 2", -1, isolation=2),
            _list("invalid topic", -1, topic="bad name"),
            _list("partition 9", -1, partition=9),
            *(_list(f"leader epoch {epoch}", -1, epoch=epoch) for epoch in (0, 5, -2)),
            *(_list(f"replica {replica}", -1, replica=replica) for replica in (5, -2)),
            _list_twice("twice"),
            _list_twice("twice and a good one", ListOffsetsPartition(1, -1, -2)),
            RequestStep("nothing", LIST_OFFSETS, 7, ListOffsetsRequest(-1)),
        ),
        (data_topic(_TOPIC, 2), data_topic(_APPENDED, message_timestamp_type="LogAppendTime")),
    ),
    Scenario(
        "offset-for-leader-epoch",
        (
            produce("a batch", "epochs", batch(b"a", b"b")),
            *(_epoch(f"v{v}", 0, version=v) for v in every_version(OFFSET_FOR_LEADER_EPOCH)),
            *(_epoch(f"epoch {epoch}", epoch) for epoch in (1, 5, -1)),
            *(_epoch(f"epoch {epoch}, empty", epoch, partition=1) for epoch in (0, 1)),
            *(_epoch(f"current {current}", 0, current=current) for current in (0, 5)),
            _epoch("missing", 0, topic="epochs-missing"),
            _epoch("partition 9", 0, partition=9),
            _epoch("replica 5", 0, replica=5),
            _epoch("replica -2", 0, replica=-2),
        ),
        (data_topic("epochs", 2),),
    ),
    Scenario(
        "init-producer-id",
        (
            *(_producer(f"v{v}", v) for v in every_version(INIT_PRODUCER_ID)),
            _producer("with its former id", producer=(1, 3)),
            _producer("id without an epoch", producer=(1, -1)),
            _producer("epoch without an id", producer=(-1, 2)),
            _producer("last epoch", producer=(1, 32767)),
            _producer("empty transactional id", transactional_id=""),
            _producer("transactional id", transactional_id="tx"),
            _producer("timeout 0", timeout_ms=0),
            _producer("timeout -1", timeout_ms=-1),
        ),
    ),
    Scenario(
        "find-coordinator",
        (
            *(_coordinator(f"v{v} group", v, "group") for v in every_version(FIND_COORDINATOR)),
            *(_coordinator(f"v{v} transaction", v, "tx", kind=1) for v in (1, 3, 6)),
            *(_coordinator(f"v{v} unknown kind", v, "x", kind=9) for v in (1, 3, 6)),
            _coordinator("empty name", 6, ""),
            _coordinator("two", 6, "a", "b"),
            _coordinator("twice", 6, "a", "a"),
            _coordinator("none", 6),
            _coordinator("share group, bad key", 6, "x", kind=2),
        ),
    ),
)
