"""Throughput of offset commits, and their cost for the broker.

Ten connections send commits without waiting for replies, each for another group: first for groups of one
partition of __consumer_offsets, so that one coordinator shard handles every commit, then for groups of all
its partitions. A commit names one partition and is acknowledged when it is on disk: the topic has flush
policy before_ack.
"""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.brokers import fresh_broker
from benchmarks.clients import in_another_process
from benchmarks.figures import Better, Figure
from benchmarks.groups_wire import (
    SHARDS,
    CommitFrame,
    Exchange,
    client_of,
    exchange_all,
    groups_of_shard,
    make_group_topic,
    wait_for_shards,
)
from benchmarks.phase import Phase
from benchmarks.settings import Settings
from benchmarks.topics import new_topic

COMMITS = 100_000
CONNECTIONS = 10
IN_FLIGHT = 32
COMMITS_PER_SECOND_MIN = 5000.0
FLUSH_BEFORE_ACK = ("log.flush.policy=before_ack",)


class CommitJob(NamedTuple):
    bootstrap: str
    broker_pids: tuple[int, ...]
    topic: str
    groups: tuple[tuple[str, ...], ...]
    """Groups of each connection, used round-robin."""
    commits: int
    """Commits of all connections together."""


def measure(settings: Settings) -> Iterator[Figure]:
    yield from _figures(settings, "one shard", groups_in_one_shard(), COMMITS_PER_SECOND_MIN)
    yield from _figures(settings, f"{SHARDS} shards", groups_in_all_shards(), None)


def groups_in_one_shard() -> tuple[tuple[str, ...], ...]:
    return tuple((group,) for group in groups_of_shard(0, CONNECTIONS))


def groups_in_all_shards() -> tuple[tuple[str, ...], ...]:
    groups = [groups_of_shard(shard, 1)[0] for shard in range(SHARDS)]
    return tuple(tuple(groups[number::CONNECTIONS]) for number in range(CONNECTIONS))


def _figures(
    settings: Settings, where: str, groups: tuple[tuple[str, ...], ...], target: float | None
) -> Iterator[Figure]:
    phases = []
    for _ in range(settings.repeats):
        with fresh_broker(FLUSH_BEFORE_ACK) as broker, new_topic(broker.bootstrap, 1, "os") as topic:
            job = CommitJob(broker.bootstrap, broker.pids, topic, groups, settings.scaled(COMMITS))
            phases.append(in_another_process(commit_all, job))
    yield Figure(
        name=f"offset commits, before_ack, {where}",
        unit="commits/s",
        samples=tuple(phase.per_second for phase in phases),
        better=Better.HIGHER,
        target=target,
        limited_by=max(phases, key=lambda phase: phase.per_second).limited_by(),
    )
    yield Figure(
        name=f"broker CPU, offset commits, before_ack, {where}",
        unit="µs/commit",
        samples=tuple(phase.broker_cpu_s * 1e6 / phase.work for phase in phases),
        limited_by="broker code",
    )


def commit_all(job: CommitJob) -> Phase:
    with client_of(job.bootstrap) as client:
        make_group_topic(client)
        wait_for_shards(client)
    each = job.commits // len(job.groups)
    lanes = [_commits([CommitFrame(group, job.topic, 1) for group in groups], each) for groups in job.groups]
    return exchange_all(job.bootstrap, job.broker_pids, lanes, IN_FLIGHT)


def _commits(frames: list[CommitFrame], count: int) -> Iterator[Exchange]:
    for number in range(count):
        yield frames[number % len(frames)].at(number)
