"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): members, their epochs, their offsets."""

from typing import Any

from penstock.protocol.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
)
from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeleteGroupsRequest
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from penstock.types import TopicId
from tools.differential.replies import UNKNOWN_TOPIC_ID
from tools.differential.scenarios.group_asking import (
    NEW_MEMBER_ID,
    commit,
    committed,
    describe,
    heartbeat,
    join,
    leave,
    subscription,
    sync,
)
from tools.differential.steps import RequestStep, Scenario, ScenarioState, Topic

_TOPIC = "balanced"
_OTHER = "balanced-too"
_GROUP = "balancing"
_REBALANCE_MS = 600_000
_UNKNOWN = "unknown topic"

Owned = dict[str, list[int]]


def _beat(name: str, group: str, member: str, epoch: int, **fields: Any) -> RequestStep:
    """`owns`: the partitions that the member reports as its own, by topic."""
    version = fields.pop("version", 1)
    owns: Owned | None = fields.pop("owns", None)
    saves_as = fields.pop("saves_as", None)

    def message(memory: ScenarioState) -> ConsumerGroupHeartbeatRequest:
        ids = {**memory.topic_ids, _UNKNOWN: TopicId(UNKNOWN_TOPIC_ID)}
        request = ConsumerGroupHeartbeatRequest(group, memory.actual_name(member), epoch)
        if owns is not None:
            request.topic_partitions = [
                HeartbeatTopicPartitions(ids[topic], list(partitions)) for topic, partitions in owns.items()
            ]
        for field, value in fields.items():
            setattr(request, field, value)
        return request

    saves = None if saves_as is None else "member_id"
    return RequestStep(name, CONSUMER_GROUP_HEARTBEAT, version, message, saves=saves, saves_as=saves_as)


def _enter(name: str, group: str, member: str, *topics: str, **fields: Any) -> RequestStep:
    """The first heartbeat of a member, which carries every field."""
    said: dict[str, Any] = {
        "owns": {},
        "rebalance_timeout_ms": _REBALANCE_MS,
        "subscribed_topic_names": list(topics or (_TOPIC,)),
    }
    return _beat(name, group, member, 0, **{**said, **fields})


def _described(name: str, *groups: str, version: int = 1, operations: bool = False) -> RequestStep:
    request = ConsumerGroupDescribeRequest(list(groups), operations)
    return RequestStep(name, CONSUMER_GROUP_DESCRIBE, version, request)


def _listed(name: str, *types: str) -> RequestStep:
    return RequestStep(name, LIST_GROUPS, 5, ListGroupsRequest([], list(types)))


def _deleted(name: str, group: str) -> RequestStep:
    return RequestStep(name, DELETE_GROUPS, 2, DeleteGroupsRequest([group]))


_INVALID = "invalid"

SCENARIOS = (
    Scenario(
        "consumer-group-invalid",
        (
            *(
                ask
                for v in (0, 1)
                for ask in (
                    _enter(f"v{v} group without a name", "", "a", version=v),
                    _enter(f"v{v} no partitions said", _INVALID, "a", version=v, owns=None),
                    _enter(f"v{v} owns something", _INVALID, "a", version=v, owns={_TOPIC: [0]}),
                    _enter(f"v{v} no rebalance timeout", _INVALID, "a", version=v, rebalance_timeout_ms=-1),
                    _enter(f"v{v} no topics", _INVALID, "a", version=v, subscribed_topic_names=None),
                    _enter(f"v{v} empty instance", _INVALID, "a", version=v, instance_id=""),
                    _enter(f"v{v} empty rack", _INVALID, "a", version=v, rack_id=""),
                    _enter(f"v{v} unknown assignor", _INVALID, "a", version=v, server_assignor="nonsense"),
                    _enter(f"v{v} empty assignor", _INVALID, "a", version=v, server_assignor=""),
                    _beat(f"v{v} epoch -3", _INVALID, "a", -3, version=v),
                    _beat(f"v{v} epoch -2 without an instance", _INVALID, "a", -2, version=v),
                    _beat(f"v{v} unknown group", _INVALID, "a", 1, version=v),
                    _beat(f"v{v} leaves an unknown group", _INVALID, "a", -1, version=v),
                    _beat(f"v{v} no member", _INVALID, "", 1, version=v),
                )
            ),
            _enter("no member id", _INVALID, ""),
            _enter(
                "invalid expression", _INVALID, "a", subscribed_topic_names=None, subscribed_topic_regex="("
            ),
            _enter("rebalance timeout 0", _INVALID, "a", rebalance_timeout_ms=0),
            _enter("rebalance timeout -2", _INVALID, "a", rebalance_timeout_ms=-2),
            _enter("empty rack of nobody", _INVALID, "b", rack_id=""),
            _listed("is there a group?", "consumer"),
        ),
        (Topic(_TOPIC, 3),),
    ),
    Scenario(
        "consumer-group",
        (
            _enter("the first enters", _GROUP, "first", "moving"),
            _described("alone", _GROUP),
            _beat("nothing new", _GROUP, "first", 1, owns={"moving": [0, 1, 2, 3]}),
            _beat("the same again", _GROUP, "first", 1),
            _beat("an epoch of the future", _GROUP, "first", 5),
            _beat("a stranger", _GROUP, "stranger", 1),
            _beat("a stranger leaves", _GROUP, "stranger", -1),
            commit("it commits", _GROUP, "moving", {0: 3, 1: 4}, member="first", generation=1),
            commit("a commit of the future", _GROUP, "moving", {0: 9}, member="first", generation=2),
            commit("a commit of the past", _GROUP, "moving", {0: 9}, member="first", generation=0),
            commit("a commit by a stranger", _GROUP, "moving", {0: 9}, member="stranger", generation=1),
            commit("a commit by nobody", _GROUP, "moving", {0: 9}),
            commit("a commit, v8", _GROUP, "moving", {0: 9}, member="first", generation=1, version=8),
            committed("its places", _GROUP, {"moving": [0, 1, 2]}, member="first", epoch=1),
            committed("its places of another epoch", _GROUP, {"moving": [0]}, member="first", epoch=2),
            committed("its places by a stranger", _GROUP, {"moving": [0]}, member="stranger", epoch=1),
            committed("its places by nobody", _GROUP, {"moving": [0]}),
            committed("its places, v8", _GROUP, {"moving": [0]}, version=8),
            _enter("the second enters", _GROUP, "second", "moving"),
            _described("reconciling", _GROUP),
            _beat("the first must give", _GROUP, "first", 1),
            _described("giving", _GROUP),
            _beat("the first has not given", _GROUP, "first", 1, owns={"moving": [0, 1, 2, 3]}),
            _beat("the first has given", _GROUP, "first", 1, owns={"moving": [0, 1]}),
            _beat("the second takes", _GROUP, "second", 2, owns={}),
            _beat("the second has taken", _GROUP, "second", 2, owns={"moving": [2, 3]}),
            _described("stable", _GROUP),
            _described("stable, v0", _GROUP, version=0),
            _described("with operations", _GROUP, operations=True),
            describe("asked as a classic group", _GROUP),
            describe("asked as a classic group, v5", _GROUP, version=5),
            _listed("listed", "consumer"),
            _beat("other topics", _GROUP, "second", 2, subscribed_topic_names=["moving", "moving-too"]),
            _described("after other topics", _GROUP),
            _beat("another assignor", _GROUP, "second", 3, server_assignor="range"),
            _beat("an unknown topic", _GROUP, "second", 4, subscribed_topic_names=["moving-missing"]),
            _deleted("not while they live", _GROUP),
            heartbeat("a classic heartbeat", _GROUP, "first", 2),
            sync("a classic sync", _GROUP, "first", 2),
            _beat("the second leaves", _GROUP, "second", -1),
            _beat("the second leaves again", _GROUP, "second", -1),
            _enter("the first comes again", _GROUP, "first", "moving"),
            leave("a classic leave", _GROUP, ("first", None)),
            _beat("the first leaves", _GROUP, "first", -1),
            _described("nobody", _GROUP),
            commit("from outside", _GROUP, "moving", {0: 5}),
            _deleted("deleted", _GROUP),
            _described("gone", _GROUP),
        ),
        (Topic("moving", 4), Topic("moving-too", 2)),
    ),
    Scenario(
        "consumer-group-static",
        (
            _enter("enters", "named", "first", _OTHER, instance_id="instance"),
            _beat("under no name", "named", "first", 1),
            _enter("another of that name", "named", "second", _OTHER, instance_id="instance"),
            _beat("under another name", "named", "first", 1, instance_id="another"),
            _beat("somebody under its name", "named", "second", 1, instance_id="instance"),
            _beat("goes for a while", "named", "first", -2, instance_id="instance"),
            _described("while it is away", "named"),
            _enter("comes back as another", "named", "second", _OTHER, instance_id="instance"),
            _beat("the old one", "named", "first", 1, instance_id="instance"),
            _described("now", "named"),
            commit("the old one commits", "named", _OTHER, {0: 1}, member="first", generation=1),
            commit("the new one commits", "named", _OTHER, {0: 2}, member="second", generation=1),
            _beat("leaves for good", "named", "second", -1, instance_id="instance"),
            _described("nobody", "named"),
        ),
        (Topic(_OTHER, 2),),
    ),
    Scenario(
        "consumer-group-patterns",
        (
            _enter(
                "enters",
                "patterned",
                "first",
                subscribed_topic_names=None,
                subscribed_topic_regex="pattern-.*",
            ),
            _enter(
                "enters with a name too",
                "patterned-too",
                "second",
                "pattern-b",
                subscribed_topic_regex="pattern-.*",
            ),
            _beat("an invalid pattern", "patterned", "first", 1, subscribed_topic_regex="["),
        ),
        (Topic("pattern-a", 2), Topic("pattern-b"), Topic("unpattern-c")),
    ),
    Scenario(
        "consumer-group-first-version",
        (
            _enter("is given its id", "older", "", "given", version=0, saves_as="given"),
            _beat("lives under it", "older", "given", 1, version=0, owns={"given": [0]}),
            _beat("leaves", "older", "given", -1, version=0),
        ),
        (Topic("given"),),
    ),
    Scenario(
        "consumer-group-kinds",
        (
            join(
                "a classic member",
                "classic",
                NEW_MEMBER_ID,
                {"range": subscription("kinds")},
                saves_as="member",
            ),
            join("joins", "classic", "member", {"range": subscription("kinds")}),
            sync("syncs", "classic", "member", 1, given={"member": b"\0\0\0\0\0\0\0\0\0\0"}),
            _described("described as the new kind", "classic"),
            _beat("a heartbeat of the new kind", "classic", "member", 1),
            _beat("a leave of the new kind", "classic", "member", -1),
            join("not a consumer", "connectors", NEW_MEMBER_ID, version=3, protocol_type="connect"),
            _enter("enters a group of another type", "connectors", "other", "kinds"),
            _described("unknown", "kinds-unknown"),
            _described("group without a name", ""),
            _described("the same twice", "kinds-unknown", "kinds-unknown"),
            _described("none"),
            commit("only offsets", "kinds-simple", "kinds", {0: 1}),
            _described("only offsets, described", "kinds-simple"),
            _enter("enters a group of offsets", "kinds-simple", "taker", "kinds"),
            committed("which keeps them", "kinds-simple", {"kinds": [0]}, member="taker", epoch=1),
        ),
        (Topic("kinds"),),
    ),
)
