"""Rebalances of two members, and static members.

The second member's JoinGroup gets no response until the first member has rejoined. The scenario expects no
response and closes the connection; the member stays in the group.
"""

from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeleteGroupsRequest
from tools.differential.scenarios.group_asking import (
    NEW_MEMBER_ID,
    commit,
    describe,
    heartbeat,
    join,
    leave,
    subscription,
    sync,
)
from tools.differential.steps import RequestStep, Scenario, Topic

_PAIR = "pair"
_TOPIC = "shared"
_BOTH = {"range": subscription("read", note=b"first"), "roundrobin": subscription("read", note=b"second")}
_ONE = {"roundrobin": subscription("read", note=b"other")}
_CHANGED = {"roundrobin": subscription("read", note=b"changed")}
_STATIC = "static"
_NAME = "instance"


def _sync(name: str, member: str, generation: int, **fields: object) -> RequestStep:
    return sync(name, _PAIR, member, generation, protocol_name="roundrobin", **fields)


def _delete(name: str, group: str) -> RequestStep:
    return RequestStep(name, DELETE_GROUPS, 2, DeleteGroupsRequest([group]))


def _static_join(
    name: str, group: str, version: int, member: str = NEW_MEMBER_ID, **fields: object
) -> RequestStep:
    return join(name, group, member, version=version, group_instance_id=_NAME, **fields)  # type: ignore[arg-type]


def _replaced(version: int) -> tuple[RequestStep, ...]:
    """A static member rejoins a stable group, with the request versions of one client release."""
    group, old, new = f"replaced-{version}", f"old {version}", f"new {version}"
    return (
        _static_join(f"v{version} joins", group, version, saves_as=old),
        sync(f"v{version} syncs", group, old, 1, group_instance_id=_NAME, given={old: b"all"}),
        _static_join(f"v{version} comes back", group, version, saves_as=new),
        heartbeat(f"v{version} heartbeat of the old", group, old, 1, group_instance_id=_NAME),
        heartbeat(f"v{version} heartbeat of the new", group, new, 1, group_instance_id=_NAME),
        sync(f"v{version} sync of the new", group, new, 1, group_instance_id=_NAME),
        describe(f"v{version} in the end", group),
        leave(f"v{version} removed by its name", group, ("", _NAME), version=max(version, 3)),
    )


SCENARIOS = (
    Scenario(
        "rebalance",
        (
            join("the first comes", _PAIR, NEW_MEMBER_ID, _BOTH, saves_as="first"),
            join("and joins", _PAIR, "first", _BOTH),
            sync("and syncs", _PAIR, "first", 1, given={"first": b"all"}),
            join("the second comes", _PAIR, NEW_MEMBER_ID, _ONE, saves_as="second"),
            heartbeat("nothing has changed yet", _PAIR, "first", 1),
            join("and joins, and waits", _PAIR, "second", _ONE, silent=True),
            heartbeat("the first learns of it", _PAIR, "first", 1),
            heartbeat("the second waits", _PAIR, "second", 1),
            commit("the first may still commit", _PAIR, _TOPIC, {0: 1}, member="first", generation=1),
            commit("the second may not", _PAIR, _TOPIC, {0: 2}, member="second", generation=0),
            commit("nor may who is no member", _PAIR, _TOPIC, {0: 2}),
            sync("no sync now", _PAIR, "first", 1, given={"first": b"all"}),
            describe("preparing", _PAIR),
            join("the first comes back", _PAIR, "first", _BOTH),
            describe("completing", _PAIR),
            heartbeat("both are in: first", _PAIR, "first", 2),
            heartbeat("both are in: second", _PAIR, "second", 2),
            commit("not before the sync", _PAIR, _TOPIC, {0: 3}, member="first", generation=2),
            commit("nor of the generation before", _PAIR, _TOPIC, {0: 3}, member="first", generation=1),
            join("the first asks again", _PAIR, "first", _BOTH),
            join("the second asks again", _PAIR, "second", _ONE),
            _sync("the second waits for its share", "second", 2, silent=True),
            sync("the wrong protocol", _PAIR, "first", 2),
            _sync("the first shares", "first", 2, given={"first": b"half", "second": b"other half"}),
            _sync("the second has its share", "second", 2),
            describe("stable", _PAIR),
            commit("the second commits", _PAIR, _TOPIC, {1: 9}, member="second", generation=2),
            commit("a commit of the past", _PAIR, _TOPIC, {1: 1}, member="second", generation=1),
            commit("a commit of the future", _PAIR, _TOPIC, {1: 1}, member="second", generation=3),
            commit("a commit by nobody", _PAIR, _TOPIC, {1: 1}),
            _delete("not while they live", _PAIR),
            join("a follower asks for the same", _PAIR, "second", _ONE),
            join("a follower asks for more", _PAIR, "second", _CHANGED, silent=True),
            heartbeat("the first learns of that", _PAIR, "first", 2),
            leave("the second goes", _PAIR, ("second", None)),
            join("the first is alone again", _PAIR, "first", _BOTH),
            sync("and syncs again", _PAIR, "first", 3, given={"first": b"all"}),
            describe("one left", _PAIR),
            leave("the first goes", _PAIR, ("first", None)),
            describe("nobody", _PAIR),
            commit("a commit from outside", _PAIR, _TOPIC, {0: 8}),
            commit("a commit of the last generation", _PAIR, _TOPIC, {0: 8}, member="first", generation=3),
            _delete("deleted", _PAIR),
            describe("gone", _PAIR),
            _delete("deleted again", _PAIR),
        ),
        (Topic(_TOPIC, 2),),
    ),
    Scenario("static-members-replaced", tuple(ask for v in (5, 6, 8, 9) for ask in _replaced(v))),
    Scenario(
        "static-members",
        (
            _static_join("joins", _STATIC, 9, saves_as="old"),
            sync("syncs", _STATIC, "old", 1, group_instance_id=_NAME, given={"old": b"all"}),
            heartbeat("without its name", _STATIC, "old", 1),
            _static_join("asks again with its id", _STATIC, 9, "old"),
            _static_join("unknown id under a known name", _STATIC, 9, "somebody"),
            heartbeat(
                "heartbeat of somebody under its name", _STATIC, "somebody", 1, group_instance_id=_NAME
            ),
            heartbeat("heartbeat under another name", _STATIC, "old", 1, group_instance_id="another"),
            _static_join("comes back", _STATIC, 9, saves_as="new"),
            _static_join("the old asks to join", _STATIC, 9, "old"),
            join("the old asks to join without its name", _STATIC, "old"),
            sync("sync of the old", _STATIC, "old", 2, group_instance_id=_NAME),
            heartbeat("heartbeat of the old without its name", _STATIC, "old", 2),
            commit(
                "commit of the old",
                _STATIC,
                "shared-static",
                {0: 1},
                member="old",
                generation=2,
                group_instance_id=_NAME,
            ),
            commit(
                "commit of the new",
                _STATIC,
                "shared-static",
                {0: 2},
                member="new",
                generation=2,
                group_instance_id=_NAME,
            ),
            leave("the old leaves", _STATIC, ("old", _NAME)),
            leave("the old leaves, v3", _STATIC, ("old", _NAME), version=3),
            describe("now", _STATIC),
            describe("now, v4", _STATIC, version=4),
            join(
                "back with other metadata",
                _STATIC,
                NEW_MEMBER_ID,
                {"range": subscription("read", note=b"changed")},
                group_instance_id=_NAME,
                saves_as="newest",
            ),
            describe("after that", _STATIC),
            leave("removed by its name", _STATIC, ("", _NAME)),
            leave("removed again", _STATIC, ("", _NAME)),
            describe("nobody", _STATIC),
            _static_join("joins an empty group", _STATIC, 9, saves_as="again"),
        ),
        (Topic("shared-static"),),
    ),
)
