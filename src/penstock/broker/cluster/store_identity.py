"""Whether the metadata store has the history that this broker has seen.

A store that is put back from an older copy begins another history. At first it is not as far as the broker
has seen it; later it is, by changes that were never made in the first one. So a broker notes the revision it
has seen last, and what was changed there, and looks at both before it starts.

Rule 1: a store that no longer has the changes of that revision is believed.
Rule 2: one that says nothing of them is neither believed nor called another: it may only be slow.
"""

import asyncio
import hashlib
from contextlib import aclosing

from penstock.errors import ConfigError
from penstock.host.metadata_store import Event, HistoryCompacted, MetadataStore, Put, StoreUnavailable
from penstock.limits import ETCD_PATIENCE_MS_MAX
from penstock.log.data_directory import REVISION_FILE, DataDirectory, StoreProgress


def store_progress_of(latest: Event | None, revision: int) -> StoreProgress:
    """`revision`: how far the store was seen. `latest`: what it showed last, unless it was read whole."""
    if latest is None or latest.revision != revision or not latest.changes:
        return StoreProgress(revision)
    return StoreProgress(revision, _digest(latest))


async def require_same_history(
    store: MetadataStore, prefix: str, revision: int, directory: DataDirectory
) -> None:
    """ConfigError if it is another, StoreAway if it does not say. `revision`: how far the store is."""
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
    """Whether a store that is at least as far shows what was seen, or no longer can."""
    if not seen.digest:
        return True
    try:
        async with (
            asyncio.timeout(ETCD_PATIENCE_MS_MAX / 1000),
            aclosing(store.watch(prefix, seen.revision - 1)) as events,
        ):
            async for event in events:
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
