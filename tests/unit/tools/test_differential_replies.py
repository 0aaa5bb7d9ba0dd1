"""What brokers make up is called by the scenario's names, and nothing else is touched."""

from penstock.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tools.differential.compare import differences, labelled
from tools.differential.replies import plain, renamed

ONE = "client-0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "client-7c9e6679-7425-40de-944b-e07fc1f90ae7"


def answer(member_id: str, metadata: bytes = b"m") -> JoinGroupResponse:
    return JoinGroupResponse(
        leader=member_id, member_id=member_id, members=[JoinGroupResponseMember(member_id, None, metadata)]
    )


def seen(response: JoinGroupResponse, names: dict[str, str]) -> object:
    return labelled(renamed(plain(response, 9, {}), names))


def test_two_brokers_may_give_a_member_different_ids() -> None:
    assert seen(answer(ONE), {ONE: "first"}) == seen(answer(OTHER), {OTHER: "first"})


def test_a_member_id_of_another_form_is_a_difference() -> None:
    assert seen(answer(ONE), {ONE: "first"}) != seen(answer("client-1"), {"client-1": "first"})


def test_one_member_in_the_place_of_another_is_a_difference() -> None:
    names = {ONE: "first", OTHER: "second"}
    assert seen(answer(ONE), names) != seen(answer(OTHER), names)


def test_bytes_that_members_exchange_are_compared() -> None:
    kafka, penstock = (
        labelled(renamed(plain(answer(ONE, metadata), 9, {}), {ONE: "first"})) for metadata in (b"a", b"b")
    )
    (found,) = differences(kafka, penstock)
    assert (found.kafka, found.penstock) == ("61", "62")


def test_the_order_of_subscribed_topics_means_nothing() -> None:
    assert labelled({"subscribed_topic_names": ["b", "a"]}) == labelled(
        {"subscribed_topic_names": ["a", "b"]}
    )
