"""A log that is truncated while it is cleaned."""

from pathlib import Path

from penstock.log.compaction.cleaning_job import CleaningJob, CleaningResult, CleaningStep
from penstock.types import Offset
from tests.unit.broker.storage.test_broker_compaction import (
    CHECKPOINT,
    LOGS,
    InlineCleaner,
    broker_with,
    fill,
    make,
    read_all,
)
from tests.unit.log.log_support import truncate_to


async def test_a_log_truncated_while_its_cleaning_ends_is_not_called_clean(tmp_path: Path) -> None:
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 3)

        class Truncates(InlineCleaner):
            async def go_on(self) -> CleaningStep:
                step = await super().go_on()
                if isinstance(step, CleaningResult):
                    truncate_to(partition.log, Offset(partition.log.log_end_offset - 1))
                return step

        broker.compaction.cleaner = Truncates(broker)
        await broker.compaction.clean_dirtiest()
        assert partition.log.clean_to is None
        assert not (tmp_path / LOGS / "t-0" / CHECKPOINT).exists()


async def test_what_was_cleaned_before_a_truncation_replaces_nothing_after_it(tmp_path: Path) -> None:
    """Other records are at the same offsets by then."""
    async with broker_with(tmp_path) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 3)

        class TruncatedMeanwhile(InlineCleaner):
            async def begin(self, job: CleaningJob) -> CleaningStep:
                step = await super().begin(job)
                truncate_to(partition.log, Offset(0))
                await fill(broker, partition, 3, time_ms=77)
                return step

        cleaner = TruncatedMeanwhile(broker)
        broker.compaction.cleaner = cleaner
        await broker.compaction.clean_dirtiest()
        assert len(cleaner.jobs) == 1
        records = read_all(partition)
        assert [record.offset for record in records] == list(range(600))
        assert {record.timestamp for record in records} == {77}
