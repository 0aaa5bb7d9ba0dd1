"""The image: kept current it equals one read afresh, and what cannot be is refused."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.topics import (
    Decision,
    NewTopic,
    TopicDefaults,
    TopicRequest,
    alter_broker_config,
    alter_topic_config,
    bump_leader_epochs,
    create_topic,
    delete_topic,
    grow_topic,
    next_producer_id_block,
    register_broker,
)
from penstock.errors import CorruptData
from penstock.host.metadata_store import Change, Committed, Delete, Entry, Put, Snapshot
from penstock.metadata.image import (
    ClusterImage,
    Endpoint,
    Grown,
    PartitionState,
    TopicChanges,
    apply,
    changed_topics,
    image_of,
)
from penstock.metadata.keys import Keys
from penstock.metadata.sqlite import MEMORY, SqliteStore
from penstock.metadata.values import PartitionValue, TopicValue, encode
from penstock.types import TopicId

CLUSTER = "c"
KEYS = Keys(CLUSTER)
EMPTY = ClusterImage(cluster_id=CLUSTER)
ID = TopicId(b"abcdefghijklmnop")
ID_TEXT = "YWJjZGVmZ2hpamtsbW5vcA"


def accept_any(overrides: object) -> None:
    """Every setting may hold every value."""


class Cluster:
    """A store and the image of it, kept current the way the broker does."""

    def __init__(self) -> None:
        self.store = SqliteStore(MEMORY)
        self.image = EMPTY
        self._ids = 1
        self.commit(register_broker(self.image, 1, rack=None, endpoints={"PLAINTEXT": Endpoint("h", 9092)}))

    def commit(self, decision: Decision) -> None:
        outcome = self.store.transact(decision.compares, decision.changes)
        assert isinstance(outcome, Committed)
        self.image = apply(self.image, decision.changes, outcome.revision)

    def create(self, name: str, partitions: int = 1) -> None:
        self._ids += 1
        new = NewTopic(TopicId(self._ids.to_bytes(16, "big")), created_ms=7)
        request = TopicRequest(name=name, partitions=partitions)
        defaults = TopicDefaults(partitions=1, replication_factor=1)
        self.commit(create_topic(self.image, request, new, defaults=defaults, validate_overrides=accept_any))

    def read_afresh(self) -> ClusterImage:
        return image_of(self.store.read(KEYS.prefix), CLUSTER)

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def cluster() -> Iterable[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


def partition(leader: int = 1, replicas: tuple[int, ...] = (1,), isr: tuple[int, ...] = (1,)) -> bytes:
    return encode(PartitionValue(replicas, leader, leader_epoch=0, isr=isr, partition_epoch=0))


def topic(partitions: int = 1, topic_id: str = ID_TEXT) -> bytes:
    return encode(TopicValue(topic_id, partitions, internal=False, created_ms=0, overrides={}))


def snapshot(*puts: Put) -> Snapshot:
    return Snapshot(9, {put.key: Entry(put.value, 4) for put in puts})


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = image_of(
        snapshot(Put(KEYS.topic("t"), topic(2)), *(Put(KEYS.partition(ID, i), partition()) for i in (1, 0))),
        CLUSTER,
    )
    assert image.revision == 9
    assert image.topics["t"] is image.topics_by_id[ID]
    assert image.partition("t", 1) == PartitionState(1, 1, 0, (1,), (1,), 0, revision=4)
    assert image.partition("t", 2) is None
    assert image.partition("t", -1) is None
    assert image.partition("other", 0) is None
    assert image.partition_count == 2


def test_the_broker_with_the_lowest_id_is_the_controller(cluster: Cluster) -> None:
    assert EMPTY.controller_id == -1
    cluster.commit(register_broker(cluster.image, 0, rack="r", endpoints={}))
    assert cluster.image.controller_id == 0
    assert cluster.image.brokers[1].endpoints == {"PLAINTEXT": Endpoint("h", 9092)}


def test_an_older_image_is_not_disturbed_and_shares_what_did_not_change(cluster: Cluster) -> None:
    cluster.create("a")
    cluster.create("b")
    before = cluster.image
    cluster.commit(grow_topic(cluster.image, "a", 3))
    assert len(before.topics["a"].partitions) == 1
    assert len(cluster.image.topics["a"].partitions) == 3
    assert cluster.image.topics["b"] is before.topics["b"]
    assert cluster.image.topics["a"].partitions[0] is before.topics["a"].partitions[0]


def test_a_change_to_one_partition_leaves_the_others_as_they_were(cluster: Cluster) -> None:
    cluster.create("a", partitions=3)
    before = cluster.image.topics["a"]
    change = Put(KEYS.partition(before.id, 1), partition(leader=-1, isr=()))
    after = apply(cluster.image, [change], 99).topics["a"]
    assert after.partitions[1] == PartitionState(1, -1, 0, (1,), (), 0, revision=99)
    assert after.partitions[0] is before.partitions[0]
    assert after.revision == before.revision


def test_changes_are_told_by_kind(cluster: Cluster) -> None:
    for name in ("kept", "grown", "configured", "both", "gone", "again"):
        cluster.create(name)
    before = cluster.image
    cluster.commit(grow_topic(cluster.image, "grown", 2))
    cluster.commit(alter_topic_config(cluster.image, "configured", {"a": "b"}, accept_any))
    cluster.commit(grow_topic(cluster.image, "both", 5))
    cluster.commit(alter_topic_config(cluster.image, "both", {"a": "b"}, accept_any))
    cluster.commit(delete_topic(cluster.image, name="gone"))
    cluster.commit(delete_topic(cluster.image, name="again"))
    cluster.create("again")
    cluster.create("a-new-one")
    cluster.commit(bump_leader_epochs(cluster.image))
    after = cluster.image
    assert changed_topics(before, after) == TopicChanges(
        created=(after.topics["a-new-one"], after.topics["again"]),
        deleted=(before.topics["again"], before.topics["gone"]),
        grown=(Grown(after.topics["both"], 1), Grown(after.topics["grown"], 1)),
        reconfigured=(after.topics["both"], after.topics["configured"]),
    )
    assert changed_topics(after, after) == TopicChanges((), (), (), ())


def test_a_topic_replaced_in_one_transaction_has_only_its_new_partitions(cluster: Cluster) -> None:
    cluster.create("t", partitions=2)
    old = cluster.image.topics["t"]
    changes: list[Change] = [
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
        (
            [Put(KEYS.topic("t"), topic(1)), Put(PART(ID, 0), partition()), Put(PART(ID, 1), partition())],
            "topics/t: it says 1 partitions",
        ),
        ([Put(KEYS.topic("t"), topic(1)), Put(PART(ID, 1), partition())], "topics/t: it says 1 partitions"),
        ([Put(PART(ID, 3), partition())], f"partitions/{ID_TEXT}/3: it has no topic"),
        ([Put(KEYS.topic("t"), topic(1, "short"))], "topics/t: 'short' is not a topic id"),
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
    cluster.create("t", partitions=2)
    with pytest.raises(CorruptData, match="topics/t: it says 2 partitions"):
        apply(cluster.image, [Delete(KEYS.partition(cluster.image.topics["t"].id, 1))], 50)


NAMES = st.sampled_from(["a", "b", "c.d", "e-f"])
STEPS = st.one_of(
    st.tuples(st.just("create or grow"), NAMES, st.integers(1, 3)),
    st.tuples(st.just("delete"), NAMES, st.just(0)),
    st.tuples(st.just("configure"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("configure broker"), st.just(""), st.integers(0, 2)),
    st.tuples(st.just("bump"), st.just(""), st.just(0)),
    st.tuples(st.just("producer ids"), st.just(""), st.just(0)),
    st.tuples(st.just("register"), st.just("rack"), st.integers(1, 3)),
)


def take(cluster: Cluster, step: tuple[str, str, int]) -> None:
    action, name, number = step
    known = cluster.image.topics.get(name)
    overrides = {"retention.ms": "1"} if number == 1 else {}
    match action:
        case "create or grow" if known is None:
            cluster.create(name, number)
        case "create or grow" if known is not None:
            cluster.commit(grow_topic(cluster.image, name, len(known.partitions) + number))
        case "delete" if known is not None:
            cluster.commit(delete_topic(cluster.image, topic_id=known.id))
        case "configure" if known is not None:
            cluster.commit(alter_topic_config(cluster.image, name, overrides, accept_any))
        case "configure broker":
            broker_id = 1 if number == 2 else None
            cluster.commit(alter_broker_config(cluster.image, broker_id, overrides, accept_any))
        case "bump":
            cluster.commit(bump_leader_epochs(cluster.image))
        case "producer ids":
            cluster.commit(next_producer_id_block(cluster.image).decision)
        case "register":
            cluster.commit(register_broker(cluster.image, number, rack=name, endpoints={}))


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
    cluster.close()
