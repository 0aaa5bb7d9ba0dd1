"""The process that cleans, when nobody waits for it any more."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Environment, running_broker
from penstock.broker.storage.cleaner_process import ProcessCleaner
from penstock.config.sources import load
from penstock.host.child_process import ChildProcessEnded
from penstock.log.compaction.batch_filter import DeleteHorizons
from penstock.log.compaction.cleanable import SegmentGroupLimits
from penstock.log.compaction.cleaning_job import CleanerFailed, CleaningJob
from penstock.types import Offset
from tests.unit.broker.storage.test_broker_compaction import fill, make, values
from tests.unit.broker.waiting import until

JOB = CleaningJob(
    folder="nowhere",
    segments=[],
    first_dirty_offset=Offset(0),
    sequences_at=[],
    horizons=DeleteHorizons(0, 0, 0),
    memory_bytes=1,
    limits=SegmentGroupLimits(1, 1, 1, 1),
)
SECONDS_MAX = 10


class SlowStart:
    """Starting a process takes a while, and what is started never answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.is_starting = threading.Event()
        self._real = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", self._start)

    def _start(self, *_: Any, **options: Any) -> subprocess.Popen[bytes]:
        self.is_starting.set()
        time.sleep(0.1)
        process = self._real([sys.executable, "-c", "import time; time.sleep(60)"], **options)
        self.started.append(process)
        return process


async def test_a_process_being_started_when_its_cleaning_is_cancelled_is_ended_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, cleaner = SlowStart(monkeypatch), ProcessCleaner()
    cleaning = asyncio.create_task(cleaner.begin(JOB))
    assert await asyncio.to_thread(slow.is_starting.wait, SECONDS_MAX)
    cleaning.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(SECONDS_MAX):
            await cleaning
    (process,) = slow.started
    assert process.returncode is not None
    assert cleaner.child.pid is None
    async with asyncio.timeout(SECONDS_MAX):
        await cleaner.shut_down()


async def test_one_that_was_given_up_while_it_was_being_started_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, cleaner = SlowStart(monkeypatch), ProcessCleaner()
    cleaning = asyncio.create_task(cleaner.begin(JOB))
    assert await asyncio.to_thread(slow.is_starting.wait, SECONDS_MAX)
    cleaner.interrupt()
    with pytest.raises(ChildProcessEnded):
        async with asyncio.timeout(SECONDS_MAX):
            await cleaning
    (process,) = slow.started
    assert process.returncode is not None
    await cleaner.shut_down()


@pytest.mark.parametrize("cancels", [True, False])
async def test_none_is_started_for_a_question_that_is_over_before_its_turn(
    monkeypatch: pytest.MonkeyPatch, cancels: bool
) -> None:
    slow, cleaner = SlowStart(monkeypatch), ProcessCleaner()
    cleaning = asyncio.create_task(cleaner.begin(JOB))
    turn = threading.Event()
    real_ask = cleaner.child.send_request

    def ask_later(*arguments: Any) -> bytes:
        turn.wait(SECONDS_MAX)
        return real_ask(*arguments)

    monkeypatch.setattr(cleaner.child, "send_request", ask_later)
    await until(lambda: cleaner._asking is not None, seconds_max=SECONDS_MAX)
    if cancels:
        cleaning.cancel()
    else:
        cleaner.interrupt()
    await asyncio.sleep(0)
    turn.set()
    with pytest.raises(asyncio.CancelledError if cancels else ChildProcessEnded):
        async with asyncio.timeout(SECONDS_MAX):
            await cleaning
    assert slow.started == []
    await cleaner.shut_down()


async def test_a_mistake_of_the_process_is_named_and_does_not_end_it() -> None:
    cleaner = ProcessCleaner()
    async with asyncio.timeout(SECONDS_MAX):
        with pytest.raises(CleanerFailed, match=r"^IndexError: list index out of range\n") as broke:
            await cleaner.begin(JOB)  # of no segments, which nobody asks for
        assert "log/compaction/cleaner.py" in str(broke.value), "it says where"
        pid = cleaner.child.pid
        with pytest.raises(CleanerFailed):
            await cleaner.begin(JOB)
        assert cleaner.child.pid == pid is not None
        await cleaner.shut_down()


async def test_a_cleaning_that_is_cancelled_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    flags = {"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"}
    # Slow enough to be caught in the middle of its second pass.
    slowly = ["log.cleaner.io.max.bytes.per.second=20000000", "log.cleaner.enable=false"]
    async with running_broker(load(flags, slowly), Environment()) as broker:
        partition = await make(broker, "t")
        await fill(broker, partition, 8)
        before, size = values(partition), partition.log.size_bytes
        folder = tmp_path / "data" / "logs" / "t-0"
        cleaner = broker.compaction.cleaner
        assert isinstance(cleaner, ProcessCleaner)
        cleaning = asyncio.create_task(broker.compaction.clean_dirtiest())
        await until(lambda: any(folder.glob("*.cleaned")), seconds_max=SECONDS_MAX)
        cleaning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cleaning
        assert cleaner.child.pid is None
        await broker.compaction._worker.run(lambda: None)  # it discards behind the scenes
        assert not list(folder.glob("*.cleaned"))
        assert (values(partition), partition.log.size_bytes) == (before, size)
