"""Placement: balanced, spread over racks, and the same every time."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.placement import place_replicas
from penstock.metadata.cluster_image import BrokerRegistration


def brokers(*racks: str | None) -> list[BrokerRegistration]:
    return [
        BrokerRegistration(id=10 + number, rack=rack, endpoints={}, revision=1)
        for number, rack in enumerate(racks)
    ]


def spread(counts: Counter[int], all_brokers: list[BrokerRegistration]) -> int:
    numbers = [counts[broker.id] for broker in all_brokers]
    return max(numbers) - min(numbers)


EQUAL_RACKS = st.builds(
    lambda racks, size: brokers(*(f"r{number % racks}" for number in range(racks * size))),
    st.integers(1, 4),
    st.integers(1, 4),
)
NO_RACKS = st.builds(lambda count: brokers(*[None] * count), st.integers(1, 12))
ANY_RACKS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9).map(lambda r: brokers(*r))


@st.composite
def placements(
    draw: st.DrawFn, of: st.SearchStrategy[list[BrokerRegistration]]
) -> tuple[list[BrokerRegistration], int, int, int]:
    chosen = draw(of)
    return chosen, draw(st.integers(1, len(chosen))), draw(st.integers(1, 40)), draw(st.integers(0, 20))


@settings(max_examples=400)
@given(placements(NO_RACKS | EQUAL_RACKS))
def test_leaders_and_replicas_differ_by_at_most_one(
    case: tuple[list[BrokerRegistration], int, int, int],
) -> None:
    chosen, factor, count, start = case
    placed = place_replicas(chosen, count=count, replication_factor=factor, start=start)
    assert len(placed) == count
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), chosen) <= 1
    assert spread(Counter(node for replicas in placed for node in replicas), chosen) <= 1


@settings(max_examples=200)
@given(placements(ANY_RACKS))
def test_replicas_stand_in_as_many_racks_as_can_be(
    case: tuple[list[BrokerRegistration], int, int, int],
) -> None:
    chosen, factor, count, start = case
    rack_of = {broker.id: broker.rack for broker in chosen}
    placed = place_replicas(chosen, count=count, replication_factor=factor, start=start)
    for replicas in placed:
        assert len({rack_of[node] for node in replicas}) == min(factor, len(set(rack_of.values())))
    assert spread(Counter(replicas[0] for replicas in placed), chosen) <= 1


@given(placements(NO_RACKS | EQUAL_RACKS), st.integers(1, 39))
def test_growing_in_two_steps_places_as_one_step_does(
    case: tuple[list[BrokerRegistration], int, int, int], cut: int
) -> None:
    chosen, factor, count, start = case
    cut = min(cut, count)
    first = place_replicas(chosen, count=cut, replication_factor=factor, start=start)
    whole = place_replicas(chosen, count=count, replication_factor=factor, start=start)
    assert whole[:cut] == first
    if cut < count:
        added = place_replicas(
            chosen, count=count - cut, replication_factor=factor, existing=first, start=start
        )
        assert first + added == whole


def test_the_order_of_the_brokers_does_not_matter() -> None:
    chosen = brokers("a", "b", "a", "b", "c")
    one = place_replicas(chosen, count=20, replication_factor=3, start=4)
    assert place_replicas(reversed(chosen), count=20, replication_factor=3, start=4) == one


def test_topics_with_one_partition_begin_at_different_brokers() -> None:
    chosen = brokers(None, None, None)
    leaders = [place_replicas(chosen, count=1, replication_factor=2, start=start)[0][0] for start in range(3)]
    assert sorted(leaders) == [10, 11, 12]


def test_the_followers_of_one_leader_are_not_always_the_same() -> None:
    placed = place_replicas(brokers(*[None] * 6), count=60, replication_factor=2)
    assert len({replicas[1] for replicas in placed if replicas[0] == 10}) > 1


def test_a_broker_without_a_rack_makes_racks_count_for_nothing() -> None:
    chosen = brokers("a", "a", None)
    placed = place_replicas(chosen, count=9, replication_factor=2)
    assert spread(Counter(node for replicas in placed for node in replicas), chosen) == 0


def test_a_broker_that_has_left_is_not_chosen_again() -> None:
    placed = place_replicas(brokers(None, None), count=1, replication_factor=1, existing=[(99,), (10,)])
    assert placed == ((11,),)


def test_one_broker_holds_everything() -> None:
    assert place_replicas(brokers(None), count=3, replication_factor=1, start=7) == ((10,),) * 3


@given(placements(ANY_RACKS), st.integers(1, 9), st.data())
def test_brokers_to_fall_back_on_hold_only_what_the_others_cannot(
    case: tuple[list[BrokerRegistration], int, int, int], able_count: int, data: st.DataObject
) -> None:
    chosen, factor, count, start = case
    able, others = chosen[:able_count], chosen[able_count:]
    cut = data.draw(st.integers(0, len(others)))
    placed = place_replicas(
        able, count=count, replication_factor=factor, start=start, fallback=(others[:cut], others[cut:])
    )
    first, second = ({broker.id for broker in group} for group in (others[:cut], others[cut:]))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] not in first | second
        assert len(first.intersection(replicas)) == min(len(first), max(0, factor - len(able)))
        assert len(second.intersection(replicas)) == max(0, factor - len(able) - len(first))
    leaders = Counter(replicas[0] for replicas in placed)
    assert spread(leaders, able) <= 1
