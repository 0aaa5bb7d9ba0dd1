"""What the broker's storage has on the platter, not only in memory, whenever it says so.

The disk is the simulator's. A power failure keeps an arbitrary part of what was not synced, so each
promise is tried with several seeds: one that survives by luck does not survive them all.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from penstock.broker.storage.flusher import Flusher
from penstock.broker.storage.partition_storage import Storage
from penstock.config.broker import BrokerConfig
from penstock.config.topic import FlushPolicy
from penstock.host.file_sync import ThreadSync
from penstock.host.syscalls.short_timer import LoopTimer
from penstock.host.worker import Worker
from penstock.log.data_directory import DataDirectory, open_directory
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.observability.logs import NullLog
from penstock.replication.partition import Partition
from penstock.sim.disk import Mount, SimDisk
from penstock.types import NodeId, TopicId
from tests.unit.broker.support import NOW_MS, CountingRandomness, FixedClock
from tests.unit.log.log_support import append

SEEDS = range(12)
PATH = "disk/data"
NODE = NodeId(1)
PARTITIONS = 4
HOUR_MS = 3600 * 1000
OWNER_FILES = [f"{PATH}/logs/orders-{index}/partition.metadata" for index in range(PARTITIONS)]
ENTRIES_IN_WHOLE_SECTORS = 129
"""The first batch has no entry, and 128 of twelve bytes fill three sectors: a tear there is not odd."""


def new_disk(seed: int) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.open_files_max = 4 * PARTITIONS
    disk.mount().make_folder("disk")
    disk.root.sync()
    return disk


def opened(mount: Mount) -> DataDirectory:
    return open_directory(mount, PATH, NODE, CountingRandomness(first=1))


def one_topic() -> ClusterImage:
    states = tuple(
        PartitionState((NODE,), NODE, 1, (NODE,), 0, index=index, revision=1) for index in range(PARTITIONS)
    )
    topic = Topic("orders", TopicId(b"o" * 16), False, NOW_MS, {}, states, 1)
    return ClusterImage(
        cluster_id="c",
        revision=1,
        topics={topic.name: topic},
        topics_by_id={topic.id: topic},
        partition_count=PARTITIONS,
    )


def configured() -> BrokerConfig:
    """Nothing is flushed but by recovery and by checkpoints; every batch but the first has index entries."""
    base = BrokerConfig.of()
    return base._replace(
        topic_defaults=base.topic_defaults._replace(
            flush_policy=FlushPolicy.OS,
            segment_ms=55 * HOUR_MS,
            retention_ms=24 * HOUR_MS,
            index_interval_bytes=1,
        )
    )


@asynccontextmanager
async def process(disk: SimDisk) -> AsyncIterator[tuple[Storage, list[Partition]]]:
    """One that is killed at the end of the block: nothing of it reaches the disk any more."""
    mount = disk.mount()
    workers = tuple(Worker(name, asyncio.get_running_loop()) for name in ("flush", "storage"))
    try:
        log_sync = ThreadSync(mount, workers[0])
        flusher = Flusher(log_sync, LoopTimer(asyncio.get_running_loop()), FixedClock())
        storage = Storage(opened(mount), configured, flusher, workers[1], FixedClock(), NullLog())
        storage.open(one_topic())
        yield storage, storage.partitions.of_topic("orders")
    finally:
        for worker in workers:
            worker.stop()
        mount.is_dead = True


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_a_start_shows_is_durable_although_another_process_wrote_it(seed: int) -> None:
    """Also its folder, and the file that says whose it is: the one who made them never synced them."""
    disk = new_disk(seed)
    async with process(disk) as (_, partitions):
        for partition in partitions:
            append(partition.log, [b"written and not flushed"])
    owners = [disk.mount().read_file(path) for path in OWNER_FILES]
    async with process(disk) as (_, partitions):
        assert [partition.high_watermark for partition in partitions] == [1] * PARTITIONS
    disk.lose_power()
    assert [disk.mount().read_file(path) for path in OWNER_FILES] == owners
    assert all(owners)
    async with process(disk) as (_, partitions):
        assert [partition.high_watermark for partition in partitions] == [1] * PARTITIONS


@pytest.mark.parametrize("seed", range(20))
async def test_after_a_power_failure_retention_still_knows_how_old_records_are(seed: int) -> None:
    """Below a checkpoint time indexes are believed. One that lost its end makes a segment seem older."""
    disk = new_disk(seed)
    long_ago, lately = NOW_MS - 60 * HOUR_MS, NOW_MS - 10 * HOUR_MS
    async with process(disk) as (storage, partitions):
        for partition in partitions:
            for number in range(ENTRIES_IN_WHOLE_SECTORS):
                append(partition.log, [b"old"], [long_ago + number])
            append(partition.log, [b"to be kept"], [lately])
            append(partition.log, [b"in the next segment"], [NOW_MS])
        await storage.checkpoints.run(partitions)
    disk.lose_power()
    async with process(disk) as (storage, partitions):
        for partition in partitions:
            await storage.retention.enforce(partition)
            assert [facts.newest_timestamp for facts in partition.log.segment_facts()] == [lately, NOW_MS]
            assert partition.log.log_start_offset == 0, "records that are not a day old were dropped"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mark_of_a_clean_stop_does_not_come_back_after_a_power_failure(seed: int) -> None:
    """It would hide that there was no clean stop, and the leader epoch would not be raised."""
    disk = new_disk(seed)
    opened(disk.mount()).write_clean_shutdown_mark()
    disk.lose_power()
    assert opened(disk.mount()).consume_clean_shutdown_mark()
    disk.lose_power()
    assert not opened(disk.mount()).consume_clean_shutdown_mark()
