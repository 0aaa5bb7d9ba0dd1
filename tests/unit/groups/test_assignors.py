"""How partitions are divided: completely, once each, evenly, and with as little change as possible."""

import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from penstock.groups.consumer.assignment import Assignment, size
from penstock.types import TopicId


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def spec(
    counts: Mapping[int, int],
    members: Mapping[str, set[int]],
    before: Mapping[str, Assignment] | None = None,
    instances: Mapping[str, str] | None = None,
) -> GroupSpec:
    return GroupSpec(
        {
            member_id: MemberSpec(
                frozenset(topic_id(number) for number in topics),
                (before or {}).get(member_id, {}),
                (instances or {}).get(member_id),
            )
            for member_id, topics in members.items()
        },
        {topic_id(number): count for number, count in counts.items()},
    )


def check_complete(given: Mapping[str, Assignment], group: GroupSpec) -> None:
    """Each partition that somebody wants is with exactly one who wants it, and nothing else is given."""
    assert given.keys() == group.members.keys()
    places = [
        (topic, partition)
        for member_id, assignment in given.items()
        for topic, partitions in assignment.items()
        for partition in partitions
        if topic in group.members[member_id].topics
    ]
    wanted = frozenset[TopicId]().union(*(member.topics for member in group.members.values()))
    everything = {(topic, index) for topic in wanted for index in range(group.partitions[topic])}
    assert len(places) == len(set(places)) == sum(size(assignment) for assignment in given.values())
    assert set(places) == everything
    assert all(partitions for assignment in given.values() for partitions in assignment.values())


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    return sum(
        len(partitions - after[member_id].get(topic, frozenset()))
        for member_id, assignment in before.items()
        if member_id in after
        for topic, partitions in assignment.items()
    )


COUNTS = st.dictionaries(st.integers(0, 5), st.integers(1, 9), min_size=1, max_size=5)


@st.composite
def histories(draw: st.DrawFn, *, is_mixed: bool) -> tuple[GroupSpec, GroupSpec]:
    """A group and what becomes of it: members come and go, topics grow, subscriptions change."""
    counts = draw(COUNTS)
    topics = st.sets(st.sampled_from(sorted(counts))) if is_mixed else st.just(set(counts))
    names = st.sampled_from([f"m{number}" for number in range(8)])
    first = spec(counts, draw(st.dictionaries(names, topics, min_size=1)))
    grown = {number: count + draw(st.integers(-2, 2)) for number, count in counts.items()}
    second = spec(
        {number: max(count, 1) for number, count in grown.items()},
        draw(st.dictionaries(names, topics, min_size=1)),
    )
    return first, second


def follow(
    name: str, history: tuple[GroupSpec, GroupSpec]
) -> tuple[dict[str, Assignment], GroupSpec, dict[str, Assignment]]:
    first, second = history
    before = ASSIGNORS[name](first)
    check_complete(before, first)
    members = {
        member_id: member._replace(assignment=before.get(member_id, {}))
        for member_id, member in second.members.items()
    }
    group = second._replace(members=members)
    after = ASSIGNORS[name](group)
    check_complete(after, group)
    assert ASSIGNORS[name](group) == after, "the same question has the same answer"
    return before, group, after


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=100)
@given(data=st.data(), is_mixed=st.booleans())
def test_every_wanted_partition_is_given_once(name: str, data: st.DataObject, is_mixed: bool) -> None:
    follow(name, data.draw(histories(is_mixed=is_mixed)))


@settings(max_examples=100)
@given(history=histories(is_mixed=False))
def test_uniform_gives_everybody_as_much_as_everybody_else(history: tuple[GroupSpec, GroupSpec]) -> None:
    _, _, after = follow("uniform", history)
    sizes = [size(assignment) for assignment in after.values()]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=100)
@given(history=histories(is_mixed=True))
def test_uniform_leaves_nothing_that_could_be_moved_for_the_better(
    history: tuple[GroupSpec, GroupSpec],
) -> None:
    _, group, after = follow("uniform", history)
    for assignment in after.values():
        for taker, member in group.members.items():
            if any(topic in member.topics for topic in assignment):
                assert size(assignment) - size(after[taker]) < 2


@pytest.mark.parametrize("members", [{"1": {1, 2}, "2": {1, 2}}, {"1": {1, 2}, "2": {1, 2}, "3": {2}}])
def test_uniform_changes_nothing_without_reason(members: dict[str, set[int]]) -> None:
    before = ASSIGNORS["uniform"](spec({1: 5, 2: 4}, members))
    assert ASSIGNORS["uniform"](spec({1: 5, 2: 4}, members, before)) == before


@settings(max_examples=50)
@given(count=st.integers(1, 40), members=st.integers(1, 12))
def test_uniform_moves_no_more_than_a_newcomer_gets(count: int, members: int) -> None:
    names = {f"m{number}": {1, 2} for number in range(members)}
    before = ASSIGNORS["uniform"](spec({1: count, 2: count}, names))
    after = ASSIGNORS["uniform"](spec({1: count, 2: count}, {**names, "new": {1, 2}}, before))
    assert moved(before, after) == size(after["new"]) == 2 * count // (members + 1)
    del names["m0"]
    if names:
        without = ASSIGNORS["uniform"](spec({1: count, 2: count}, names, before))
        assert moved(before, without) == 0, "who stays keeps what it has"


def test_uniform_spreads_each_topic_over_the_members() -> None:
    given = ASSIGNORS["uniform"](spec({1: 4, 2: 4}, {"1": {1, 2}, "2": {1, 2}}))
    assert [len(given["1"][topic_id(number)]) for number in (1, 2)] == [2, 2]


def test_uniform_where_few_want_much() -> None:
    members = {"both": {1, 2}, "one": {1}, "two": {2}}
    given = ASSIGNORS["uniform"](spec({1: 10, 2: 2}, members))
    assert [size(given[name]) for name in members] == [5, 5, 2]


def test_range_cuts_topics_alike_so_that_they_can_be_joined() -> None:
    given = ASSIGNORS["range"](spec({1: 3, 2: 3}, {"1": {1, 2}, "2": {1, 2}}))
    assert given == {
        "1": {topic_id(1): {0, 1}, topic_id(2): {0, 1}},
        "2": {topic_id(1): {2}, topic_id(2): {2}},
    }


def test_range_puts_static_members_first_by_instance_id() -> None:
    members = {"a": {1}, "y": {1}, "z": {1}}
    given = ASSIGNORS["range"](spec({1: 3}, members, instances={"y": "i2", "z": "i1"}))
    assert [min(given[name][topic_id(1)]) for name in ("z", "y", "a")] == [0, 1, 2]
    again = ASSIGNORS["range"](spec({1: 3}, {"a": {1}, "b": {1}, "z": {1}}, instances={"b": "i2", "z": "i1"}))
    assert again["b"] == given["y"]


def test_range_gives_nothing_to_the_last_of_too_many() -> None:
    given = ASSIGNORS["range"](spec({1: 1}, {"1": {1}, "2": {1}}))
    assert given == {"1": {topic_id(1): {0}}, "2": {}}


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_thousand_members_and_ten_thousand_partitions_do_not_stop_the_loop(
    name: str, is_mixed: bool
) -> None:
    everything = set(range(100))
    half = set(range(60))
    members = {f"m{number}": half if is_mixed and number % 2 else everything for number in range(1000)}
    counts = dict.fromkeys(everything, 100)
    before = ASSIGNORS[name](spec(counts, members))
    group = spec(counts, {**members, "new": everything}, before)
    spent = []
    for _ in range(3):
        began = time.process_time()
        ASSIGNORS[name](group)
        spent.append(time.process_time() - began)
    assert min(spent) < 0.1
