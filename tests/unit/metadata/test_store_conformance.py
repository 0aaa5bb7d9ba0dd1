"""The stores that need no other process keep the promises of every store."""

import asyncio
from random import Random

import pytest

from penstock.host.metadata_store import MetadataStore
from penstock.host.worker import Worker
from penstock.metadata.embedded_store import EmbeddedStore
from penstock.metadata.sqlite_store import MEMORY, SqliteStore
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import SimStore, StoreFaults
from tests.unit.metadata.store_conformance import CHECKS, Check, expect_history_gone, put


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_embedded_store(check: Check) -> None:
    worker = Worker("metadata", asyncio.get_running_loop())
    store: MetadataStore = EmbeddedStore(SqliteStore(MEMORY), worker)
    try:
        await check(lambda: store)
    finally:
        await store.close()
        worker.stop()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_store(check: Check) -> None:
    loop = VirtualTimeLoop(Random(1))
    store = SimStore(loop, Random(2), StoreFaults(delay_seconds=(0.0, 0.02)))

    async def run() -> None:
        await check(store.client)

    loop.run_until_complete(run())
    loop.close()


async def test_a_watcher_of_the_embedded_store_that_is_far_behind_must_read_again() -> None:
    worker = Worker("metadata", asyncio.get_running_loop())
    store = EmbeddedStore(SqliteStore(MEMORY), worker)
    for _ in range(1_002):
        await put(store, "/k")
    await expect_history_gone(store.watch("/", 1))
    await store.close()
    worker.stop()
