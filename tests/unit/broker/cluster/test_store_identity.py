"""A broker starts only with a metadata store that has the history it has seen."""

from collections.abc import Iterator
from random import Random

import pytest

from penstock.broker.cluster.store_identity import require_same_history, store_progress_of
from penstock.errors import ConfigError
from penstock.host.metadata_store import Event, Put, StoreUnavailable
from penstock.log.data_directory import DataDirectory, DirectoryIdentity, StoreProgress
from penstock.sim.disk import SimDisk
from penstock.sim.network import NetworkLoop
from penstock.sim.store import SimStore, StoreFaults


def event(revision: int, *keys: str) -> Event:
    return Event(revision, tuple(Put(key, b"1") for key in keys))


def directory_that_has_seen(latest: Event | None) -> DataDirectory:
    disk = SimDisk(Random(1)).mount()
    disk.make_folder("/data")
    identity = DirectoryIdentity(format=1, cluster_id="c", node_id=1, directory_id="d", is_member=True)
    directory = DataDirectory(disk, "/data", identity)
    directory.store_progress = store_progress_of(latest, 0 if latest is None else latest.revision)
    disk.store([directory.store_progress_file()])
    return directory


def start(store: SimStore, directory: DataDirectory) -> None:
    loop = store._loop
    loop.run_until_complete(require_same_history(store.client(), "/", store.revision, directory))


@pytest.fixture
def store() -> Iterator[SimStore]:
    """Whose last change, at revision 3, was about /b and /c."""
    loop = NetworkLoop(Random(1))
    store = SimStore(loop, Random(1), StoreFaults(delay_seconds=(0.001, 0.002)))
    store.transact([], [Put("/a", b"1")])
    store.transact([], [Put("/b", b"1"), Put("/c", b"1")])
    yield store
    loop.close()


@pytest.mark.parametrize(
    "latest",
    [None, event(2, "/a"), event(3, "/b", "/c"), event(3, "/c", "/b"), Event(3, ())],
    ids=["nothing", "earlier", "the last", "in another order", "no keys"],
)
def test_a_store_with_the_same_history_is_taken(store: SimStore, latest: Event | None) -> None:
    start(store, directory_that_has_seen(latest))


def test_a_store_whose_history_is_gone_is_believed(store: SimStore) -> None:
    store.compact()
    start(store, directory_that_has_seen(event(2, "/something")))


@pytest.mark.parametrize(
    ("latest", "why"),
    [
        (event(4, "/d"), "is at revision 3, and this broker has seen 4"),
        (event(3, "/b"), "shows another change at revision 3"),
        (event(2, "/c"), "shows another change at revision 2"),
    ],
)
def test_a_store_that_was_put_back_is_refused(store: SimStore, latest: Event, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refusal:
        start(store, directory_that_has_seen(latest))
    assert "remove /data/store-revision" in str(refusal.value)


def test_another_history_that_changed_the_same_keys_is_refused(store: SimStore) -> None:
    store_progress = Event(3, (Put("/b", b"1"), Put("/c", b"another value")))
    with pytest.raises(ConfigError, match="shows another change at revision 3"):
        start(store, directory_that_has_seen(store_progress))


def test_a_store_without_its_history_is_neither_accepted_nor_called_another(
    store: SimStore,
) -> None:
    store.transact([], [Put("/b", b"2")])
    store.revision = 9  # somebody who shares it
    with pytest.raises(StoreUnavailable, match=r"at revision 7.* slow, or it was put back"):
        start(store, directory_that_has_seen(event(7, "/topic")))


def test_what_was_read_whole_is_noted_without_what_was_changed_there() -> None:
    assert store_progress_of(None, 7) == StoreProgress(7)
    assert store_progress_of(event(5, "/a"), 7) == StoreProgress(7)
    assert store_progress_of(event(7, "/a"), 7).digest
