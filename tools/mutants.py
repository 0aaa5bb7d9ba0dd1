"""`python -m tools.mutants`: are the simulator and the tests any good? They have to notice known mistakes.

Each mutant is one line of the source, changed as an engineer might have got it wrong. The tool puts it into a
copy and runs seeds of the simulator against that copy until one fails: the mutant is killed. A mutant that
survives its bound is a hole in the simulator, or shows that the line does nothing. Some mistakes are outside
of what the simulator checks, such as the work that one request may cost: those mutants name the tests that
have to fail instead.

Rule: a mutant whose line is no longer there as it is written here is an error: an engineer has to look at it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
SEEDS_MAX = 150
SECONDS_MAX = 900
PYTEST_FAILED = 1


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: str = ""
    """The file of tests that has to fail; empty: the simulator has to."""


LEADING = "replication/leading.py"
PARTITION = "replication/partition.py"
FOLLOWING = "replication/following.py"
LOG = "log/partition_log.py"
DURABILITY = "metadata/durability.py"
MANAGER = "replication/manager.py"
ELECTIONS = "controller/elections.py"
DAMAGED = "broker/damaged_replicas.py"
RECOVERY = "log/recovery.py"
SWAP = "log/swap.py"

MUTANTS: Sequence[Mutant] = (
    # What is safe
    Mutant(
        "visible_before_flush",
        PARTITION,
        "end, own_bytes = log.flushed_end_offset, log.flushed_bytes",
        "end, own_bytes = log.log_end_offset, log.appended_bytes",
    ),
    Mutant(
        "follower_acknowledges_before_flush",
        "log/follower_append.py",
        "        appended += 1\n",
        "        appended += 1\n        log.flushed_end_offset = log.log_end_offset\n",
    ),
    Mutant(
        "acknowledges_before_flush", LOG, "min(flush.end_offset, self.log_end_offset)", "self.log_end_offset"
    ),
    Mutant("acknowledges_before_replicas", LEADING, "for member in self._maximal:", "for member in ():"),
    Mutant(
        "produce_answers_at_once",
        "broker/apis/produce.py",
        "reached = partition.high_watermark",
        "reached = appended.end_offset",
    ),
    Mutant("no_fsync_of_folders", LOG, "folders = sorted(self._dirty_folders)", "folders = []"),
    Mutant("failed_sync_is_passed_over", "broker/flusher.py", "if error is not None:", "if False:"),
    Mutant("minimum_is_ignored", LEADING, "        if not self.has_enough:\n", "        if False:\n"),
    # In-sync sets
    Mutant(
        "pending_isr_is_forgotten",
        LEADING,
        "proposed = self._proposal.isr if self._proposal is not None else ()",
        "proposed = ()",
    ),
    Mutant(
        "shrinking_counts_at_once",
        LEADING,
        "frozenset((*self._state.isr, *proposed))",
        "frozenset(proposed or self._state.isr)",
    ),
    Mutant(
        "joins_below_high_watermark", LEADING, "            and fetched.offset >= self.high_watermark\n", ""
    ),
    Mutant("joins_before_epoch_start", LEADING, "            and fetched.offset >= self.epoch_start\n", ""),
    # A broker joins; the request that says so comes late, after the leader has given it up and gone on
    # without him. Only an ambush makes that likely.
    Mutant(
        "unknown_outcome_counts_as_refused",
        "broker/in_sync_changes.py",
        'self._log.warning("isr.unknown", partition=change.partition.name, reason=str(problem))',
        "self._refused(change)",
    ),
    Mutant(
        "isr_change_ignores_config_revision",
        "controller/partitions.py",
        "        Compare(keys.topic(topic.name), topic.revision),\n",
        "",
    ),
    Mutant(
        "isr_change_ignores_who_joins",
        "controller/isr.py",
        "draft, own, *joining, *minimum(image, topic))",
        "draft, own, *minimum(image, topic))",
    ),
    # Epochs and history
    Mutant(
        "replica_goes_under_the_same_epoch",
        "controller/partitions.py",
        "has_new_epoch = begins_epoch or has_new_leader or not set(before.replicas).issubset(draft.replicas)",
        "has_new_epoch = begins_epoch or has_new_leader",
    ),
    # A follower that is two epochs behind, where the same broker leads, would count for the latest; then he
    # hears of the one between, whose leader makes him cut what he has just confirmed. What is noticed is the
    # first step: that he counts, or that a reader with an old epoch is answered.
    Mutant(
        "no_epoch_check_on_fetch",
        PARTITION,
        "if epoch < 0 or epoch == self.leader_epoch:",
        "if True:",
    ),
    Mutant(
        "divergence_is_not_told",
        PARTITION,
        "return None if epoch == asked and end >= params.fetch_offset else EpochEndOffset(epoch, end)",
        "return None",
    ),
    # Who comes back has no high watermark, and may be eligible: a leader that was cut off and died has
    # records to cut, and would cut all. Who stayed up knows the high watermark almost always.
    Mutant(
        "truncates_to_high_watermark",
        FOLLOWING,
        "offset = parting_point(log, diverging)",
        "offset = max(min(parting_point(log, diverging), self.shown), log.log_start_offset)",
    ),
    Mutant(
        "truncates_too_little",
        FOLLOWING,
        "return max(min(end, Offset(leader.end_offset)), log.log_start_offset)",
        "return max(end, log.log_start_offset)",
    ),
    Mutant(
        "cut_keeps_producers",
        LOG,
        "self.segments, self.producers, self.epochs = left.segments, left.producers, left.epochs",
        "self.segments, self.epochs = left.segments, left.epochs",
    ),
    Mutant(
        "cut_keeps_epochs",
        LOG,
        "self.segments, self.producers, self.epochs = left.segments, left.producers, left.epochs",
        "self.segments, self.producers = left.segments, left.producers",
    ),
    Mutant(
        "restarted_leader_leads_on",
        "replication/roles.py",
        "if not self.is_leader(state) or not self.may_lead:",
        "if not self.is_leader(state):",
    ),
    # Elections
    Mutant(
        "fencing_leaves_followers_in_isr",
        "controller/elections.py",
        "draft = state if len(present) == len(state.isr) else _shrunk(image, topic, state, present)",
        "draft = state",
    ),
    Mutant(
        "elections_are_unclean",
        DURABILITY,
        "return _of_topic_or_cluster(image, topic, UNCLEAN) is True",
        "return True",
    ),
    Mutant(
        "lost_disk_is_not_noticed",
        DURABILITY,
        "is_another = live.directory_id != broker.directory_id or live.has_lost_all",
        "is_another = False",
    ),
    # Producers
    Mutant(
        "window_of_four_batches",
        "log/producers.py",
        "before.batches[1 - PRODUCER_WINDOW_BATCHES :]",
        "before.batches[2 - PRODUCER_WINDOW_BATCHES :]",
    ),
    Mutant(
        "retries_are_not_recognised",
        "log/producers.py",
        "return _repeated_or_next(producer, header)",
        "return None",
    ),
    # Groups
    Mutant(
        "commits_without_epoch",
        "groups/consumer_checks.py",
        "if epoch != member.epoch or epoch <= LEAVING_EPOCH:",
        "if False:",
    ),
    Mutant(
        "serves_before_loaded",
        "broker/coordination.py",
        "end = await _until_safe(self.shard.partition)",
        "end = self.shard.partition.high_watermark",
    ),
    Mutant(
        "commits_answered_at_once",
        "coordinator/shard.py",
        "if end > self.partition.high_watermark:",
        "if False:",
    ),
    # Deposed and reinstated leaders
    Mutant(
        "peers_depose_nobody",
        "broker/witnesses.py",
        "        return any(answers)\n",
        "        return False\n",
        "tests/unit/broker/test_deposed_leader.py",
    ),
    Mutant(
        "reinstated_leader_forgets_its_proposal",
        "replication/leaderships.py",
        "return leading if epoch == leader_epoch else None",
        "return None",
    ),
    # Damaged copies
    Mutant(
        "damaged_copy_stays_in_sync",
        DAMAGED,
        "            if decision.everything:\n",
        "            if False:\n",
    ),
    Mutant(
        "damaged_copy_leaves_under_the_same_epoch",
        ELECTIONS,
        "*alive(image, (broker_id,)), begins_epoch=True)",
        "*alive(image, (broker_id,)))",
        "tests/unit/broker/test_damaged_replicas.py",
    ),
    Mutant(
        "damaged_partitions_wait_for_the_disk_of_others",
        DAMAGED,
        '''        await self._keep_doing(self._withdraw_all, self._withdrawals_due)

    async def renew(self) -> None:
        """The task that gives copies up, and begins anew."""
        await self._keep_doing(self._renew_all, self._renewals_due)
''',
        """        async def both() -> list[str]:
            return [*await self._withdraw_all(), *await self._renew_all()]

        await self._keep_doing(both, self._renewals_due)

    async def renew(self) -> None:
        pass
""",
        "tests/unit/broker/test_damaged_replicas.py",
    ),
    Mutant(
        "only_other_copy_is_trusted",
        "log/data_directory.py",
        "if room.others_in_sync < OTHERS_IN_SYNC_MIN or",
        "if",
        "tests/unit/broker/test_damaged_replicas.py",
    ),
    Mutant(
        "last_copy_is_moved_at_the_start",
        MANAGER,
        "        partition.mark_damaged(reason)\n        return partition, Lost(reason)\n\n"
        "    def _is_counted_on",
        "        partition.mark_damaged(reason)\n        self._directory.set_aside_damaged(partition.name)\n"
        "        return partition, Lost(reason)\n\n    def _is_counted_on",
        "tests/unit/replication/test_manager.py",
    ),
    Mutant(
        "leadership_of_a_damaged_copy_is_kept",
        DAMAGED,
        "        if self._fetched_epochs:\n",
        "        if False:\n",
        "tests/unit/broker/test_damaged_replicas.py",
    ),
    Mutant(
        "restart_forgets_damage",
        MANAGER,
        "noted = self._directory.noted_damage(name)",
        "noted = None",
        "tests/unit/replication/test_manager.py",
    ),
    Mutant(
        "truncation_counts_as_damage",
        "broker/cold_reads.py",
        "        if log.is_truncating:\n",
        "        if log.is_truncating and isinstance(outcome, CorruptData):\n"
        "            self.on_damage(partition, outcome)\n        if log.is_truncating:\n",
    ),
    Mutant(
        "io_error_counts_as_damage",
        MANAGER,
        "        except CorruptData as damage:\n",
        "        except (CorruptData, StorageFailed) as damage:\n",
        "tests/unit/replication/test_manager.py",
    ),
    Mutant(
        "unreadable_copy_is_kept",
        "broker/storage.py",
        "            self._read_failures.report(partition, problem)\n",
        "            pass\n",
        "tests/unit/broker/test_damaged_replicas.py",
    ),
    Mutant(
        "what_cannot_be_looked_at_is_gone",
        "host/os_disk.py",
        "            except (FileNotFoundError, NotADirectoryError):\n",
        "            except OSError:\n",
        "tests/unit/host/test_os_disk.py",
    ),
    Mutant(
        "empty_copy_leads",
        MANAGER,
        """        if roles.is_leader(state):
            return False
        self._make(topic, state, empty.log, None, roles)
""",
        "        self._make(topic, state, empty.log, None, roles)\n",
        "tests/unit/replication/test_manager_roles.py",
    ),
    Mutant(
        "damage_found_by_the_cleaner_is_kept",
        "broker/compaction.py",
        """        if isinstance(failure, CorruptData):
            self._storage.damage(partition, failure)
            return
""",
        "",
        "tests/unit/broker/test_damage_in_background.py",
    ),
    # The start of a log
    Mutant(
        "deletion_ignores_eligible_leaders",
        LEADING,
        "for member in (*self._maximal, *self._state.elr))",
        "for member in self._maximal)",
    ),
    Mutant(
        "follower_reports_a_start_it_has_not_stored",
        FOLLOWING,
        "            log.stored_start,\n",
        "            log.log_start_offset,\n",
    ),
    Mutant(
        "joins_without_what_was_deleted",
        LEADING,
        "            and max(fetched.log_start, Offset(0)) >= self.own_start\n",
        "",
    ),
    Mutant(
        "older_checkpoint_moves_the_start_back",
        "broker/log_starts.py",
        "            async with self._turn:\n",
        "            async with asyncio.Lock():\n",
        "tests/unit/broker/test_log_starts.py",
    ),
    Mutant(
        "truncation_forgets_the_start",
        "log/truncation.py",
        "            if log.log_start_offset > 0:\n",
        "            if False:\n",
    ),
    Mutant(
        "retention_passes_the_high_watermark",
        "log/retention.py",
        "        if segment.end_offset > policy.high_watermark or not (\n",
        "        if not (\n",
        "tests/unit/log/test_retention.py",
    ),
    Mutant(
        "followers_apply_retention",
        "broker/retention.py",
        "CleanupPolicy.DELETE in config.cleanup_policy and partition.following is None",
        "CleanupPolicy.DELETE in config.cleanup_policy",
    ),
    # Compaction
    Mutant(
        "swap_decides_before_its_files_are_durable",
        SWAP,
        """    disk.sync((), [folder])
    mark = """,
        "    mark = ",
        "tests/unit/log/test_compaction_crash.py",
    ),
    Mutant(
        "swap_mark_goes_before_names_are_durable",
        SWAP,
        "    disk.sync((), [taken.folder])\n",
        "",
        "tests/unit/log/test_compaction_crash.py",
    ),
    Mutant(
        "clean_offset_outlives_its_log",
        "log/cleaner_offsets.py",
        "0 <= rows[0][0] <= log_end_offset",
        "0 <= rows[0][0]",
        "tests/unit/log/test_cleaner_offsets.py",
    ),
    Mutant(
        "new_log_is_taken_for_clean",
        "log/truncation.py",
        "        forget_clean_to(disk, folder)\n",
        "",
        "tests/unit/log/test_cleaner_offsets.py",
    ),
    # Recovery
    Mutant(
        "recovery_checks_no_checksum",
        RECOVERY,
        """        check_stored(data, header, at, f"{path} at {position}")\n""",
        "",
    ),
    Mutant(
        "recovery_cuts_what_was_safe",
        RECOVERY,
        """            if log.log_end_offset < _needed_to(log):
                raise
            break
""",
        "            break\n",
        "tests/unit/log/test_recovery.py",
    ),
    Mutant(
        "recovery_forgets_producers",
        RECOVERY,
        "replay=header.base_offset >= scan_from)",
        "replay=False)",
    ),
    # Settings
    Mutant(
        "leader_after_truncation_has_older_settings",
        MANAGER,
        """            topic, state = self._known(partition)
            roles = self._roles(self._image_now())
""",
        """            topic, state = self._known(partition)
            topic = Topic(topic.name, topic.id, False, 0, {"min.insync.replicas": "1"}, topic.partitions, 1)
            roles = self._roles(self._image_now())
""",
        "tests/unit/replication/test_manager_roles.py",
    ),
    # Bounds
    Mutant(
        "lookup_by_time_opens_every_batch",
        "log/time_lookup.py",
        "        if header.record_count > budget.records:\n",
        "        if False:\n",
        "tests/unit/log/test_time_lookup.py",
    ),
)


class Outcome(NamedTuple):
    killed_by: str | None
    """None: the mutant survived."""
    reason: str


class Killed(NamedTuple):
    by: str | None
    reason: str
    seconds: float


def mutated(mutant: Mutant, source: Path = SOURCE) -> str:
    """The text of its file with the mistake in it. LookupError if the line is not there, or not alone."""
    text = (source / "penstock" / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise LookupError(f"{mutant.name}: {mutant.file} has its line {count} times, not once")
    return text.replace(mutant.old, mutant.new)


def mutated_copy(mutant: Mutant, folder: Path) -> Path:
    """A copy of the source with the mistake in it."""
    copy = folder / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "spark"))
    (copy / "penstock" / mutant.file).write_text(mutated(mutant))
    return copy


def kill(mutant: Mutant, options: argparse.Namespace) -> Killed:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = mutated_copy(mutant, Path(folder))
        try:
            outcome = _tested(mutant, copy) if mutant.tests else _simulated(copy, options)
        except subprocess.TimeoutExpired:
            outcome = Outcome(None, f"still running after {SECONDS_MAX} s")
    return Killed(*outcome, time.monotonic() - began)


def _simulated(copy: Path, options: argparse.Namespace) -> Outcome:
    command = ["penstock.sim", "--seed", str(options.seed)]
    command += ["--seeds", str(options.seeds), "--jobs", str(options.jobs)]
    done = _run(command, copy, folder=copy.parent)
    said = done.stdout + done.stderr
    failing = re.search(r"^seed (\d+) fails", said, re.MULTILINE)
    if failing is None:
        return Outcome(None, said.strip().rpartition("\n")[2])
    return Outcome(f"seed {int(failing[1]) - options.seed + 1}", _reason(done.stdout))


def _tested(mutant: Mutant, copy: Path) -> Outcome:
    command = ["pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.tests]
    done = _run(command, copy, folder=SOURCE.parent)
    failing = re.search(r"^FAILED \S+::(\S+)", done.stdout, re.MULTILINE)
    # Any other exit code, an import that fails for example, says nothing of the tests.
    if done.returncode != PYTEST_FAILED or failing is None:
        return Outcome(None, (done.stdout + done.stderr).strip().rpartition("\n")[2])
    return Outcome("a test", failing[1])


def _run(module: Sequence[str], copy: Path, *, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *module],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def _reason(said: str) -> str:
    errors = re.findall(
        r"^(?:\w+\.)*\w*(?:Violation|Error|Deadlock|Exception|Lost|Data): (.*)$", said, re.MULTILINE
    )
    return errors[-1][:120] if errors else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many each mutant may survive")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    survivors = []
    for mutant in chosen:
        killed = kill(mutant, options)
        by = f"by {killed.by}" if killed.by is not None else "SURVIVES"
        print(f"{mutant.name:44} {by:12} {killed.seconds:6.1f} s  {killed.reason}", flush=True)
        if killed.by is None:
            survivors.append(mutant.name)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed; survivors: {', '.join(survivors) or 'none'}"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
