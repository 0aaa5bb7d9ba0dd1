"""CreateTopics: what is created, what each refusal looks like, and what a trial leaves behind."""

from collections.abc import AsyncIterator, Mapping

import pytest

from penstock.broker.apis.create_topics import CreateTopics
from penstock.errors import ErrorCode
from penstock.host.metadata_store import Put
from penstock.limits import PARTITIONS_PER_TOPIC_MAX, TOPICS_PER_REQUEST_MAX
from penstock.metadata.documents import PartitionValue, TopicValue, encode_document
from penstock.metadata.keys import ClusterKeys, topic_id_text
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from penstock.security.access import CLUSTER, Authorizer, Operation
from penstock.types import NO_TOPIC_ID, TopicId
from tests.unit.broker.support import (
    ALLOW_EVERYTHING,
    DENY_EVERYTHING,
    NOW_MS,
    CallbackAuthorizer,
    HandlerHarness,
    running_cluster,
)


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


def topic(
    name: str, partitions: int = 1, factor: int = 1, settings: Mapping[str, str | None] | None = None
) -> CreatableTopic:
    configs = [CreatableTopicConfig(key, value) for key, value in (settings or {}).items()]
    return CreatableTopic(name, partitions, factor, configs=configs)


def assigned(*replicas: list[int], counts: int = -1, first: int = 0) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(index, nodes) for index, nodes in enumerate(replicas, start=first)
    ]
    return CreatableTopic("t", counts, counts, assignments)


async def create(
    harness: HandlerHarness,
    *topics: CreatableTopic,
    version: int = 7,
    timeout_ms: int = 1,
    validate_only: bool = False,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> list[CreatableTopicResult]:
    handler = CreateTopics(harness.cluster, harness.creation)
    request = CreateTopicsRequest(list(topics), timeout_ms, validate_only)
    reply = await harness.ask(CREATE_TOPICS, handler, request, version, authorizer=authorizer)
    return reply.topics


def refused(name: str, code: ErrorCode, result: CreatableTopicResult) -> CreatableTopicResult:
    """What a refusal looks like, whatever it says."""
    assert result.error_message
    return CreatableTopicResult(
        name, NO_TOPIC_ID, code, result.error_message, num_partitions=-1, replication_factor=-1, configs=[]
    )


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_there_when_the_answer_arrives(harness: HandlerHarness, version: int) -> None:
    (result,) = await create(harness, topic("t", 4, 2, {"retention.ms": "5000"}), version=version)

    created = harness.cluster.image.topics["t"]
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    assert [len(state.replicas) for state in created.partitions] == [2, 2, 2, 2]
    assert (created.overrides, created.created_ms) == ({"retention.ms": "5000"}, NOW_MS)
    assert not created.internal


async def test_the_answer_has_the_counts_the_id_and_every_setting(harness: HandlerHarness) -> None:
    (result,) = await create(harness, topic("t", 4, 2, {"retention.ms": "5000"}))

    assert result.topic_id == harness.cluster.image.topics["t"].id
    assert (result.num_partitions, result.replication_factor) == (4, 2)
    assert result.configs is not None
    names = [config.name for config in result.configs]
    assert names == sorted(names)
    by_name = {config.name: (config.value, config.config_source) for config in result.configs}
    assert by_name["retention.ms"] == ("5000", 1)
    assert by_name["cleanup.policy"] == ("delete", 5)
    assert not any(config.read_only or config.is_sensitive for config in result.configs)


async def test_minus_one_takes_the_defaults_in_every_version() -> None:
    async with running_cluster({"num.partitions": "3", "default.replication.factor": "2"}) as harness:
        for version in (2, 7):
            await create(harness, topic(f"t{version}", -1, -1), version=version)
            created = harness.cluster.image.topics[f"t{version}"]
            assert [len(state.replicas) for state in created.partitions] == [2, 2, 2]


async def test_replicas_may_be_assigned_by_hand(harness: HandlerHarness) -> None:
    (result,) = await create(harness, assigned([2, 3], [3, 1]))

    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 2)
    replicas = [state.replicas for state in harness.cluster.image.topics["t"].partitions]
    assert replicas == [(2, 3), (3, 1)]


async def test_no_topics_are_answered_by_none(harness: HandlerHarness) -> None:
    assert await create(harness) == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic("old"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("o.ld"), ErrorCode.NONE),
        (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 249), ErrorCode.NONE),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", PARTITIONS_PER_TOPIC_MAX + 1), ErrorCode.POLICY_VIOLATION),
        (assigned([1], counts=1), ErrorCode.INVALID_REQUEST),
        (assigned([1], first=1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned([1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned([9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned([]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", settings={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (topic("t", settings={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (topic("t", settings={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (topic("t", settings={"segment.bytes": "1"}), ErrorCode.INVALID_CONFIG),
        (topic("old", settings={"no.such": "1"}), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("a b", settings={"no.such": "1"}), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_each_refusal_has_its_code_and_changes_nothing(
    harness: HandlerHarness, wanted: CreatableTopic, code: ErrorCode, validate_only: bool
) -> None:
    for name in ("old", "a.b"):
        await harness.topic(name)
    before = dict(harness.cluster.image.topics)
    (result,) = await create(harness, wanted, validate_only=validate_only)

    if code == ErrorCode.NONE:
        assert result.error_code == ErrorCode.NONE
    else:
        assert result == refused(wanted.name, code, result)
        assert harness.cluster.image.topics == before


async def test_a_setting_given_twice_has_its_last_value(harness: HandlerHarness) -> None:
    wanted = topic("t")
    wanted.configs = [CreatableTopicConfig("retention.ms", text) for text in ("nonsense", "7")]
    (result,) = await create(harness, wanted)

    assert result.error_code == 0
    assert harness.cluster.image.topics["t"].overrides == {"retention.ms": "7"}


async def test_each_topic_of_a_request_is_answered_with_its_own_settings(harness: HandlerHarness) -> None:
    results = await create(harness, *(topic(name, settings={"retention.ms": name}) for name in ("1", "2")))

    settings = [config for result in results for config in result.configs or ()]
    values = [config.value for config in settings if config.name == "retention.ms"]
    assert values == ["1", "2"]


async def test_topics_that_are_refused_leave_the_others_alone(harness: HandlerHarness) -> None:
    results = await create(harness, topic("a"), topic("b", 0), topic("c"))

    assert [(result.name, result.error_code) for result in results] == [("a", 0), ("b", 37), ("c", 0)]
    assert list(harness.cluster.image.topics) == ["a", "c"]


async def test_of_two_topics_that_collide_in_one_request_the_first_is_created(
    harness: HandlerHarness,
) -> None:
    for validate_only in (True, False):
        results = await create(harness, topic("a.b"), topic("a_b"), validate_only=validate_only)
        assert [result.error_code for result in results] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert list(harness.cluster.image.topics) == ["a.b"]


async def test_a_name_that_occurs_twice_is_answered_once_and_last(harness: HandlerHarness) -> None:
    results = await create(harness, topic("twice"), topic("bad name"), topic("twice"), topic("once"))

    assert [(result.name, result.error_code) for result in results] == [
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("once", 0),
        ("twice", ErrorCode.INVALID_REQUEST),
    ]
    assert list(harness.cluster.image.topics) == ["once"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_created(harness: HandlerHarness, timeout_ms: int) -> None:
    (result,) = await create(harness, topic("t"), timeout_ms=timeout_ms)

    assert (result.error_code, result.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert not harness.cluster.image.topics


async def test_a_trial_answers_as_the_creation_would_and_creates_nothing(harness: HandlerHarness) -> None:
    (tried,) = await create(harness, topic("t", 2, settings={"retention.ms": "9"}), validate_only=True)
    assert not harness.cluster.image.topics
    assert harness.store.commits == 0
    (created,) = await create(harness, topic("t", 2, settings={"retention.ms": "9"}))

    assert tried.topic_id != NO_TOPIC_ID
    tried.topic_id = created.topic_id
    assert tried == created


async def test_more_partitions_than_one_request_may_create_are_refused_together(
    harness: HandlerHarness,
) -> None:
    half = PARTITIONS_PER_TOPIC_MAX // 2
    too_many = await create(harness, topic("a", half), topic("b", half), topic("c", 1))
    assert [result.error_code for result in too_many] == [ErrorCode.POLICY_VIOLATION] * 3

    names = [topic(f"t{number}", -2) for number in range(TOPICS_PER_REQUEST_MAX + 1)]
    assert {result.error_code for result in await create(harness, *names)} == {ErrorCode.POLICY_VIOLATION}
    assert not harness.cluster.image.topics


async def test_many_topics_are_committed_in_few_transactions(harness: HandlerHarness) -> None:
    results = await create(harness, *(topic(f"t{number}") for number in range(75)))

    assert {result.error_code for result in results} == {0}
    assert len({result.topic_id for result in results}) == len(harness.cluster.image.topics_by_id) == 75
    assert harness.store.commits == 2


async def test_what_another_broker_created_meanwhile_is_not_created_again(harness: HandlerHarness) -> None:
    value = TopicValue(topic_id_text(TopicId(b"o" * 16)), 1, False, NOW_MS, {})
    partition = PartitionValue((1,), leader=1, leader_epoch=0, isr=(1,), partition_epoch=0)
    keys = ClusterKeys("c")
    harness.store.before_commit = [
        Put(keys.topic("a"), encode_document(value)),
        Put(keys.partition(TopicId(b"o" * 16), 0), encode_document(partition)),
    ]
    results = await create(harness, topic("a"), topic("b"))

    assert [result.error_code for result in results] == [ErrorCode.TOPIC_ALREADY_EXISTS, 0]
    assert harness.cluster.image.topics["a"].id == b"o" * 16


async def test_a_full_disk_creates_nothing_and_says_so(harness: HandlerHarness) -> None:
    harness.store.is_full = True
    results = await create(harness, topic("a"), topic("b"))

    assert [result.error_code for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert not harness.cluster.image.topics


async def test_ids_that_mean_something_else_are_drawn_again(harness: HandlerHarness) -> None:
    # The first two draws are zero and one, which are no ids of topics.
    (result,) = await create(harness, topic("t"))
    assert int.from_bytes(result.topic_id, "big") == 2
    harness.randomness._next = 2
    (result,) = await create(harness, topic("u"))
    assert int.from_bytes(result.topic_id, "big") == 3


async def test_the_brokers_own_topics_are_not_for_clients_to_create(harness: HandlerHarness) -> None:
    [result] = await create(harness, topic("__consumer_offsets"))

    assert result == refused("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION, result)
    assert list(harness.cluster.image.topics) == []


async def test_who_may_create_nothing_learns_nothing(harness: HandlerHarness) -> None:
    await harness.topic("old")
    results = await create(harness, topic("old"), topic("new"), topic("a b"), authorizer=DENY_EVERYTHING)

    for result, name in zip(results, ("old", "new", "a b"), strict=True):
        assert result == refused(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, result)
    assert list(harness.cluster.image.topics) == ["old"]
    assert len({result.error_message for result in results}) == 1


async def test_a_right_on_the_cluster_or_on_the_topic_is_enough(harness: HandlerHarness) -> None:
    on_cluster = CallbackAuthorizer(
        lambda operation, resource: resource == CLUSTER or operation == Operation.DESCRIBE_CONFIGS
    )
    on_topic = CallbackAuthorizer(lambda operation, resource: resource.name == "b")

    (by_cluster,) = await create(harness, topic("a"), authorizer=on_cluster)
    by_topic = await create(harness, topic("b"), topic("c"), authorizer=on_topic)

    assert by_cluster.error_code == 0
    assert [result.error_code for result in by_topic] == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_who_may_not_see_settings_creates_without_seeing_them(harness: HandlerHarness) -> None:
    creators = CallbackAuthorizer(lambda operation, resource: operation == Operation.CREATE)
    (result,) = await create(harness, topic("t"), authorizer=creators)

    topic_id = harness.cluster.image.topics["t"].id
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert result == CreatableTopicResult("t", topic_id, 0, None, topic_config_error_code=denied, configs=[])
