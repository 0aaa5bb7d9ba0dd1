"""Check that the metadata store has the history that this broker has seen.

A store that was restored from an older copy continues with another history. At first its revision is below
the last revision that the broker has seen. Later its revision is higher, through changes that never happened
in the original history. So a broker stores the last revision it has seen and a digest of the changes of that
revision, and checks both before it starts.

Rule 1: a store that has compacted the changes of that revision passes the check.
Rule 2: a store that does not return these changes in time neither passes nor fails: it may only be slow. The
        check raises StoreUnavailable.
"""

import asyncio
import hashlib
from contextlib import aclosing

from penstock.errors import ConfigError
from penstock.host.metadata_store import Event, HistoryCompacted, MetadataStore, Put, StoreUnavailable
from penstock.limits import ETCD_CALL_MS_MAX
from penstock.log.data_directory import REVISION_FILE, DataDirectory, StoreProgress


def store_progress_of(latest: Event | None, revision: int) -> StoreProgress:
    """Build the note of the last seen revision.

    `revision`: the last seen revision. `latest`: the last event of the watch; None if the store was read
    whole.
    """
    if latest is None or latest.revision != revision or not latest.changes:
        return StoreProgress(revision)
    return StoreProgress(revision, _digest(latest))


async def require_same_history(
    store: MetadataStore, prefix: str, revision: int, directory: DataDirectory
) -> None:
    """Compare the store with the data directory's note. `revision`: the current revision of the store.

    ConfigError: the store has another history. StoreUnavailable: the store did not return the changes.
    """
    seen = directory.load_store_progress()
    if revision < seen.revision:
        raise _restored_store_error(
            f"is at revision {revision}, and this broker has seen {seen.revision}", directory
        )
    if not await shows_same_change(store, prefix, seen):
        raise _restored_store_error(
            f"shows another change at revision {seen.revision} than this broker has seen there", directory
        )


async def shows_same_change(store: MetadataStore, prefix: str, seen: StoreProgress) -> bool:
    """Check that the store returns the changes that were seen, or has compacted them.

    The caller has checked that the store's revision is not below `seen`.
    """
    if not seen.digest:
        return True
    try:
        async with (
            asyncio.timeout(ETCD_CALL_MS_MAX / 1000),
            aclosing(store.watch(prefix, seen.revision - 1)) as events,
        ):
            async for event in events:
                # An event without changes only reports progress: it decides nothing at the same revision.
                if event.changes or event.revision > seen.revision:
                    return event.revision == seen.revision and _digest(event) == seen.digest
    except HistoryCompacted:
        return True
    except TimeoutError:
        raise StoreUnavailable(
            f"it does not say what was changed at revision {seen.revision}, which this broker has seen: "
            "it is slow, or it was put back from an older copy (docs/cluster.md, Backup and restore)"
        ) from None
    raise StoreUnavailable(f"it said nothing of what was changed at revision {seen.revision}")


def _digest(event: Event) -> str:
    digest = hashlib.sha256()
    for change in sorted(event.changes, key=lambda change: change.key):
        value = change.value if isinstance(change, Put) else None
        digest.update(repr((change.key, value)).encode())
    return digest.hexdigest()[:16]


def _restored_store_error(what: str, directory: DataDirectory) -> ConfigError:
    return ConfigError(
        f"the metadata store {what}: it was put back from an older copy. Put back the one that belongs to "
        f"{directory.path}; to go on with this one, and without what was made since, remove "
        f"{directory.path}/{REVISION_FILE}, and that of every other broker"
    )
