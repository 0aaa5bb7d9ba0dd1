"""Metadata: by name, by id, all of them; creation on the way; what is hidden from whom."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.broker.apis.metadata import Metadata
from penstock.broker.cluster.metadata_view import VERSIONS_READY_MAX
from penstock.controller.broker_lifecycle import bump_leader_epochs
from penstock.controller.decision import Decision
from penstock.controller.topics import delete_topic, grow_topic
from penstock.errors import ErrorCode
from penstock.host.metadata_store import Delete, Put
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.metadata.documents import OverridesValue, encode_document
from penstock.metadata.keys import ClusterKeys
from penstock.protocol.frames import decode_response, encode_response
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    ReadyMetadataTopic,
)
from penstock.protocol.schema import OPERATIONS_NOT_REQUESTED
from penstock.security.access import Authorizer, Operation
from penstock.types import NO_TOPIC_ID, TopicId
from tests.unit.broker.support import (
    ALL_CLUSTER_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    ALLOW_EVERYTHING,
    DENY_EVERYTHING,
    OTHER_LISTENER,
    CallbackAuthorizer,
    HandlerHarness,
    denying,
    running_cluster,
)
from tests.unit.broker.waiting import until

UNKNOWN_ID = TopicId(b"u" * 16)
KEYS = ClusterKeys("c")


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


def named(*names: str, create: bool = False, operations: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=operations,
    )


def identified(*ids: TopicId, name: str | None = None) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(topic_id, name) for topic_id in ids])


async def ask(
    harness: HandlerHarness,
    request: MetadataRequest,
    version: int = 13,
    authorizer: Authorizer = ALLOW_EVERYTHING,
    handler: Metadata | None = None,
) -> MetadataResponse:
    """The reply as the client reads it from the wire: topics may carry bytes that were made before."""
    handler = handler or Metadata(harness.cluster, harness.creation)
    reply = await harness.ask(METADATA, handler, request, version, authorizer=authorizer)
    return on_the_wire(reply, version)


def on_the_wire(reply: MetadataResponse, version: int) -> MetadataResponse:
    frame = b"".join(encode_response(METADATA, version, 1, reply))[4:]
    return decode_response(METADATA, version, frame)[1]


async def codes(
    harness: HandlerHarness,
    request: MetadataRequest,
    version: int = 13,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> list[tuple[str | None, int]]:
    reply = await ask(harness, request, version, authorizer)
    return [(topic.name, topic.error_code) for topic in reply.topics]


@pytest.mark.parametrize("version", range(14))
async def test_the_brokers_are_named_as_the_clients_listener_reaches_them(
    harness: HandlerHarness, version: int
) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("t")
    reply = await harness.ask(METADATA, handler, named("t"), version, listener=OTHER_LISTENER)

    assert reply.brokers == [
        MetadataResponseBroker(number, f"tls{number}", 9100 + number, f"rack{number}") for number in (1, 2, 3)
    ]
    assert (reply.cluster_id, reply.controller_id, reply.error_code) == ("c", 1, 0)
    assert [topic.name for topic in reply.topics] == ["t"]


@pytest.mark.parametrize(("asked", "is_away", "named_by_it"), [(3, False, 3), (9, False, 1), (3, True, 1)])
async def test_who_is_asked_takes_changes_if_it_can(asked: int, is_away: bool, named_by_it: int) -> None:
    async with running_cluster({"node.id": str(asked)}) as harness:
        harness.store.is_away = is_away
        await harness.store.transact((), [Put(KEYS.group_config("g"), encode_document(OverridesValue({})))])
        await until(lambda: (harness.cluster.store_unavailable_since is not None) is is_away, seconds_max=10)
        assert (await ask(harness, named())).controller_id == named_by_it


async def test_a_topic_is_described_with_all_its_partitions(harness: HandlerHarness) -> None:
    topic = await harness.topic("t", partitions=3)
    reply = await ask(harness, named("t"))

    assert reply.topics == [
        MetadataResponseTopic(
            name="t",
            topic_id=topic.id,
            partitions=[
                MetadataResponsePartition(
                    partition_index=state.index,
                    leader_id=state.leader,
                    leader_epoch=0,
                    replica_nodes=[state.leader],
                    isr_nodes=[state.leader],
                )
                for state in topic.partitions
            ],
        )
    ]


async def test_null_requests_all_topics_and_in_version_0_an_empty_list_does(
    harness: HandlerHarness,
) -> None:
    await harness.topic("a")
    await harness.topic("b")

    assert await codes(harness, MetadataRequest(topics=None)) == [("a", 0), ("b", 0)]
    assert await codes(harness, MetadataRequest(topics=[]), version=0) == [("a", 0), ("b", 0)]
    assert await codes(harness, MetadataRequest(topics=[]), version=1) == []


async def test_topics_that_are_there_come_first_and_each_once(harness: HandlerHarness) -> None:
    await harness.topic("a")
    await harness.topic("b")

    assert await codes(harness, named("no", "b", "bad name", "b", "no", "a")) == [
        ("b", 0),
        ("a", 0),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


@pytest.mark.parametrize("name", ["bad name", "", ".", "..", "x" * 250, "ä"])
async def test_an_illegal_name_is_refused_and_never_created(harness: HandlerHarness, name: str) -> None:
    for create in (True, False):
        reply = await ask(harness, named(name, create=create))
        assert reply.topics == [MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name)]
    assert not harness.cluster.image.topics


async def test_a_missing_topic_that_both_sides_want_is_created_and_answered(harness: HandlerHarness) -> None:
    reply = await ask(harness, named("new", create=True))

    topic = harness.cluster.image.topics["new"]
    assert [(entry.error_code, entry.topic_id) for entry in reply.topics] == [(0, topic.id)]
    assert len(reply.topics[0].partitions) == 1


@pytest.mark.parametrize("version", [0, 3])
async def test_old_versions_always_want_a_missing_topic(harness: HandlerHarness, version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])

    assert await codes(harness, request, version) == [("new", 0)]


async def test_a_missing_topic_is_not_created_against_the_wish_of_either_side() -> None:
    async with running_cluster() as harness:
        assert await codes(harness, named("new", create=False)) == [("new", 3)]
        assert not harness.cluster.image.topics
    async with running_cluster({"auto.create.topics.enable": "false"}) as harness:
        assert await codes(harness, named("new", create=True)) == [("new", 3)]
        assert not harness.cluster.image.topics


async def test_topics_are_created_as_the_broker_defaults_say() -> None:
    async with running_cluster({"num.partitions": "4", "default.replication.factor": "2"}) as harness:
        reply = await ask(harness, named("new", create=True))

        assert [len(part.replica_nodes) for part in reply.topics[0].partitions] == [2, 2, 2, 2]


async def test_a_topic_that_cannot_be_created_says_why_and_the_others_are(harness: HandlerHarness) -> None:
    await harness.topic("a.b")

    assert await codes(harness, named("a_b", "fine", create=True)) == [
        ("fine", 0),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


async def test_one_request_does_not_create_more_than_it_may() -> None:
    async with running_cluster({"num.partitions": str(PARTITIONS_PER_TOPIC_MAX // 2)}, [1]) as harness:
        answers = await codes(harness, named("a", "b", "c", create=True))

        assert answers == [("a", 0), ("b", 0), ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_a_topic_that_another_request_created_meanwhile_is_answered(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    slower = harness.answer(METADATA, handler, named("t", create=True), 13)
    topic = await harness.topic("t")

    reply = await slower
    assert [(entry.error_code, entry.topic_id) for entry in reply.topics] == [(0, topic.id)]


async def test_a_full_disk_is_told_where_a_topic_was_to_be_created(harness: HandlerHarness) -> None:
    harness.store.is_full = True

    assert await codes(harness, named("new", create=True)) == [("new", ErrorCode.KAFKA_STORAGE_ERROR)]


async def test_internal_topics_are_shown_as_such_and_not_created_on_the_way(harness: HandlerHarness) -> None:
    missing = await ask(harness, named("__consumer_offsets", create=True))
    assert missing.topics == [MetadataResponseTopic(3, "__consumer_offsets", is_internal=True)]

    await harness.topic("__consumer_offsets")
    assert (await ask(harness, named("__consumer_offsets"))).topics[0].is_internal


async def test_nothing_is_awaited_when_nothing_is_created(harness: HandlerHarness) -> None:
    await harness.topic("t")
    answer = harness.answer(
        METADATA, Metadata(harness.cluster, harness.creation), named("t", "bad name", create=True), 13
    )

    assert isinstance(answer, MetadataResponse)


async def test_a_topic_is_found_by_its_id_whatever_name_is_beside_it(harness: HandlerHarness) -> None:
    topic = await harness.topic("t")

    for name in (None, "wrong", "t"):
        reply = await ask(harness, identified(topic.id, topic.id, name=name))
        assert [(entry.name, entry.topic_id, entry.error_code) for entry in reply.topics] == [
            ("t", topic.id, 0)
        ]


async def test_an_unknown_id_is_echoed_without_a_name(harness: HandlerHarness) -> None:
    reply = await ask(harness, identified(UNKNOWN_ID))

    assert reply.topics == [MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, UNKNOWN_ID)]


async def test_beside_ids_plain_names_are_passed_over(harness: HandlerHarness) -> None:
    topic = await harness.topic("t")
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="new"), MetadataRequestTopic(topic.id, None)],
    )

    assert await codes(harness, request) == [("t", 0)]
    assert "new" not in harness.cluster.image.topics


@pytest.mark.parametrize(
    ("version", "entry", "code"),
    [
        (12, MetadataRequestTopic(NO_TOPIC_ID, None), -1),
        (10, MetadataRequestTopic(UNKNOWN_ID, "t"), 42),
        (11, MetadataRequestTopic(NO_TOPIC_ID, None), 42),
    ],
)
async def test_an_entry_without_sense_spoils_the_request(
    harness: HandlerHarness, version: int, entry: MetadataRequestTopic, code: int
) -> None:
    reply = await ask(harness, MetadataRequest(topics=[entry]), version)

    assert reply == MetadataResponse(topics=[MetadataResponseTopic(code, entry.name or "", entry.topic_id)])


async def test_operations_are_filled_in_when_asked_for_also_for_a_missing_topic(
    harness: HandlerHarness,
) -> None:
    await harness.topic("t")
    handler = Metadata(harness.cluster, harness.creation)
    for asked, expected in ((True, ALL_TOPIC_OPERATIONS), (False, OPERATIONS_NOT_REQUESTED)):
        reply = await ask(harness, named("t", "missing", operations=asked), handler=handler)
        assert [topic.topic_authorized_operations for topic in reply.topics] == [expected, expected]

    request = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    assert (await ask(harness, request, 10)).cluster_authorized_operations == ALL_CLUSTER_OPERATIONS
    plain = await ask(harness, MetadataRequest(topics=[]), 10)
    assert plain.cluster_authorized_operations == OPERATIONS_NOT_REQUESTED


async def test_who_may_do_nothing_learns_nothing(harness: HandlerHarness) -> None:
    topic = await harness.topic("t")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    by_name = await ask(harness, named("t", "missing", create=True, operations=True), 13, DENY_EVERYTHING)
    by_id = await ask(harness, identified(topic.id), 13, DENY_EVERYTHING)
    all_topics = await ask(harness, MetadataRequest(topics=None), 13, DENY_EVERYTHING)

    assert by_name.topics == [MetadataResponseTopic(denied, name) for name in ("t", "missing")]
    assert by_id.topics == [MetadataResponseTopic(denied, None, topic.id)]
    assert all_topics.topics == []
    assert list(harness.cluster.image.topics) == ["t"]


async def test_a_harmless_name_beside_an_id_opens_no_denied_topic(harness: HandlerHarness) -> None:
    secret = await harness.topic("secret")
    reply = await ask(harness, identified(secret.id, name="harmless"), 13, denying("secret"))

    assert reply.topics == [MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, secret.id)]


async def test_only_who_may_create_a_topic_creates_it_by_asking(harness: HandlerHarness) -> None:
    readers = CallbackAuthorizer(lambda operation, resource: operation != Operation.CREATE)
    creators = CallbackAuthorizer(
        lambda operation, resource: operation != Operation.CREATE or resource.name == "new"
    )

    assert await codes(harness, named("new", create=True), 13, readers) == [("new", 29)]
    assert not harness.cluster.image.topics
    assert await codes(harness, named("new", create=True), 13, creators) == [("new", 0)]


async def test_changes_of_a_topic_are_seen_at_once_by_who_asked_before(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("t")

    async def partitions() -> list[MetadataResponsePartition]:
        return (await ask(harness, named("t"), handler=handler)).topics[0].partitions

    assert len(await partitions()) == 1
    await harness.cluster.change(lambda image: grow_topic(image, "t", 2))
    assert len(await partitions()) == 2
    await harness.cluster.change(bump_leader_epochs)
    assert [partition.leader_epoch for partition in await partitions()] == [1, 1]
    await harness.cluster.change(lambda image: delete_topic(image, name="t"))
    again = await harness.topic("t")
    assert (await ask(harness, named("t"), handler=handler)).topics[0].topic_id == again.id


async def test_a_broker_that_is_not_there_leads_nothing_until_it_comes(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("t", partitions=3)
    await harness.cluster.change(
        lambda image: grow_topic(image, "t", 4, [(1,)])  # so that the last one is led by broker 1
    )
    assert (await ask(harness, named("t"), handler=handler)).topics[0].partitions[3].error_code == 0

    await harness.cluster.change(lambda image: Decision((), (Delete(KEYS.broker(1)),)))
    gone = (await ask(harness, named("t"), handler=handler)).topics[0].partitions[3]
    assert (gone.error_code, gone.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (gone.replica_nodes, gone.offline_replicas) == ([1], [1])


async def test_asking_again_for_many_topics_costs_little(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    for number in range(100):
        await harness.topic(f"t{number}", partitions=10)
    request = MetadataRequest(topics=None)
    first = await harness.ask(METADATA, handler, request)
    again = await harness.ask(METADATA, handler, request)

    assert len(again.topics) == 100
    assert all(isinstance(topic, ReadyMetadataTopic) for topic in again.topics)
    assert all(old is new for old, new in zip(first.topics, again.topics, strict=True))


@pytest.mark.parametrize("version", range(14))
async def test_bytes_made_before_are_those_that_would_be_made(harness: HandlerHarness, version: int) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("t", partitions=3)
    await harness.topic("u")
    for request in (MetadataRequest(topics=None), named("t", "missing", "u")):
        reply = await harness.ask(METADATA, handler, request, version)
        plain = [
            MetadataResponseTopic(
                *(getattr(topic, field) for field in MetadataResponseTopic.__struct_fields__)
            )
            for topic in reply.topics
        ]
        unprepared = msgspec.structs.replace(reply, topics=plain)
        assert encode_response(METADATA, version, 1, reply) == encode_response(
            METADATA, version, 1, unprepared
        )


async def test_bytes_are_kept_for_a_few_versions_only(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("t")
    for version in range(14):
        assert [
            topic.name for topic in (await ask(harness, named("t"), version, handler=handler)).topics
        ] == ["t"]
    assert len(handler.topics.encoded_entries) == VERSIONS_READY_MAX


async def test_what_one_may_see_is_not_kept_for_another(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("open")
    await harness.topic("secret")
    for authorizer, names in (
        (ALLOW_EVERYTHING, ["open", "secret"]),
        (denying("secret"), ["open"]),
        (ALLOW_EVERYTHING, ["open", "secret"]),
    ):
        reply = await ask(harness, MetadataRequest(topics=None), 13, authorizer, handler)
        assert [topic.name for topic in reply.topics] == names


async def test_what_is_kept_ready_for_deleted_topics_is_dropped(harness: HandlerHarness) -> None:
    handler = Metadata(harness.cluster, harness.creation)
    await harness.topic("stays")
    for number in range(10):
        name = f"t{number}"
        await harness.topic(name)
        await ask(harness, named(name), handler=handler)
        await harness.cluster.change(lambda image, name=name: delete_topic(image, name=name))  # type: ignore[misc]

    await ask(harness, named("stays"), handler=handler)
    assert len(handler.topics.cached) <= 2
    assert all(len(ready) <= 2 for ready in handler.topics.encoded_entries.values())
