"""Damage that nobody asked for: the cleaner or retention finds it, in a broker with a real disk."""

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import RunningBroker
from penstock.errors import CorruptData
from penstock.limits import MIB
from penstock.log.compaction.cleaning_job import CleaningJob
from penstock.log.file_uses import FileUse
from penstock.log.segment import Segment
from penstock.replication.partition import Partition
from tests.unit.broker.storage.test_broker_compaction import (
    LOGS,
    InlineCleaner,
    broker_with,
    fill,
    found,
    make,
)

LENGTH_POSITION = 8


def flip(path: Path, position: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    return bytes(content)


async def test_damage_that_the_cleaner_finds_is_handed_over_and_others_are_cleaned(tmp_path: Path) -> None:
    path = tmp_path / LOGS / "bad-0" / "00000000000000000000.log"
    async with broker_with(tmp_path) as broker:
        told: list[Partition] = []
        broker.storage.on_damage = told.append
        bad, good = await make(broker, "bad"), await make(broker, "good")
        await fill(broker, bad, 4)
        await fill(broker, good, 3)
        content = flip(path, 5_000)
        names = [await broker.compaction.clean_dirtiest() for _ in range(3)]
        assert set(names) == {bad.name, good.name, None}
        assert (told, bad.is_damaged, broker.compaction.uncleanable) == ([bad], True, {})
        assert bad.offline_error is not None
        assert "checksum" in bad.offline_error.detail
        assert path.read_bytes() == content
        assert not [name for name in path.parent.iterdir() if name.name.endswith(".cleaned")]
        assert good.log.size_bytes < 2 * MIB
        assert broker.compaction.failures == 1
    async with broker_with(tmp_path) as broker:
        assert found(broker, "bad").is_damaged, "a restart does not forget it"


async def test_what_the_cleaner_meets_in_a_log_that_is_being_cut_is_no_damage(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 3)
        broker.compaction.cleaner = cleaner = InlineCleaner(broker)

        async def cut(_: CleaningJob) -> None:
            partition.log.file_uses.begin(FileUse.TRUNCATION)
            raise CorruptData("a batch of which half is there")

        cleaner.meanwhile = cut
        await broker.compaction.clean_dirtiest()
        partition.log.file_uses.end(FileUse.TRUNCATION)
        assert (partition.offline_error, broker.compaction.failures) == (None, 0)


async def by_ranking(broker: RunningBroker, partition: Partition) -> None:
    assert await broker.compaction.clean_dirtiest() is None


async def by_retention(broker: RunningBroker, partition: Partition) -> None:
    await broker.storage.retention.enforce(partition)


def lose_times(folder: Path) -> None:
    """The newest time of a segment is then read from its batches, of which one is damaged."""
    (folder / f"{0:020d}.timeindex").unlink()
    log = folder / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[LENGTH_POSITION : LENGTH_POSITION + 4] = (1).to_bytes(4)  # shorter than any batch
    log.write_bytes(content)


@pytest.mark.parametrize("look", [by_ranking, by_retention])
async def test_damage_that_a_look_at_times_finds_is_handed_over(tmp_path: Path, look: Any) -> None:
    async with broker_with(tmp_path) as broker:
        await fill(broker, await make(broker, "t"), 2)
    lose_times(tmp_path / LOGS / "t-0")
    async with broker_with(tmp_path) as broker:
        told: list[Partition] = []
        broker.storage.on_damage = told.append
        partition = found(broker, "t")
        await look(broker, partition)
        assert (told, partition.is_damaged) == ([partition], True)
        assert partition.offline_error is not None
        assert f"{0:020d}.log at 0: " in partition.offline_error.detail, "people have to find it"


@pytest.mark.parametrize("look", [by_ranking, by_retention])
@pytest.mark.parametrize("change", ["is cut", "is trimmed"])
async def test_a_look_at_times_beside_a_log_that_changes_finds_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Any, change: str
) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 2)
        log = partition.log

        def changed(segment: Segment) -> int:
            if change == "is cut":
                log.file_uses.begin(FileUse.TRUNCATION)
            else:
                log.drop_segments(1)
            raise CorruptData("bytes that are being written")

        monkeypatch.setattr(Segment, "newest_timestamp", property(changed))
        await look(broker, partition)
        assert partition.offline_error is None
        log.file_uses.end(FileUse.TRUNCATION)
