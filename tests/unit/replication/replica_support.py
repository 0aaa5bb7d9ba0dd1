"""Two replicas that talk at once, without a network between them."""

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.errors import ApiError
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import FullTruncation, Truncation
from penstock.protocol.messages.fetch import FetchPartition, PartitionData
from penstock.replication.following import FetchOutcome, FetchPosition, FollowerRole
from penstock.replication.leading import (
    CommittedPartitionState,
    FollowerFetchResult,
    FollowerFetchState,
    LeaderRole,
)
from penstock.replication.partition import Partition, log_settings
from penstock.types import LeaderEpoch, Offset, TopicId, TopicPartition
from tests.unit.log.log_support import FOLDER, NOW_MS, batch_of, new_disk, read

DEFAULTS = BrokerConfig.of().topic_defaults
LEADER, FOLLOWER = 1, 2


def new_log() -> PartitionLog:
    return PartitionLog(new_disk(), FOLDER, log_settings(DEFAULTS))


def made(
    log: PartitionLog, epoch: int, role: LeaderRole | FollowerRole | None, **changes: object
) -> Partition:
    config = DEFAULTS._replace(**changes)  # type: ignore[arg-type]
    ignore: Callable[[Partition], None] = lambda partition: None  # noqa: E731
    name = TopicPartition("orders", 0)
    return Partition(name, TopicId(bytes(16)), LeaderEpoch(epoch), log, config, ignore, role)


def leader_on(
    log: PartitionLog,
    epoch: int = 1,
    *,
    isr: tuple[int, ...] = (LEADER, FOLLOWER),
    min_isr: int = 1,
    high: int = 0,
    **changes: object,
) -> Partition:
    state = CommittedPartitionState((LEADER, FOLLOWER), isr, 0, min_isr)
    leading = LeaderRole(LEADER, state, log.log_end_offset, Offset(high), now=0.0)
    return made(log, epoch, leading, **changes)


def follower_on(
    log: PartitionLog, epoch: int = 1, *, high_watermark_before: int = 0, **changes: object
) -> Partition:
    return made(
        log, epoch, FollowerRole(LEADER, LeaderEpoch(epoch), log, Offset(high_watermark_before)), **changes
    )


def produce(partition: Partition, *values: bytes, **options: object) -> Offset:
    batch = memoryview(bytearray(batch_of(values or (b"x",), (), **options)))
    return partition.append_now(batch, NOW_MS).end_offset


def sync(partition: Partition) -> None:
    plan = partition.log.begin_flush()
    partition.log.disk.sync(plan.files, plan.folders)
    partition.flushed(plan)


def fetched_by(leader: Partition, fetch_position: FetchPosition) -> FollowerFetchResult:
    params = FetchPartition(
        0,
        fetch_position.leader_epoch,
        fetch_position.offset,
        fetch_position.last_fetched_epoch,
        fetch_position.log_start_offset,
    )
    fetched = FollowerFetchState(FOLLOWER, 70, fetch_position.offset, 70, fetch_position.log_start_offset)
    return leader.follower_fetched(params, fetched, 1.0)


def answer_to(leader: Partition, fetch_position: FetchPosition) -> PartitionData:
    """What the leader sends."""
    high, start = leader.high_watermark, leader.log.log_start_offset
    try:
        fetch = fetched_by(leader, fetch_position)
    except ApiError as refusal:
        return PartitionData(0, refusal.code, -1, -1, start)
    high = leader.high_watermark
    if fetch.diverging is not None:
        return PartitionData(0, 0, high, high, start, diverging_epoch=fetch.diverging)
    return PartitionData(0, 0, high, high, start, records=bytes(read(leader.log, fetch_position.offset).data))


def store_start(partition: Partition) -> None:
    log = partition.log
    log.disk.store([log.start_file(log.log_start_offset)])
    log.start_stored(log.log_start_offset)


def exchange(leader: Partition, follower: Partition) -> FetchOutcome:
    """One fetch, its answer, and what follows from it."""
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    step = follower.handle_fetch_response(fetch_position, answer_to(leader, fetch_position))
    if isinstance(step, Truncation | FullTruncation):
        step.run()
        step.end()
        follower.truncated()
    sync(follower)
    return step


def catch_up(leader: Partition, follower: Partition) -> list[str]:
    """Fetch until there is nothing new. Returns what was done."""
    done = []
    for _ in range(20):
        before = (follower.log.log_end_offset, follower.log.truncation_count, follower.high_watermark)
        done.append(type(exchange(leader, follower)).__name__)
        if before == (follower.log.log_end_offset, follower.log.truncation_count, follower.high_watermark):
            return done
    raise AssertionError("it does not come to an end")
