"""ListGroups, DescribeGroups and DeleteGroups."""

from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeleteGroupsRequest
from penstock.protocol.messages.describe_groups import DESCRIBE_GROUPS
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from tools.differential.scenarios.asking import every_version
from tools.differential.scenarios.group_asking import (
    NEW_MEMBER_ID,
    commit,
    committed,
    describe,
    join,
    leave,
    sync,
)
from tools.differential.steps import RequestStep, Scenario, Topic

_TOPIC = "administered"


def _list(
    name: str, version: int = 5, states: tuple[str, ...] = (), types: tuple[str, ...] = ()
) -> RequestStep:
    return RequestStep(name, LIST_GROUPS, version, ListGroupsRequest(list(states), list(types)))


def _delete(name: str, *groups: str, version: int = 2) -> RequestStep:
    return RequestStep(name, DELETE_GROUPS, version, DeleteGroupsRequest(list(groups)))


SCENARIOS = (
    # Before other groups are made: what is listed is all there is.
    Scenario(
        "list-groups",
        (
            *(_list(f"v{v} nothing", v) for v in every_version(LIST_GROUPS)),
            commit("only offsets", "listed-simple", _TOPIC, {0: 1}),
            join("a member", "listed-stable", NEW_MEMBER_ID, saves_as="member"),
            join("joins", "listed-stable", "member"),
            _list("before its sync"),
            sync("syncs", "listed-stable", "member", 1, given={"member": b"x"}),
            join(
                "another",
                "listed-empty",
                NEW_MEMBER_ID,
                version=3,
                saves_as="another",
                protocol_type="connect",
            ),
            leave("and it leaves", "listed-empty", ("another", None)),
            *(_list(f"v{v}", v) for v in every_version(LIST_GROUPS)),
            *(
                _list(f"states {' '.join(states)}", states=states)
                for states in (
                    ("Stable",),
                    ("stable",),
                    ("Empty", "STABLE"),
                    ("Dead",),
                    ("PreparingRebalance",),
                    ("Assigning",),
                    ("nonsense",),
                    ("",),
                )
            ),
            _list("states v4", 4, ("Empty",)),
            *(
                _list(f"types {' '.join(types)}", types=types)
                for types in (
                    ("classic",),
                    ("Classic",),
                    ("consumer",),
                    ("share", "classic"),
                    ("nonsense",),
                    ("",),
                )
            ),
            _list("both", states=("Empty",), types=("classic",)),
        ),
        (Topic(_TOPIC),),
    ),
    Scenario(
        "describe-groups",
        (
            commit("only offsets", "described-simple", "described-topic", {0: 1}),
            join("a member", "described", NEW_MEMBER_ID, saves_as="member"),
            join("joins", "described", "member"),
            sync("syncs", "described", "member", 1, given={"member": b"all"}),
            *(
                ask
                for v in every_version(DESCRIBE_GROUPS)
                for ask in (
                    describe(f"v{v}", "described", version=v),
                    describe(f"v{v} only offsets", "described-simple", version=v),
                    describe(f"v{v} unknown", "described-unknown", version=v),
                    describe(f"v{v} group without a name", "", version=v),
                )
            ),
            *(
                describe(f"v{v} operations of {group}", group, version=v, operations=True)
                for v in (3, 5, 6)
                for group in ("described", "described-unknown")
            ),
            describe("several", "described", "described-unknown", "described-simple"),
            describe("the same twice", "described", "described"),
            describe("none"),
        ),
        (Topic("described-topic"),),
    ),
    Scenario(
        "delete-groups",
        (
            *(
                commit(f"placed {v}", f"doomed-{v}", "doomed-topic", {0: 1})
                for v in every_version(DELETE_GROUPS)
            ),
            *(_delete(f"v{v}", f"doomed-{v}", version=v) for v in every_version(DELETE_GROUPS)),
            *(_delete(f"v{v} unknown", f"doomed-{v}", "", version=v) for v in every_version(DELETE_GROUPS)),
            committed("no place is left", "doomed-0", {"doomed-topic": [0]}),
            describe("nor a group", "doomed-0"),
            commit("one more", "doomed-twice", "doomed-topic", {0: 1}),
            _delete("the same twice", "doomed-twice", "doomed-twice", "doomed-0"),
            _delete("none"),
            join("a member", "doomed-alive", NEW_MEMBER_ID, version=3, saves_as="member"),
            _delete("while it lives", "doomed-alive"),
            leave("it leaves", "doomed-alive", ("member", None)),
            _delete("when it has left", "doomed-alive"),
        ),
        (Topic("doomed-topic"),),
    ),
)
