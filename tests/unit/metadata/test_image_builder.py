"""The image: kept current it equals one read afresh, and what cannot be is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.broker_lifecycle import bump_leader_epochs, register_standalone
from penstock.controller.configs import alter_broker_config, alter_topic_config
from penstock.controller.producer_ids import next_producer_id_block
from penstock.controller.topics import delete_topic, grow_topic
from penstock.errors import CorruptData
from penstock.host.metadata_store import Delete, DeleteAll, Put, Snapshot, StoreChange, StoreEntry
from penstock.metadata.cluster_image import Controller, PartitionState
from penstock.metadata.documents import (
    BrokerSessionValue,
    ControllerValue,
    Endpoint,
    PartitionValue,
    TopicValue,
    encode_document,
)
from penstock.metadata.image_builder import apply, image_of
from penstock.metadata.image_changes import (
    GrownTopic,
    PartitionChange,
    TopicChanges,
    changed_partitions,
    changed_topics,
)
from penstock.types import TopicId
from tests.unit.controller.controller_support import CLUSTER, EMPTY, KEYS, StoredCluster

ID = TopicId(b"abcdefghijklmnop")
ID_TEXT = "YWJjZGVmZ2hpamtsbW5vcA"


class Cluster(StoredCluster):
    """With one embedded broker."""

    def __init__(self) -> None:
        super().__init__()
        self.commit(
            register_standalone(self.image, 1, rack=None, endpoints={"PLAINTEXT": Endpoint("h", 9092)})
        )

    def make(self, name: str, partitions: int = 1) -> None:
        self.create(name, partitions, 1)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def partition(leader: int = 1, replicas: tuple[int, ...] = (1,), isr: tuple[int, ...] = (1,)) -> bytes:
    return encode_document(PartitionValue(replicas, leader, leader_epoch=0, isr=isr, partition_epoch=0))


def topic(partitions: int = 1, topic_id: str = ID_TEXT) -> bytes:
    return encode_document(TopicValue(topic_id, partitions, internal=False, created_ms=0, overrides={}))


def snapshot(*puts: Put) -> Snapshot:
    return Snapshot(9, {put.key: StoreEntry(put.value, 4) for put in puts})


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = image_of(
        snapshot(Put(KEYS.topic("t"), topic(2)), *(Put(KEYS.partition(ID, i), partition()) for i in (1, 0))),
        CLUSTER,
    )
    assert image.revision == 9
    assert image.topics["t"] is image.topics_by_id[ID]
    assert image.partition("t", 1) == PartitionState((1,), 1, 0, (1,), 0, index=1, revision=4)
    assert image.partition("t", 2) is None
    assert image.partition("t", -1) is None
    assert image.partition("other", 0) is None
    assert image.partition_count == 2


def test_the_broker_with_the_lowest_id_is_the_controller(cluster: Cluster) -> None:
    assert EMPTY.controller_id == -1
    cluster.commit(register_standalone(cluster.image, 0, rack="r", endpoints={}))
    assert cluster.image.controller_id == 0
    assert cluster.image.brokers[1].endpoints == {"PLAINTEXT": Endpoint("h", 9092)}


def test_an_older_image_is_not_disturbed_and_shares_what_did_not_change(cluster: Cluster) -> None:
    cluster.make("a")
    cluster.make("b")
    before = cluster.image
    cluster.commit(grow_topic(cluster.image, "a", 3))
    assert len(before.topics["a"].partitions) == 1
    assert len(cluster.image.topics["a"].partitions) == 3
    assert cluster.image.topics["b"] is before.topics["b"]
    assert cluster.image.topics["a"].partitions[0] is before.topics["a"].partitions[0]


def test_a_change_to_one_partition_leaves_the_others_as_they_were(cluster: Cluster) -> None:
    cluster.make("a", partitions=3)
    before = cluster.image.topics["a"]
    change = Put(KEYS.partition(before.id, 1), partition(leader=-1, isr=()))
    after = apply(cluster.image, [change], 99).topics["a"]
    assert after.partitions[1] == PartitionState((1,), -1, 0, (), 0, index=1, revision=99)
    assert after.partitions[0] is before.partitions[0]
    assert after.revision == before.revision


def test_changes_are_told_by_kind(cluster: Cluster) -> None:
    for name in ("kept", "grown", "configured", "both", "gone", "again"):
        cluster.make(name)
    before = cluster.image
    cluster.commit(grow_topic(cluster.image, "grown", 2))
    cluster.commit(alter_topic_config(cluster.image, "configured", {"a": "b"}))
    cluster.commit(grow_topic(cluster.image, "both", 5))
    cluster.commit(alter_topic_config(cluster.image, "both", {"a": "b"}))
    cluster.commit(delete_topic(cluster.image, name="gone"))
    cluster.commit(delete_topic(cluster.image, name="again"))
    cluster.make("again")
    cluster.make("a-new-one")
    cluster.commit(bump_leader_epochs(cluster.image))
    after = cluster.image
    assert changed_topics(before, after) == TopicChanges(
        created=(after.topics["a-new-one"], after.topics["again"]),
        deleted=(before.topics["again"], before.topics["gone"]),
        grown=(GrownTopic(after.topics["both"], 1), GrownTopic(after.topics["grown"], 1)),
        reconfigured=(after.topics["both"], after.topics["configured"]),
    )
    assert changed_topics(after, after) == TopicChanges((), (), (), ())


def test_a_topic_replaced_in_one_transaction_has_only_its_new_partitions(cluster: Cluster) -> None:
    cluster.make("t", partitions=2)
    old = cluster.image.topics["t"]
    changes: list[StoreChange] = [
        Put(KEYS.topic("t"), topic(1)),
        Put(KEYS.partition(ID, 0), partition()),
        Delete(KEYS.partition(old.id, 0)),
        Delete(KEYS.partition(old.id, 1)),
    ]
    image = apply(cluster.image, changes, 50)
    assert image.topics["t"].id == ID
    assert image.partition_count == 1
    assert old.id not in image.topics_by_id


PART = KEYS.partition


@pytest.mark.parametrize(
    ("puts", "sentence"),
    [
        ([Put(KEYS.topic("t"), topic(2)), Put(PART(ID, 0), partition())], "topics/t: it says 2 partitions"),
        ([Put(KEYS.topic("t"), topic(1)), Put(PART(ID, 1), partition())], "topics/t: it says 1 partitions"),
        ([Put(KEYS.topic("t"), topic(1, "short"))], "topics/t: .* at `..topic_id`"),
        ([Put(PART(ID, 0), partition(leader=2))], "its leader 2 holds no replica"),
        ([Put(PART(ID, 0), partition(isr=(1, 2)))], "in sync that holds no replica"),
        ([Put(PART(ID, 0), b"{}")], f"partitions/{ID_TEXT}/0"),
        ([Put(KEYS.broker(1), b"?")], "brokers/1"),
    ],
)
def test_a_store_that_cannot_be_is_corrupt_and_the_key_is_named(puts: list[Put], sentence: str) -> None:
    with pytest.raises(CorruptData, match=sentence):
        image_of(snapshot(*puts), CLUSTER)


def test_two_topics_with_one_id_are_corrupt(cluster: Cluster) -> None:
    changes = [Put(KEYS.topic("t"), topic(1)), Put(KEYS.partition(ID, 0), partition())]
    image = apply(cluster.image, changes, 50)
    again = [Put(KEYS.topic("u"), topic(1)), Put(KEYS.partition(ID, 0), partition())]
    with pytest.raises(CorruptData, match="topics/u: another topic has its id"):
        apply(image, again, 51)


def test_a_partition_deleted_on_its_own_is_corrupt(cluster: Cluster) -> None:
    cluster.make("t", partitions=2)
    with pytest.raises(CorruptData, match="topics/t: it says 2 partitions"):
        apply(cluster.image, [Delete(KEYS.partition(cluster.image.topics["t"].id, 1))], 50)


def test_partitions_count_when_their_topic_says_so() -> None:
    """They are written first: a transaction does not hold all of them."""
    image = EMPTY
    for index in (1, 0, 2):
        image = apply(image, [Put(PART(ID, index), partition())], 10 + index)
        assert not image.topics
        assert image.partition_count == 0
    image = apply(image, [Put(KEYS.topic("t"), topic(2))], 20)
    assert [state.revision for state in image.topics["t"].partitions] == [10, 11]
    image = apply(image, [Put(KEYS.topic("t"), topic(3))], 21)
    assert [state.revision for state in image.topics["t"].partitions] == [10, 11, 12]
    assert not image.prepared
    assert image.partition_count == 3


def test_what_was_prepared_and_deleted_is_gone() -> None:
    image = apply(EMPTY, [Put(PART(ID, 0), partition()), Put(PART(ID, 1), partition())], 10)
    assert not apply(image, [Delete(PART(ID, 0)), Delete(PART(ID, 1))], 11).prepared
    assert not apply(image, [DeleteAll(KEYS.partitions(ID))], 11).prepared
    shown = apply(image, [Put(KEYS.topic("t"), topic(1))], 11)
    assert list(shown.prepared[ID]) == [1]
    gone = apply(shown, [Delete(KEYS.topic("t")), DeleteAll(KEYS.partitions(ID))], 12)
    assert not gone.topics
    assert not gone.prepared


def test_a_broker_is_admitted_by_the_revision_of_its_session() -> None:
    cluster = StoredCluster()
    cluster.join(1)
    broker = cluster.image.brokers[1]
    assert (broker.is_alive, broker.is_admitted, broker.broker_epoch) == (True, False, 1)
    cluster.store.transact((), [Put(KEYS.controller, encode_document(ControllerValue(1)))])
    cluster.image = cluster.read_afresh()
    assert cluster.image.controller == Controller(1, term=2)
    cluster.admit(1)
    assert cluster.image.brokers[1].is_admitted
    assert cluster.image.admitted == {1}
    # The same broker in another session is another epoch.
    again = Put(KEYS.live(1), encode_document(BrokerSessionValue("second", "disk of 1")))
    image = apply(cluster.image, [again], 9)
    assert (image.brokers[1].is_alive, image.admitted) == (True, frozenset())
    image = apply(image, [Delete(KEYS.live(1)), Delete(KEYS.controller)], 10)
    assert (image.brokers[1].is_alive, image.controller, image.controller_id) == (False, None, -1)


def test_changes_of_partitions_are_told_one_by_one(cluster: Cluster) -> None:
    for name in ("same", "grown", "gone", "again"):
        cluster.make(name, partitions=3)
    before = cluster.image
    key = KEYS.partition(before.topics["same"].id, 1)
    assert changed_partitions(before, apply(before, [], 98)) == []
    after = apply(before, [Put(key, partition(leader=-1))], 99)
    assert changed_partitions(before, after) == [
        PartitionChange(after.topics["same"], before.partition("same", 1), after.partition("same", 1))
    ]
    cluster.commit(grow_topic(cluster.image, "grown", 4))
    cluster.commit(delete_topic(cluster.image, name="gone"))
    cluster.commit(delete_topic(cluster.image, name="again"))
    cluster.commit(alter_topic_config(cluster.image, "same", {"a": "b"}))
    cluster.make("again")
    found = changed_partitions(before, cluster.image)
    assert sorted((change.topic.name, change.before is None, change.after is None) for change in found) == [
        ("again", False, True),
        ("again", False, True),
        ("again", False, True),
        ("again", True, False),
        ("gone", False, True),
        ("gone", False, True),
        ("gone", False, True),
        ("grown", True, False),
    ]


NAMES = st.sampled_from(["a", "b", "c.d", "e-f"])
STEPS = st.one_of(
    st.tuples(st.just("create or grow"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("delete"), NAMES, st.just(0)),
    st.tuples(st.just("configure"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("configure broker"), st.just(""), st.integers(0, 2)),
    st.tuples(st.just("bump"), st.just(""), st.just(0)),
    st.tuples(st.just("producer ids"), st.just(""), st.just(0)),
    st.tuples(st.just("register"), st.just("rack"), st.integers(1, 3)),
    st.tuples(st.just("prepare"), NAMES, st.integers(0, 4)),
)


def take(cluster: Cluster, step: tuple[str, str, int]) -> None:
    action, name, number = step
    known = cluster.image.topics.get(name)
    overrides = {"retention.ms": "1"} if number == 1 else {}
    match action:
        case "create or grow" if known is None:
            cluster.make(name, number)
        case "create or grow" if known is not None:
            cluster.commit(grow_topic(cluster.image, name, len(known.partitions) + number))
        case "delete" if known is not None:
            cluster.commit(delete_topic(cluster.image, topic_id=known.id))
        case "configure" if known is not None:
            cluster.commit(alter_topic_config(cluster.image, name, overrides))
        case "configure broker":
            broker_id = 1 if number == 2 else None
            cluster.commit(alter_broker_config(cluster.image, broker_id, overrides))
        case "bump":
            cluster.commit(bump_leader_epochs(cluster.image))
        case "producer ids":
            cluster.commit(next_producer_id_block(cluster.image).decision)
        case "prepare":
            topic_id = ID if known is None else known.id
            index = number if known is None else len(known.partitions) + number
            changes = [Put(KEYS.partition(topic_id, index), partition())]
            revision = cluster.store.transact((), changes)
            assert revision is not None
            cluster.image = apply(cluster.image, changes, revision)
        case "register":
            cluster.commit(register_standalone(cluster.image, number, rack=name, endpoints={}))


@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, max_size=25))
def test_an_image_kept_current_equals_one_read_afresh(steps: list[tuple[str, str, int]]) -> None:
    cluster = Cluster()
    for step in steps:
        take(cluster, step)
        assert cluster.image == cluster.read_afresh()
    assert cluster.image.partition_count == sum(len(t.partitions) for t in cluster.image.topics.values())
    assert changed_topics(EMPTY, cluster.image).created == tuple(
        cluster.image.topics[name] for name in sorted(cluster.image.topics)
    )
