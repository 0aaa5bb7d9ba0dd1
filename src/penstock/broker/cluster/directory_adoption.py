"""Adoption of a data directory: a single broker becomes the first member of a cluster, and the undo of that.

    adopt:  read own store ──→ clear leftovers ──→ write the shared store ──→ read it back ──→ mark
    undo:   check that no broker used the shared store ──→ unmark ──→ clear it

The mark is part of the directory's identity file. Without the mark, the directory's own store is valid and
the broker starts alone as before. With the mark, the shared store is valid. So whenever the command ends,
even if it is killed, exactly one store is valid, and the command can be run again or undone.

Rule: the directory is locked during the whole command, so a running broker is never adopted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.controller.adoption import (
    STORE_PREFIX,
    cleanup_transaction,
    import_transactions,
    shared_facts,
    verify_written,
)
from penstock.controller.decision import Decision
from penstock.errors import CommandFailed, ConfigError
from penstock.host.disk import Disk
from penstock.host.folder_lock import DirectoryInUse, FolderLock
from penstock.host.metadata_store import Conflict, MetadataStore, StoreRejected, StoreUnavailable
from penstock.host.randomness import Randomness
from penstock.log.data_directory import (
    IDENTITY_FILE,
    METADATA_FILE,
    DirectoryIdentity,
    identity_in,
    new_id,
    set_membership,
)
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.keys import CLUSTER_ID_KEY, ClusterKeys
from penstock.metadata.sqlite_store import SqliteStore


@dataclass(frozen=True, slots=True)
class Adopted:
    identity: DirectoryIdentity
    image: ClusterImage


async def adopt_directory(
    disk: Disk, path: str, store: MetadataStore, randomness: Randomness
) -> Adopted | None:
    """Adopt a data directory. None: it already belongs to the cluster in that store, and nothing changed."""
    with _locked(disk, path) as identity, _store_errors():
        if identity.is_member:
            await _require_its_own(store, path, identity.cluster_id)
            return None
        if not disk.exists(f"{path}/{METADATA_FILE}"):
            raise ConfigError(f"{path} holds no {METADATA_FILE}: no broker has been alone in it")
        prefix = ClusterKeys(identity.cluster_id).prefix
        own = SqliteStore(f"{path}/{METADATA_FILE}")
        try:
            image, facts = shared_facts(own.read(prefix), identity, new_id(randomness))
        finally:
            own.close()
        # An earlier attempt may have ended after some transactions: each of them requires absent keys.
        await _clear(store, identity)
        for piece in import_transactions(facts, identity.cluster_id, store.changes_max):
            await _commit(store, piece)
        # The mark is last, after the shared store was read back: from the mark on, the broker ignores its own
        # store.
        verify_written(await store.read(prefix), facts)
        set_membership(disk, path, is_member=True)
        return Adopted(identity, image)


async def release_directory(disk: Disk, path: str, store: MetadataStore) -> DirectoryIdentity | None:
    """Undo an adoption. None: there was nothing to undo.

    ConfigError: a broker has used the shared store since the adoption.
    """
    with _locked(disk, path) as identity, _store_errors():
        if not disk.exists(f"{path}/{METADATA_FILE}"):
            raise ConfigError(f"{path} was never that of a broker which is alone, and cannot become one")
        leftovers = cleanup_transaction(await store.read(STORE_PREFIX), identity)
        if leftovers is None and not identity.is_member:
            return None
        # Unmarked before the shared store is cleared: at no time does the mark refer to a cleared store.
        set_membership(disk, path, is_member=False)
        await _clear(store, identity)
        return identity


@contextmanager
def _locked(disk: Disk, path: str) -> Iterator[DirectoryIdentity]:
    if not disk.exists(f"{path}/{IDENTITY_FILE}"):
        raise ConfigError(
            f"{path} is not a data directory of Penstock: give that of a broker with --data-dir"
        )
    try:
        lock = FolderLock(path)
    except DirectoryInUse as problem:
        how = f" with `kill {problem.owner}`" if problem.owner else ""
        raise CommandFailed(f"{problem}. Stop that broker first{how}") from problem
    try:
        yield identity_in(disk, path)
    finally:
        lock.release()


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, StoreRejected) as problem:
        raise CommandFailed(
            f"the metadata store cannot be used: {problem}. Nothing has changed for the broker; "
            "run the command again"
        ) from problem


async def _require_its_own(store: MetadataStore, path: str, cluster_id: str) -> None:
    """ConfigError unless the store holds the cluster of the data directory."""
    held = (await store.read(CLUSTER_ID_KEY)).entries.get(CLUSTER_ID_KEY)
    if held is None or held.value != cluster_id.encode():
        found = "no cluster" if held is None else f"cluster {held.value.decode(errors='replace')}"
        raise ConfigError(
            f"{path} belongs to cluster {cluster_id}, and the metadata store holds {found}: give the store "
            "of its own cluster with --metadata, or the data directory of a broker that is alone"
        )


async def _clear(store: MetadataStore, member: DirectoryIdentity) -> None:
    leftovers = cleanup_transaction(await store.read(STORE_PREFIX), member)
    if leftovers is not None:
        await _commit(store, leftovers)


async def _commit(store: MetadataStore, piece: Decision) -> None:
    if isinstance(await store.transact(piece.compares, piece.changes), Conflict):
        raise CommandFailed(
            "another process writes to the metadata store: find out which, and run the command again"
        )
