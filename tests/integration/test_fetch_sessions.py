"""Fetch sessions (KIP-227) as they go over the wire."""

from penstock.errors import ErrorCode
from penstock.protocol.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from tests.integration.conftest import CreateTopic
from tests.integration.raw_client import FETCH_VERSION, RawClient, batch_of, connected

PARTITIONS = 4


def fetch(client: RawClient, topic: str, offsets: dict[int, int], session: tuple[int, int]) -> FetchResponse:
    """Name these partitions with their offsets; the rest is as the session remembers it."""
    return client.ask(FETCH, FETCH_VERSION, request(topic, offsets, session))


def request(topic: str, offsets: dict[int, int], session: tuple[int, int]) -> FetchRequest:
    partitions = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1_000_000)
        for number, offset in offsets.items()
    ]
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
    )


def partitions_in(response: FetchResponse) -> list[int]:
    assert response.error_code == 0
    return [part.partition_index for each in response.responses for part in each.partitions]


def open_session(client: RawClient, topic: str) -> int:
    everything = fetch(client, topic, dict.fromkeys(range(PARTITIONS), 0), (0, 0))
    assert sorted(partitions_in(everything)) == list(range(PARTITIONS))
    assert everything.session_id != 0
    return everything.session_id


def test_only_what_changed_is_told(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as client:
        session_id = open_session(client, topic)

        nothing_new = fetch(client, topic, {}, (session_id, 1))
        client.produce(topic, batch_of(b"new"), partition=2)
        one_is_new = fetch(client, topic, {}, (session_id, 2))
        moved_on = fetch(client, topic, {2: 1}, (session_id, 3))

        assert partitions_in(nothing_new) == []
        assert partitions_in(one_is_new) == [2]
        assert one_is_new.responses[0].partitions[0].records
        assert partitions_in(moved_on) == []


def test_what_was_not_taken_is_told_again(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as client:
        session_id = open_session(client, topic)
        client.produce(topic, batch_of(b"new"), partition=1)

        first = fetch(client, topic, {}, (session_id, 1))
        second = fetch(client, topic, {}, (session_id, 2))

        assert partitions_in(first) == partitions_in(second) == [1]


def test_a_waiting_session_is_woken_by_any_of_its_partitions(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as reader, connected(bootstrap) as writer:
        session_id = open_session(reader, topic)
        patient = request(topic, {}, (session_id, 1))
        patient.max_wait_ms, patient.min_bytes = 60_000, 1
        reader.send(FETCH, FETCH_VERSION, patient)

        writer.produce(topic, batch_of(b"new"), partition=3)

        _, woken = reader.receive(FETCH, FETCH_VERSION)
        assert partitions_in(woken) == [3]


def test_a_forgotten_partition_is_told_no_more(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as client:
        session_id = open_session(client, topic)
        forget = request(topic, {}, (session_id, 1))
        forget.forgotten_topics_data = [ForgottenTopic(topic=topic, partitions=[0])]
        client.ask(FETCH, FETCH_VERSION, forget)
        for number in (0, 1):
            client.produce(topic, batch_of(b"new"), partition=number)

        assert partitions_in(fetch(client, topic, {}, (session_id, 2))) == [1]


def test_a_session_belongs_to_no_connection(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as before:
        session_id = open_session(before, topic)
        before.produce(topic, batch_of(b"new"), partition=2)
    with connected(bootstrap) as after:
        assert partitions_in(fetch(after, topic, {}, (session_id, 1))) == [2]


def test_a_wrong_epoch_and_an_unknown_session_are_refused(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as client:
        session_id = open_session(client, topic)

        wrong_epoch = fetch(client, topic, {}, (session_id, 7))
        unknown = fetch(client, topic, {}, (session_id ^ 1, 1))

        assert wrong_epoch.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert partitions_in(fetch(client, topic, {}, (session_id, 1))) == [], "a refusal changes nothing"


def test_a_closed_session_is_gone(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, PARTITIONS)
    with connected(bootstrap) as client:
        session_id = open_session(client, topic)

        closing = fetch(client, topic, {}, (session_id, -1))
        afterwards = fetch(client, topic, {}, (session_id, 1))

        assert closing.session_id == 0
        assert afterwards.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_unknown_partition_is_an_error_within_the_session(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    with connected(bootstrap) as client:
        reply = fetch(client, topic, {0: 0, 9: 0}, (0, 0))
        errors = {part.partition_index: part.error_code for part in reply.responses[0].partitions}
        again = fetch(client, topic, {}, (reply.session_id, 1))

    assert errors == {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert partitions_in(again) == [9], "an error is told every time"
