"""The cost of ten thousand groups: memory, and the time until a killed broker has loaded them again.

Every group commits ten partitions in one request. The broker is killed when the last commit is acknowledged.
The time counts from its start until the offsets of every group have been fetched and are right. The same is
measured after ten commits of each group, when nine of ten records are outdated, and after compaction.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import Broker, running_broker, temporary_folder
from benchmarks.clients import STALL_S_MAX, ClientFailed, in_another_process
from benchmarks.figures import Figure
from benchmarks.groups_wire import (
    CommitFrame,
    Exchange,
    client_of,
    exchange_all,
    fetch_frame,
    make_group_topic,
    wait_for_shards,
)
from benchmarks.phase import Phase
from benchmarks.settings import Settings
from benchmarks.topics import create_topic

GROUPS = 10_000
PARTITIONS = 10
ROUNDS = 10
CONNECTIONS = 4
COMMITS_IN_FLIGHT = 32
GROUPS_A_FETCH = 100
FETCHES_IN_FLIGHT = 4
SETTLE_S = 1.0
GROWTH_MB_MAX = 100.0
RELOAD_S_MAX = 5.0
MB = 1_000_000

NO_CLEANER = ("log.cleaner.enable=false",)
EAGER_CLEANER = ("log.cleaner.max.compaction.lag.ms=1", "log.cleaner.backoff.ms=100")
CLEAN_S = 3.0
"""A log that has not changed for this long counts as cleaned."""


def measure(settings: Settings) -> Iterator[Figure]:
    groups = [f"group-{number}" for number in range(GROUPS)]
    what = f"{GROUPS:,} groups with {PARTITIONS} partitions each"
    rounds = max(2, settings.scaled(ROUNDS))
    with temporary_folder() as folder:
        with _until_killed(folder, NO_CLEANER) as broker:
            topic = create_topic(broker.bootstrap, PARTITIONS, "os")
            yield from _commit_first(broker, topic, what)
        fetches = _fetches(groups, topic, offset=0)
        yield _reload(folder, settings.repeats, f"{what}, 1 commit each", fetches, RELOAD_S_MAX)
        with _until_killed(folder, NO_CLEANER) as broker:
            in_another_process(commit_rounds, broker.bootstrap, broker.pids, topic, range(1, rounds))
        fetches = _fetches(groups, topic, offset=rounds - 1)
        yield _reload(folder, settings.repeats, f"{what}, {rounds} commits each", fetches, None)
        with _until_killed(folder, EAGER_CLEANER) as broker:
            in_another_process(commit_rounds, broker.bootstrap, broker.pids, topic, range(rounds, rounds + 1))
            _wait_for_compaction(folder)
        fetches = _fetches(groups, topic, offset=rounds)
        yield _reload(folder, settings.repeats, f"{what}, compacted after one more", fetches, None)


# Committing


def _commit_first(broker: Broker, topic: str, what: str) -> Iterator[Figure]:
    with client_of(broker.bootstrap) as client:
        make_group_topic(client)
        wait_for_shards(client)
    time.sleep(SETTLE_S)
    before = broker.memory()
    phase = in_another_process(commit_rounds, broker.bootstrap, broker.pids, topic, range(1))
    time.sleep(SETTLE_S)
    grown = broker.memory().resident - before.resident
    yield Figure(
        name=f"memory growth, {what}",
        unit="MB",
        samples=(grown / MB,),
        target=GROWTH_MB_MAX,
        limited_by=f"{grown / GROUPS / PARTITIONS:.0f} B an offset, over {before.resident / MB:.0f} MB",
    )
    yield Figure(
        name=f"time to commit, {what}", unit="s", samples=(phase.wall_s,), limited_by=phase.limited_by()
    )


def commit_rounds(bootstrap: str, broker_pids: tuple[int, ...], topic: str, offsets: range) -> Phase:
    """Commit every offset for every group, with one request for each."""
    with client_of(bootstrap) as client:
        wait_for_shards(client)
    frames = [CommitFrame(f"group-{number}", topic, PARTITIONS) for number in range(GROUPS)]
    lanes = [_commits(frames[number::CONNECTIONS], offsets) for number in range(CONNECTIONS)]
    return exchange_all(bootstrap, broker_pids, lanes, COMMITS_IN_FLIGHT)


def _commits(frames: Sequence[CommitFrame], offsets: range) -> Iterator[Exchange]:
    return (frame.at(offset) for offset in offsets for frame in frames)


# Restarting


@contextmanager
def _until_killed(folder: Path, settings: Sequence[str]) -> Iterator[Broker]:
    with running_broker(folder, settings) as broker:
        yield broker
        broker.process.kill()
        broker.process.wait()


def _fetches(groups: Sequence[str], topic: str, offset: int) -> list[Exchange]:
    firsts = range(0, len(groups), GROUPS_A_FETCH)
    return [
        fetch_frame(groups[first : first + GROUPS_A_FETCH], topic, PARTITIONS, offset) for first in firsts
    ]


def _reload(
    folder: Path, repeats: int, what: str, fetches: Sequence[Exchange], target: float | None
) -> Figure:
    took, parts = [], []
    for _ in range(repeats):
        began = time.monotonic()
        with _until_killed(folder, NO_CLEANER) as broker:
            with client_of(broker.bootstrap) as client:
                wait_for_shards(client)
            loaded_s = time.monotonic() - began
            lanes = [iter(fetches[number::CONNECTIONS]) for number in range(CONNECTIONS)]
            phase = exchange_all(broker.bootstrap, broker.pids, lanes, FETCHES_IN_FLIGHT)
            took.append(time.monotonic() - began)
            parts.append(
                f"ready {broker.start_s:.2f} s, loaded {loaded_s:.2f} s, then fetching {phase.wall_s:.2f} s;"
                f" {_log_bytes(folder) / MB:.0f} MB of log"
            )
    return Figure(
        name=f"kill -9 until all are fetched, {what}",
        unit="s",
        samples=tuple(took),
        target=target,
        limited_by=parts[took.index(min(took))],
    )


def _wait_for_compaction(folder: Path) -> None:
    first = size = _log_bytes(folder)
    began = changed_at = time.monotonic()
    while time.monotonic() < changed_at + CLEAN_S or size >= first:
        if time.monotonic() > began + STALL_S_MAX and size >= first:
            raise ClientFailed(f"nothing of {size} bytes was removed within {STALL_S_MAX} s")
        time.sleep(SETTLE_S / 10)
        before, size = size, _log_bytes(folder)
        if size != before:
            changed_at = time.monotonic()


def _log_bytes(folder: Path) -> int:
    """Size of __consumer_offsets on disk, while the cleaner renames and removes its files."""
    total = 0
    for path in folder.glob("data/**/__consumer_offsets-*/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
