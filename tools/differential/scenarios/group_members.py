"""Members of classic groups: from join to leave in every version, and every rejection."""

from penstock.protocol.messages.heartbeat import HEARTBEAT
from penstock.protocol.messages.join_group import JOIN_GROUP
from penstock.protocol.messages.leave_group import LEAVE_GROUP
from penstock.protocol.messages.sync_group import SYNC_GROUP
from tools.differential.scenarios.asking import every_version
from tools.differential.scenarios.group_asking import (
    NEW_MEMBER_ID,
    commit,
    describe,
    heartbeat,
    join,
    leave,
    newest,
    subscription,
    sync,
)
from tools.differential.steps import RequestStep, Scenario, Topic

_TOPIC = "membership"
_LONE = "lone"
_LONGEST_SESSION_MS = 1_800_000
_SHORTEST_SESSION_MS = 6_000


def _life(version: int) -> tuple[RequestStep, ...]:
    """From the first join to the leave, with the request versions of one client release."""
    group, member = f"life-{version}", f"member {version}"
    at_sync, at_heartbeat = newest(SYNC_GROUP, version), newest(HEARTBEAT, version)
    return (
        join(f"v{version} first join", group, NEW_MEMBER_ID, version=version, saves_as=member),
        join(f"v{version} join", group, member, version=version),
        heartbeat(f"v{version} heartbeat before sync", group, member, 1, version=at_heartbeat),
        describe(f"v{version} before sync", group),
        sync(f"v{version} sync", group, member, 1, version=at_sync, given={member: b"all"}),
        sync(f"v{version} sync again", group, member, 1, version=at_sync),
        heartbeat(f"v{version} heartbeat", group, member, 1, version=at_heartbeat),
        commit(f"v{version} commit", group, _TOPIC, {0: 1}, member=member, generation=1),
        describe(f"v{version} stable", group),
        join(f"v{version} the leader again", group, member, version=version),
        heartbeat(f"v{version} heartbeat of the past", group, member, 1, version=at_heartbeat),
        sync(f"v{version} sync of the past", group, member, 1, version=at_sync, given={member: b"old"}),
        sync(f"v{version} second sync", group, member, 2, version=at_sync, given={member: b"more"}),
        leave(f"v{version} leave", group, (member, None), version=version),
        heartbeat(f"v{version} heartbeat of who left", group, member, 2, version=at_heartbeat),
        leave(f"v{version} leave again", group, (member, None), version=version),
        join(f"v{version} who left joins again", group, member, version=version),
        describe(f"v{version} left", group),
    )


_REFUSED_JOINS = tuple(
    ask
    for v in (0, 3, 4, 5, 6, 7, 9)
    for ask in (
        join(f"v{v} group without a name", "", NEW_MEMBER_ID, version=v),
        join(f"v{v} session too short", "refused", NEW_MEMBER_ID, version=v, session_timeout_ms=5_999),
        join(f"v{v} unknown member, unknown group", "refused", "somebody", version=v),
        join(f"v{v} unknown member", _LONE, "somebody", version=v),
        join(f"v{v} no protocols", "refused", NEW_MEMBER_ID, {}, version=v),
        join(f"v{v} no protocol type", "refused", NEW_MEMBER_ID, version=v, protocol_type=""),
        join(f"v{v} another type", _LONE, NEW_MEMBER_ID, version=v, protocol_type="connect"),
        join(f"v{v} another protocol", _LONE, NEW_MEMBER_ID, {"roundrobin": subscription("read")}, version=v),
    )
)


def _with_member(group: str) -> tuple[RequestStep, ...]:
    """A group with one member, named after the group."""
    member = f"alone in {group}"
    return (
        join("somebody comes", group, NEW_MEMBER_ID, saves_as=member),
        join("and joins", group, member),
        sync("and syncs", group, member, 1, given={member: b"all"}),
    )


SCENARIOS = (
    Scenario(
        "group-life",
        tuple(ask for version in every_version(JOIN_GROUP) for ask in _life(version)),
        (Topic(_TOPIC),),
    ),
    Scenario(
        "join-group",
        (
            *_with_member(_LONE),
            *_REFUSED_JOINS,
            describe("refused groups", "refused", ""),
            join("session too long", "refused", NEW_MEMBER_ID, session_timeout_ms=_LONGEST_SESSION_MS + 1),
            join("session 0", "refused", NEW_MEMBER_ID, session_timeout_ms=0),
            join("session -1", "refused", NEW_MEMBER_ID, session_timeout_ms=-1),
            join("longest session", "long", NEW_MEMBER_ID, session_timeout_ms=_LONGEST_SESSION_MS),
            join(
                "shortest session", "short", NEW_MEMBER_ID, version=3, session_timeout_ms=_SHORTEST_SESSION_MS
            ),
            join("rebalance timeout 0", "hasty", NEW_MEMBER_ID, version=3, rebalance_timeout_ms=0),
            join("rebalance timeout -1", "hastier", NEW_MEMBER_ID, version=3, rebalance_timeout_ms=-1),
            join("protocol without a name", "nameless", NEW_MEMBER_ID, {"": subscription("read")}, version=3),
            join("no metadata", "bare", NEW_MEMBER_ID, {"range": b""}, version=3),
            join("another type, known member", _LONE, "alone in lone", protocol_type="connect"),
            join("another protocol, known member", _LONE, "alone in lone", {"sticky": subscription("read")}),
            describe("its new protocol", _LONE),
            join("odd group name", "odd name é/..", NEW_MEMBER_ID, version=3),
            join("empty instance", "empty-instance", NEW_MEMBER_ID, group_instance_id=""),
            join("instance with spaces", "odd-instance", NEW_MEMBER_ID, group_instance_id="a b"),
            join("reason", "reasoned", NEW_MEMBER_ID, reason="because"),
        ),
    ),
    Scenario(
        "join-group-pending",
        (
            *_with_member("waiting"),
            join(
                "somebody else comes",
                "waiting",
                NEW_MEMBER_ID,
                {"sticky": subscription("read"), "range": subscription()},
                saves_as="pending",
            ),
            describe("one is pending", "waiting"),
            heartbeat("heartbeat of a pending member", "waiting", "pending", 1),
            sync("sync of a pending member", "waiting", "pending", 1),
            leave("a pending member leaves", "waiting", ("pending", None)),
            describe("one was pending", "waiting"),
            join("and cannot come back", "waiting", "pending"),
        ),
    ),
    Scenario(
        "sync-group",
        (
            *_with_member("synced"),
            *(
                ask
                for v in every_version(SYNC_GROUP)
                for ask in (
                    sync(f"v{v} unknown group", "synced-unknown", "somebody", 1, version=v),
                    sync(f"v{v} unknown member", "synced", "somebody", 1, version=v),
                    sync(f"v{v} no member", "synced", "", 1, version=v),
                    sync(f"v{v} wrong generation", "synced", "alone in synced", 9, version=v),
                    sync(f"v{v} group without a name", "", "somebody", 1, version=v),
                )
            ),
            sync("generation -1", "synced", "alone in synced", -1),
            sync("another protocol type", "synced", "alone in synced", 1, protocol_type="connect"),
            sync("another protocol", "synced", "alone in synced", 1, protocol_name="sticky"),
            sync("no protocol type", "synced", "alone in synced", 1, protocol_type=None),
            sync("no protocol", "synced", "alone in synced", 1, protocol_name=None),
            sync("no type and no protocol, v4", "synced", "alone in synced", 1, version=4),
            sync("unknown instance", "synced", "alone in synced", 1, group_instance_id="an instance"),
            sync("for somebody else", "synced", "alone in synced", 1, given={"somebody": b"x"}),
            join("the leader again", "synced", "alone in synced"),
            sync("nothing for itself", "synced", "alone in synced", 2, given={"somebody": b"x"}),
            describe("what it has", "synced"),
        ),
    ),
    Scenario(
        "heartbeat",
        (
            *_with_member("beating"),
            *(
                ask
                for v in every_version(HEARTBEAT)
                for ask in (
                    heartbeat(f"v{v} unknown group", "beating-unknown", "somebody", 1, version=v),
                    heartbeat(f"v{v} unknown member", "beating", "somebody", 1, version=v),
                    heartbeat(f"v{v} no member", "beating", "", 1, version=v),
                    heartbeat(f"v{v} wrong generation", "beating", "alone in beating", 0, version=v),
                    heartbeat(f"v{v} group without a name", "", "somebody", 1, version=v),
                )
            ),
            heartbeat("generation -1", "beating", "alone in beating", -1),
            heartbeat("unknown instance", "beating", "alone in beating", 1, group_instance_id="an instance"),
        ),
    ),
    Scenario(
        "leave-group",
        (
            *_with_member("leaving"),
            *(
                ask
                for v in every_version(LEAVE_GROUP)
                for ask in (
                    leave(f"v{v} unknown group", "leaving-unknown", ("somebody", None), version=v),
                    leave(f"v{v} unknown member", "leaving", ("somebody", None), version=v),
                    leave(f"v{v} no member", "leaving", ("", None), version=v),
                    leave(f"v{v} group without a name", "", ("somebody", None), version=v),
                )
            ),
            leave("nobody", "leaving"),
            leave("nobody, unknown group", "leaving-unknown"),
            leave("unknown instance", "leaving", ("", "an instance")),
            leave("unknown instance of a member", "leaving", ("alone in leaving", "an instance")),
            leave("some of them", "leaving", ("somebody", None), ("alone in leaving", None), ("", "x")),
            leave("the same twice", "leaving", ("alone in leaving", None), ("alone in leaving", None)),
            describe("nobody is left", "leaving"),
        ),
    ),
)
