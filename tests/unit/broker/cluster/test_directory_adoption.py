"""A broker that was alone becomes the first of a cluster, whatever ends the command in the middle."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock.broker.cluster.directory_adoption import Adopted, adopt_directory, release_directory
from penstock.errors import CommandFailed, ConfigError, CorruptData
from penstock.host.disk import SmallFile
from penstock.host.folder_lock import FolderLock
from penstock.host.metadata_store import (
    ABSENT,
    CommittedTransaction,
    Compare,
    Conflict,
    Delete,
    MetadataStore,
    Put,
    Snapshot,
    StoreChange,
    StoreUnavailable,
)
from penstock.host.os_disk import OsDisk
from penstock.host.randomness import SystemRandomness
from penstock.log.data_directory import DirectoryIdentity, identity_in, reject_other_store_kind
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import BrokerSessionValue, BrokerValue, encode_document
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import CLUSTER_ID_KEY, ClusterKeys
from penstock.metadata.sqlite_store import MEMORY, SqliteStore
from penstock.testing import broker

CHANGES_MAX = 4
STEPS_MAX = 40


class Killed(BaseException):
    """As by signal 9: nothing more is done."""


class Steps:
    """Counts what is done to the world, and ends everything before or after one of them."""

    def __init__(self, killed_at: int | None = None, *, is_done: bool = False) -> None:
        self.count = 0
        self._killed_at = killed_at
        self._is_done = is_done

    def step(self, act: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count == self._killed_at and not self._is_done:
            raise Killed
        outcome = act()
        if self.count == self._killed_at:
            raise Killed
        return outcome


class SharedStore:
    """In memory, and with room for few changes in a transaction."""

    changes_max = CHANGES_MAX

    def __init__(self, file: SqliteStore, steps: Steps) -> None:
        self._file = file
        self._steps = steps
        self.is_away = False

    async def read(self, prefix: str) -> Snapshot:
        if self.is_away:
            raise StoreUnavailable("nobody answers")
        return self._file.read(prefix)

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        assert max(len(compares), len(changes)) <= CHANGES_MAX
        return cast(
            CommittedTransaction | Conflict, self._steps.step(lambda: self._file.transact(compares, changes))
        )


class Disk(OsDisk):
    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def store(self, writes: Sequence[SmallFile]) -> None:
        self._steps.step(lambda: super(Disk, self).store(writes))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was alone, with some topics and records."""
    path = tmp_path_factory.mktemp("alone") / "data"
    with broker(path) as alone:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": alone.bootstrap}
        admin = AdminClient(servers)
        wanted = [
            NewTopic("orders", num_partitions=9, config={"retention.ms": "-1"}),
            NewTopic("payments", num_partitions=2),
        ]
        for created in admin.create_topics(wanted).values():
            created.result(10)
        producer = Producer(servers | {"enable.idempotence": True})
        producer.produce("orders", b"3 apples", partition=7)
        assert producer.flush(10) == 0
    return path


@pytest.fixture
def folder(origin: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(origin, tmp_path / "data"))


@pytest.fixture
def shared() -> SqliteStore:
    return SqliteStore(MEMORY)


async def adopt(folder: str, shared: SqliteStore, steps: Steps | None = None) -> Adopted | None:
    steps = steps or Steps()
    store = cast(MetadataStore, SharedStore(shared, steps))
    return await adopt_directory(Disk(steps), folder, store, SystemRandomness())


async def undo(folder: str, shared: SqliteStore, steps: Steps | None = None) -> DirectoryIdentity | None:
    steps = steps or Steps()
    return await release_directory(Disk(steps), folder, cast(MetadataStore, SharedStore(shared, steps)))


def own_image(folder: str) -> ClusterImage:
    store = SqliteStore(f"{folder}/metadata.sqlite")
    try:
        cluster_id = identity_in(OsDisk(), folder).cluster_id
        return image_of(store.read(ClusterKeys(cluster_id).prefix), cluster_id)
    finally:
        store.close()


def shared_image(folder: str, shared: SqliteStore) -> ClusterImage:
    cluster_id = identity_in(OsDisk(), folder).cluster_id
    assert shared.read(CLUSTER_ID_KEY).entries[CLUSTER_ID_KEY].value == cluster_id.encode()
    return image_of(shared.read(ClusterKeys(cluster_id).prefix), cluster_id)


def without_revisions(image: ClusterImage) -> object:
    topics = {
        name: (topic.id, topic.overrides, [(p.replicas, p.isr, p.leader_epoch) for p in topic.partitions])
        for name, topic in image.topics.items()
    }
    return topics, image.producer_ids.next_id, sorted(image.brokers)


def require_adopted(folder: str, shared: SqliteStore) -> None:
    image = shared_image(folder, shared)
    assert without_revisions(image) == without_revisions(own_image(folder))
    assert image.brokers[1].directory_id == identity_in(OsDisk(), folder).directory_id
    assert not image.brokers[1].is_embedded
    reject_other_store_kind(OsDisk(), folder, is_standalone=False)
    with pytest.raises(CorruptData, match="start it with --metadata"):
        reject_other_store_kind(OsDisk(), folder, is_standalone=True)


def require_alone(folder: str) -> None:
    reject_other_store_kind(OsDisk(), folder, is_standalone=True)
    with pytest.raises(CorruptData, match="penstock cluster adopt"):
        reject_other_store_kind(OsDisk(), folder, is_standalone=False)


async def test_all_that_a_broker_knows_is_in_the_shared_store(folder: str, shared: SqliteStore) -> None:
    adopted = await adopt(folder, shared)
    assert adopted is not None
    assert sorted(adopted.image.topics) == ["orders", "payments"]
    require_adopted(folder, shared)
    assert await adopt(folder, shared) is None  # it is one already


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_killed_at_any_step_it_is_run_again(origin: Path, tmp_path: Path, is_done: bool) -> None:
    for step in range(1, STEPS_MAX):
        folder, shared = str(shutil.copytree(origin, tmp_path / str(step))), SqliteStore(MEMORY)
        steps = Steps(step, is_done=is_done)
        try:
            await adopt(folder, shared, steps)
        except Killed:
            pass
        else:
            break
        if not identity_in(OsDisk(), folder).is_member:
            require_alone(folder)
            assert await adopt(folder, shared) is not None
        require_adopted(folder, shared)
    assert steps.count > 5, "it was killed at several steps"
    assert step == steps.count + 1


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_killed_at_any_step_it_is_undone(origin: Path, tmp_path: Path, is_done: bool) -> None:
    for step in range(1, STEPS_MAX):
        folder, shared = str(shutil.copytree(origin, tmp_path / str(step))), SqliteStore(MEMORY)
        try:
            await adopt(folder, shared, Steps(step, is_done=is_done))
        except Killed:
            pass
        else:
            break
        await undo(folder, shared)
        require_alone(folder)
        assert not shared.read("/").entries
    assert step > 5


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [1, 2])
async def test_an_undoing_that_is_killed_can_be_run_again(
    folder: str, shared: SqliteStore, step: int, is_done: bool
) -> None:
    await adopt(folder, shared)
    with pytest.raises(Killed):
        await undo(folder, shared, Steps(step, is_done=is_done))
    await undo(folder, shared)
    require_alone(folder)
    assert not shared.read("/").entries
    assert await adopt(folder, shared) is not None


async def test_where_nothing_was_adopted_there_is_nothing_to_undo(folder: str, shared: SqliteStore) -> None:
    await adopt(folder, shared)
    assert await undo(folder, shared) is not None
    assert await undo(folder, shared) is None


async def test_a_member_of_another_cluster_is_not_said_to_be_one_of_this(
    folder: str, shared: SqliteStore
) -> None:
    await adopt(folder, shared)
    with pytest.raises(ConfigError, match="the metadata store holds no cluster"):
        await adopt(folder, SqliteStore(MEMORY))
    shared.transact([], [Put(CLUSTER_ID_KEY, b"another")])
    with pytest.raises(ConfigError, match="the metadata store holds cluster another"):
        await adopt(folder, shared)


async def test_what_the_broker_did_after_an_interrupted_try_is_taken_too(
    folder: str, shared: SqliteStore
) -> None:
    last = Steps()
    await adopt(folder, SqliteStore(MEMORY), last)
    await undo(folder, SqliteStore(MEMORY))
    with pytest.raises(Killed):
        await adopt(folder, shared, Steps(last.count))  # all but the mark
    with broker(folder) as alone:
        admin = AdminClient({"bootstrap.servers": alone.bootstrap})
        admin.create_topics([NewTopic("refunds", num_partitions=1)])["refunds"].result(10)
        admin.delete_topics(["payments"])["payments"].result(10)
    assert await adopt(folder, shared) is not None
    assert sorted(shared_image(folder, shared).topics) == ["orders", "refunds"]


async def test_a_store_with_another_cluster_is_refused(folder: str, shared: SqliteStore) -> None:
    shared.transact([], [Put(CLUSTER_ID_KEY, b"another")])
    with pytest.raises(ConfigError, match="holds another cluster already"):
        await adopt(folder, shared)
    shared.transact([], [Delete(CLUSTER_ID_KEY), Put("/penstock/another/producer_ids/next_block", b"{}")])
    with pytest.raises(ConfigError, match="holds another cluster already"):
        await adopt(folder, shared)
    require_alone(folder)


@pytest.mark.parametrize("user", ["another broker", "itself", "a session"])
async def test_what_somebody_used_is_neither_overwritten_nor_undone(
    folder: str, shared: SqliteStore, user: str
) -> None:
    await adopt(folder, shared)
    keys = ClusterKeys(identity_in(OsDisk(), folder).cluster_id)
    puts = {
        "another broker": Put(keys.broker(2), encode_document(BrokerValue(None, {}, incarnation="i"))),
        "itself": Put(
            keys.broker(1), encode_document(BrokerValue(None, {}, incarnation="i", admitted_epoch=7))
        ),
        "a session": Put(keys.live(1), encode_document(BrokerSessionValue("i", "d"))),
    }
    shared.transact([], [puts[user]])
    with pytest.raises(ConfigError, match="used it since"):
        await undo(folder, shared)
    assert identity_in(OsDisk(), folder).is_member


async def test_a_broker_that_runs_is_not_adopted(folder: str, shared: SqliteStore) -> None:
    lock = FolderLock(folder)
    with pytest.raises(CommandFailed, match=f"in use by process {os.getpid()}. Stop that broker first"):
        await adopt(folder, shared)
    lock.release()
    assert not shared.read("/").entries


async def test_a_store_that_is_away_changes_nothing(folder: str, shared: SqliteStore) -> None:
    store = SharedStore(shared, Steps())
    store.is_away = True
    with pytest.raises(CommandFailed, match="Nothing has changed"):
        await adopt_directory(OsDisk(), folder, cast(MetadataStore, store), SystemRandomness())
    require_alone(folder)


async def test_a_folder_that_is_none_of_a_broker_is_refused(tmp_path: Path, shared: SqliteStore) -> None:
    with pytest.raises(ConfigError, match="not a data directory"):
        await adopt(str(tmp_path), shared)
    assert OsDisk().list_folder(str(tmp_path)) == []


async def test_a_conflict_is_told(folder: str, shared: SqliteStore) -> None:
    class Busy(SharedStore):
        async def transact(self, compares: Sequence[Compare], changes: Sequence[StoreChange]) -> Conflict:
            return Conflict(ABSENT)

    store = cast(MetadataStore, Busy(shared, Steps()))
    with pytest.raises(CommandFailed, match="another process writes"):
        await adopt_directory(OsDisk(), folder, store, SystemRandomness())
    require_alone(folder)
