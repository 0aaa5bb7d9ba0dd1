"""Reassignments, leader elections and unregistering of brokers, on a single broker."""

from penstock.protocol.messages.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.elect_leaders import ELECT_LEADERS, ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from penstock.protocol.messages.unregister_broker import UNREGISTER_BROKER, UnregisterBrokerRequest
from tools.differential.scenarios.asking import every_version
from tools.differential.steps import RequestStep, Scenario, Topic

_HERE = "reassigned"
_LED = "elected"
_MISSING = "reassigned-missing"
_PREFERRED, _UNCLEAN, _NO_KIND = 0, 1, 9


def _alter(
    name: str,
    *wanted: tuple[str, int, list[int] | None],
    version: int = 1,
    allows: bool = True,
    timeout_ms: int = 10_000,
) -> RequestStep:
    topics: dict[str, ReassignableTopic] = {}
    for topic, index, replicas in wanted:
        partition = ReassignablePartition(index, replicas)
        topics.setdefault(topic, ReassignableTopic(topic)).partitions.append(partition)
    request = AlterPartitionReassignmentsRequest(timeout_ms, allows, list(topics.values()))
    return RequestStep(name, ALTER_PARTITION_REASSIGNMENTS, version, request)


def _list(name: str, *asked: tuple[str, list[int]]) -> RequestStep:
    topics = [ListPartitionReassignmentsTopics(*each) for each in asked] or None
    return RequestStep(
        name, LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(topics=topics)
    )


def _elect(
    name: str,
    *asked: tuple[str, list[int]],
    kind: int = _PREFERRED,
    version: int = 2,
    timeout_ms: int = 10_000,
) -> RequestStep:
    topics = [TopicPartitions(*each) for each in asked]
    return RequestStep(name, ELECT_LEADERS, version, ElectLeadersRequest(kind, topics, timeout_ms))


SCENARIOS = (
    Scenario(
        "reassignments",
        (
            *(
                _alter(f"v{v} as it is", (_HERE, 0, [1]), version=v)
                for v in every_version(ALTER_PARTITION_REASSIGNMENTS)
            ),
            _alter("unknown broker", (_HERE, 0, [9])),
            _alter("negative broker", (_HERE, 0, [-1])),
            _alter("nobody", (_HERE, 0, [])),
            _alter("twice to one", (_HERE, 0, [1, 1])),
            _alter("another factor", (_HERE, 0, [1, 9]), allows=False),
            _alter("no partition", (_HERE, 7, [1]), (_HERE, -1, [1])),
            _alter("no topic", (_MISSING, 0, [1])),
            _alter("nothing to cancel", (_HERE, 0, None)),
            _alter("nothing to cancel of nothing", (_MISSING, 0, None)),
            _alter("some", (_HERE, 0, [1]), (_HERE, 1, [9]), (_MISSING, 0, [1])),
            _alter("timeout 0", (_HERE, 0, [1]), timeout_ms=0),
            _list("all"),
            _list("named", (_HERE, [0, 1, 7]), (_MISSING, [0])),
        ),
        (Topic(_HERE, 2),),
    ),
    Scenario(
        "elections",
        (
            *(_elect(f"v{v} not needed", (_LED, [0, 1]), version=v) for v in every_version(ELECT_LEADERS)),
            _elect("unclean not needed", (_LED, [0]), kind=_UNCLEAN),
            _elect("no such kind", (_LED, [0]), kind=_NO_KIND),
            _elect("no partition", (_LED, [7, -1])),
            _elect("no topic", (_MISSING, [0])),
            _elect("nothing"),
            _elect("timeout 0", (_LED, [0]), timeout_ms=0),
        ),
        (Topic(_LED, 2),),
    ),
    Scenario(
        "unregistering",
        (RequestStep("unknown broker", UNREGISTER_BROKER, 0, UnregisterBrokerRequest(77)),),
    ),
)
