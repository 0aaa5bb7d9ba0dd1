"""Seeds of the simulator that run with every change, and proof that it would notice.

The canaries are one-line mistakes that storage engines have shipped with. Each is put into the code
by the test, and the simulator must find it within a few seeds.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from penstock.broker.storage import compaction
from penstock.broker.storage.flusher import Flusher
from penstock.errors import CorruptData, StorageFailed
from penstock.log import recovery
from penstock.log.compaction import cleaner as cleaning
from penstock.log.compaction.cleanable import group_segments
from penstock.log.compaction.swap import discard_cleaned
from penstock.log.partition_log import Flush, PartitionLog
from penstock.log.producer_state import Producers
from penstock.log.reading import stored_batches
from penstock.replication.partition import Partition
from penstock.sim.history import InvariantViolation
from penstock.sim.log_simulation import LogSimulation
from penstock.sim.run import main, run_seed
from penstock.sim.scheduler import Deadlock

Canary = Callable[[pytest.MonkeyPatch], None]
SEEDS = range(500, 512)
CANARY_SEEDS_MAX = 30
EVENTS_MIN = 100


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    """A broken one is raised. A seed in which nothing happens would prove nothing."""
    assert run_seed(seed).events > EVENTS_MIN


def test_one_seed_is_one_run_whatever_the_hash_seed() -> None:
    script = "from penstock.sim.run import run_seed; print(*(run_seed(s).trace_hash for s in (502, 504)))"
    other = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert elsewhere == f"{run_seed(502).trace_hash} {run_seed(504).trace_hash}\n"
    assert run_seed(502).trace_hash == run_seed(502).trace_hash


def test_two_seeds_are_two_runs() -> None:
    assert run_seed(500).trace_hash != run_seed(501).trace_hash


def test_a_failing_seed_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(world: LogSimulation) -> LogSimulation:
        raise InvariantViolation("topic0: lost")

    monkeypatch.setattr(LogSimulation, "run", broken)
    assert main(["--what", "log", "--seed", "42"]) == 1
    assert "--what log --seed 42 --trace" in capsys.readouterr().out


def acknowledges_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    def end_flush(log: PartitionLog, flush: Flush) -> None:
        for file in flush.files:
            file.release()
        log.flushed_end_offset = log.log_end_offset

    patch.setattr(PartitionLog, "end_flush", end_flush)


def recovery_believes_every_byte(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stored_batches, "validate_stored_batch", lambda *arguments: None)


def new_files_are_not_synced_into_their_folder(patch: pytest.MonkeyPatch) -> None:
    original = PartitionLog.begin_flush
    patch.setattr(PartitionLog, "begin_flush", lambda log: original(log)._replace(folders=()))


def a_failed_sync_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    original = Flusher._end
    patch.setattr(Flusher, "_end", lambda flusher, flushes, error: original(flusher, flushes, None))


def what_a_failed_sync_left_in_memory_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_rewrite", lambda *arguments: None)


def a_folder_made_by_a_killed_process_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "resync_folder", lambda log: None)


def retries_are_not_recognised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "check", lambda producers, header: None)


def a_full_disk_leaves_half_a_batch_counted(patch: pytest.MonkeyPatch) -> None:
    """What a write left behind is taken for part of the log."""
    original = PartitionLog.append

    def append(log: PartitionLog, *arguments: object) -> object:
        try:
            return original(log, *arguments)  # type: ignore[arg-type]
        except Exception:
            log.active.size_bytes = log.active.file.size() + 1
            raise

    patch.setattr(PartitionLog, "append", append)


def readers_see_what_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    def advance(partition: Partition) -> None:
        partition.high_watermark = partition.log.log_end_offset
        partition.produce_waits.release(partition.high_watermark)

    patch.setattr(Partition, "advance", advance)


def tombstones_do_not_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleaning, "keeps_tombstones", lambda header, horizons: False)


def what_is_not_safe_is_cleaned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "safe_end", lambda log, stable_end: log.log_end_offset)


def a_swap_that_was_decided_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "finish_swaps", discard_cleaned)


def a_tombstone_goes_before_what_it_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleaning, "group_segments", lambda *arguments: group_segments(*arguments)[::-1])


# Each with a seed from which on it does not take long.
CANARIES: Sequence[tuple[Canary, int]] = (
    (acknowledges_before_the_flush, 623),
    (recovery_believes_every_byte, 608),
    (new_files_are_not_synced_into_their_folder, 602),
    (a_failed_sync_is_tried_again, 617),
    (what_a_failed_sync_left_in_memory_is_believed, 605),
    (a_folder_made_by_a_killed_process_is_believed, 771),
    (retries_are_not_recognised, 601),
    (a_full_disk_leaves_half_a_batch_counted, 602),
    (readers_see_what_is_not_flushed, 600),
    (tombstones_do_not_stay, 601),
    (what_is_not_safe_is_cleaned, 614),
    (a_swap_that_was_decided_is_forgotten, 635),
    (a_tombstone_goes_before_what_it_deletes, 640),
)


@pytest.mark.parametrize(("canary", "first_seed"), CANARIES, ids=[canary.__name__ for canary, _ in CANARIES])
def test_the_simulator_notices(canary: Canary, first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)
    for seed in range(first_seed, first_seed + CANARY_SEEDS_MAX):
        try:
            run_seed(seed)
        except (AssertionError, CorruptData, StorageFailed, Deadlock):
            return
    pytest.fail(f"{CANARY_SEEDS_MAX} seeds found nothing wrong with code that is")
