"""OffsetCommit, OffsetFetch and OffsetDelete of groups that have no members, and of some that have."""

from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from penstock.types import TopicId
from tools.differential.replies import UNKNOWN_TOPIC_ID
from tools.differential.scenarios.asking import every_version
from tools.differential.scenarios.group_asking import (
    NEW_MEMBER_ID,
    commit,
    committed,
    describe,
    join,
    leave,
    subscription,
    sync,
)
from tools.differential.steps import RequestStep, Scenario, Step, Topic

_TOPIC = "placed"
_OTHER = "placed-too"
_GROUP = "places"
_TOO_LONG = "n" * 4097


def _delete(name: str, group: str, topics: dict[str, list[int]]) -> RequestStep:
    asked = [
        OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(index) for index in partitions])
        for topic, partitions in topics.items()
    ]
    return RequestStep(name, OFFSET_DELETE, 0, OffsetDeleteRequest(group, asked))


def _commit_to(name: str, *topics: OffsetCommitRequestTopic, version: int) -> RequestStep:
    return RequestStep(name, OFFSET_COMMIT, version, OffsetCommitRequest(_GROUP, topics=list(topics)))


def _fetch_groups(name: str, *groups: OffsetFetchRequestGroup, version: int = 8) -> RequestStep:
    return RequestStep(name, OFFSET_FETCH, version, OffsetFetchRequest(groups=list(groups)))


def _of_group(group: str, *topics: OffsetFetchRequestTopic) -> OffsetFetchRequestGroup:
    return OffsetFetchRequestGroup(group, topics=list(topics) or None)


_AT_5 = [OffsetCommitRequestPartition(0, 5)]
_UNKNOWN = TopicId(UNKNOWN_TOPIC_ID)
_BY_NAME = OffsetFetchRequestTopic(_TOPIC, partition_indexes=[0, 1])


def _deletes_of_a_member_that_declares(version: int) -> tuple[Step, ...]:
    """A live member that writes the fields of subscription version 0 under another version number."""
    group, member = f"forgetful-{version}", f"declares {version}"
    protocols = {"range": version.to_bytes(2, signed=True) + subscription("forgotten")[2:]}
    return (
        join(f"{member}", group, NEW_MEMBER_ID, protocols, saves_as=member),
        join(f"{member}, joins", group, member, protocols),
        sync(f"{member}, syncs", group, member, 1),
        commit(f"{member}, commits", group, "forgotten", {0: 1}, member=member, generation=1),
        commit(f"{member}, commits another", group, "unread", {0: 1}, member=member, generation=1),
        _delete(f"{member}, deletes", group, {"forgotten": [0], "unread": [0]}),
    )


SCENARIOS = (
    Scenario(
        "offset-commit",
        (
            *(
                commit(f"v{v}", _GROUP, _TOPIC, {0: 10 + v, 1: 20 + v}, version=v)
                for v in every_version(OFFSET_COMMIT)
            ),
            *(
                commit(f"v{v} missing topic", _GROUP, "placed-missing", {0: 1}, version=v)
                for v in every_version(OFFSET_COMMIT)
            ),
            *(
                commit(f"v{v} partition 9", _GROUP, _TOPIC, {9: 1, 0: 2, -1: 3}, version=v)
                for v in (2, 9, 10)
            ),
            *(
                commit(f"v{v} unknown generation", "places-unknown", _TOPIC, {0: 1}, version=v, generation=3)
                for v in every_version(OFFSET_COMMIT)
            ),
            commit("unknown member", _GROUP, _TOPIC, {0: 1}, member="somebody"),
            commit("unknown member v8", _GROUP, _TOPIC, {0: 1}, member="somebody", version=8),
            commit("unknown member of generation 0", _GROUP, _TOPIC, {0: 1}, member="somebody", generation=0),
            commit("generation without a member", _GROUP, _TOPIC, {0: 1}, generation=0),
            commit("instance without a member", _GROUP, _TOPIC, {0: 1}, group_instance_id="an instance"),
            commit("member of a new group", "places-new", _TOPIC, {0: 1}, member="somebody"),
            commit("group without a name", "", _TOPIC, {0: 1}),
            commit("group without a name, generation", "", _TOPIC, {0: 1}, generation=1, member="x"),
            commit("note too long", _GROUP, _TOPIC, {0: 77}, note=_TOO_LONG),
            commit("longest note", _GROUP, _TOPIC, {1: 30}, note=_TOO_LONG[1:]),
            commit("no note", _GROUP, _TOPIC, {0: 31}, note=None),
            committed("after no note", _GROUP, {_TOPIC: [0]}),
            commit("empty note", _GROUP, _TOPIC, {0: 32}, note=""),
            commit("leader epoch", _GROUP, _TOPIC, {0: 33}, epoch=7),
            commit("leader epoch -2", _GROUP, _TOPIC, {1: 33}, epoch=-2),
            committed("after leader epochs", _GROUP, {_TOPIC: [0, 1]}),
            commit("negative offset", _GROUP, _TOPIC, {0: -5}),
            committed("after a negative offset", _GROUP, {_TOPIC: [0]}),
            commit("offset -1", _GROUP, _TOPIC, {0: -1}),
            committed("after offset -1", _GROUP, {_TOPIC: [0]}),
            commit("beyond the end", _GROUP, _TOPIC, {0: 2**62}),
            commit("retention time", _GROUP, _TOPIC, {0: 34}, version=4, retention_time_ms=1_000_000),
            commit("retention time 0", _GROUP, _TOPIC, {1: 34}, version=2, retention_time_ms=0),
            commit("retention time -5", _GROUP, _TOPIC, {1: 35}, version=2, retention_time_ms=-5),
            _commit_to("nothing", version=9),
            _commit_to("no partitions", OffsetCommitRequestTopic(_TOPIC), version=9),
            _commit_to("no partitions of nothing", OffsetCommitRequestTopic("placed-missing"), version=9),
            _commit_to("invalid name", OffsetCommitRequestTopic("bad name", partitions=_AT_5), version=9),
            _commit_to("name of nothing", OffsetCommitRequestTopic("", partitions=_AT_5), version=9),
            _commit_to(
                "unknown id", OffsetCommitRequestTopic(topic_id=_UNKNOWN, partitions=_AT_5), version=10
            ),
            _commit_to("no id", OffsetCommitRequestTopic(partitions=_AT_5), version=10),
            _commit_to(
                "partition twice",
                OffsetCommitRequestTopic(
                    _TOPIC,
                    partitions=[OffsetCommitRequestPartition(2, 5), OffsetCommitRequestPartition(2, 6)],
                ),
                version=9,
            ),
            committed("after partition twice", _GROUP, {_TOPIC: [2]}),
            _commit_to(
                "topic twice",
                OffsetCommitRequestTopic(_TOPIC, partitions=[OffsetCommitRequestPartition(2, 7)]),
                OffsetCommitRequestTopic(_TOPIC, partitions=[OffsetCommitRequestPartition(1, 8)]),
                version=9,
            ),
            committed("in the end", _GROUP, None),
            describe("what it is", _GROUP, "places-unknown", "places-new"),
        ),
        (Topic(_TOPIC, 3),),
    ),
    Scenario(
        "offset-fetch",
        (
            commit("placed", "fetched", _OTHER, {0: 4, 1: 5}, epoch=2),
            *(
                committed(f"v{v}", "fetched", {_OTHER: [0, 2]}, version=v)
                for v in every_version(OFFSET_FETCH)
            ),
            *(
                committed(f"v{v} all", "fetched", None, version=v)
                for v in every_version(OFFSET_FETCH)
                if v > 1
            ),
            *(
                committed(f"v{v} unknown group", "fetched-unknown", {_OTHER: [0]}, version=v)
                for v in every_version(OFFSET_FETCH)
            ),
            *(
                committed(f"v{v} all of an unknown group", "fetched-unknown", None, version=v)
                for v in (2, 7, 8, 10)
            ),
            *(
                committed(f"v{v} missing topic", "fetched", {"placed-missing": [0]}, version=v)
                for v in every_version(OFFSET_FETCH)
            ),
            *(committed(f"v{v} partition 9", "fetched", {_OTHER: [9, -1]}, version=v) for v in (1, 9, 10)),
            *(committed(f"v{v} no topics", "fetched", {}, version=v) for v in (1, 2, 7, 8, 10)),
            *(committed(f"v{v} no partitions", "fetched", {_OTHER: []}, version=v) for v in (1, 7, 9)),
            *(committed(f"v{v} group without a name", "", {_OTHER: [0]}, version=v) for v in (1, 7, 9)),
            *(
                committed(f"v{v} stable", "fetched", {_OTHER: [0]}, version=v, require_stable=True)
                for v in (7, 9)
            ),
            committed("invalid topic", "fetched", {"bad name": [0]}),
            committed("partition twice", "fetched", {_OTHER: [0, 0]}),
            committed("by an unknown member", "fetched", {_OTHER: [0]}, member="somebody", epoch=1),
            committed("by nobody with an epoch", "fetched", {_OTHER: [0]}, epoch=3),
            committed("by a member without a name", "fetched", {_OTHER: [0]}, member="", epoch=0),
            _fetch_groups("two groups", _of_group("fetched"), _of_group("fetched-unknown", _BY_NAME)),
            _fetch_groups("the same group twice", _of_group("fetched"), _of_group("fetched")),
            _fetch_groups("no groups"),
            _fetch_groups(
                "unknown id",
                _of_group("fetched", OffsetFetchRequestTopic(topic_id=_UNKNOWN, partition_indexes=[0])),
                version=10,
            ),
            _fetch_groups(
                "no id", _of_group("fetched", OffsetFetchRequestTopic(partition_indexes=[0])), version=10
            ),
        ),
        (Topic(_OTHER, 3),),
    ),
    Scenario(
        "offset-delete",
        (
            commit("placed", "forgetful", "forgotten", {0: 4, 1: 5}),
            _delete("unknown group", "forgetful-unknown", {"forgotten": [0]}),
            _delete("group without a name", "", {"forgotten": [0]}),
            _delete("missing topic", "forgetful", {"forgotten-missing": [0]}),
            _delete("invalid topic", "forgetful", {"bad name": [0]}),
            _delete("partition 9", "forgetful", {"forgotten": [9]}),
            _delete("without an offset", "forgetful", {"forgotten": [2]}),
            _delete("nothing", "forgetful", {}),
            _delete("one", "forgetful", {"forgotten": [1]}),
            committed("one is gone", "forgetful", {"forgotten": [0, 1]}),
            _delete("several, twice", "forgetful", {"forgotten": [0, 0, 1, 7], "forgotten-missing": [1]}),
            committed("all are gone", "forgetful", {"forgotten": [0, 1]}),
            describe("the group", "forgetful"),
            join(
                "a member",
                "forgetful-alive",
                NEW_MEMBER_ID,
                {"range": subscription("forgotten")},
                saves_as="member",
            ),
            join("joins", "forgetful-alive", "member", {"range": subscription("forgotten")}),
            sync("and syncs", "forgetful-alive", "member", 1, given={"member": b"x"}),
            commit("by a member", "forgetful-alive", "forgotten", {0: 1}, member="member", generation=1),
            commit("of another topic", "forgetful-alive", "unread", {0: 1}, member="member", generation=1),
            _delete("of a topic that is read", "forgetful-alive", {"forgotten": [0, 1], "unread": [0]}),
            committed("only the other is gone", "forgetful-alive", None),
            leave("leaves", "forgetful-alive", ("member", None)),
            _delete("of an empty group", "forgetful-alive", {"forgotten": [0]}),
            join(
                "not a consumer", "forgetful-other", NEW_MEMBER_ID, saves_as="worker", protocol_type="connect"
            ),
            join("not a consumer joins", "forgetful-other", "worker", protocol_type="connect"),
            _delete("of a group that is no consumer", "forgetful-other", {"forgotten": [0]}),
            join("unreadable", "forgetful-odd", NEW_MEMBER_ID, {"range": b"?"}, saves_as="odd"),
            join("unreadable joins", "forgetful-odd", "odd", {"range": b"?"}),
            sync("unreadable syncs", "forgetful-odd", "odd", 1),
            commit("unreadable commits", "forgetful-odd", "forgotten", {0: 1}, member="odd", generation=1),
            _delete("of a group whose metadata cannot be read", "forgetful-odd", {"forgotten": [0]}),
            *(step for version in (1, 9, -1) for step in _deletes_of_a_member_that_declares(version)),
        ),
        (Topic("forgotten", 3), Topic("unread")),
    ),
)
