"""`python -m tools.mutants`: is the simulator any good? It has to notice mistakes that are known.

Each mutant is one line of the source, changed as somebody might have got it wrong. It is put into a copy, and
seeds are run against that until one fails: the mutant is killed. One that survives its bound is a hole in the
simulator, or shows that the line does nothing.

Rule: a mutant whose line is no longer there as it is written here is an error: somebody has to look at it.
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


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


LEADING = "replication/leading.py"
PARTITION = "replication/partition.py"
FOLLOWING = "replication/following.py"
LOG = "log/partition_log.py"
DURABILITY = "metadata/durability.py"

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
)


class Killed(NamedTuple):
    seeds: int | None
    """None: it survived."""
    seconds: float
    last_line: str


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
        command = [sys.executable, "-m", "penstock.sim", "--seed", str(options.seed)]
        command += ["--seeds", str(options.seeds), "--jobs", str(options.jobs)]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Killed(None, time.monotonic() - began, f"still running after {SECONDS_MAX} s")
    said = done.stdout + done.stderr
    failing = re.search(r"^seed (\d+) fails", said, re.MULTILINE)
    seconds = time.monotonic() - began
    if failing is None:
        return Killed(None, seconds, said.strip().rpartition("\n")[2])
    return Killed(int(failing[1]) - options.seed + 1, seconds, _reason(done.stdout))


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
        after = f"{killed.seeds:>4} seeds" if killed.seeds is not None else "SURVIVES  "
        print(f"{mutant.name:36} {after} {killed.seconds:7.1f} s  {killed.last_line}", flush=True)
        if killed.seeds is None:
            survivors.append(mutant.name)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed; survivors: {', '.join(survivors) or 'none'}"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
