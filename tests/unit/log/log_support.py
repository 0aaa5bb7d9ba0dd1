"""A log on a disk in memory, and what the broker's shell does for it, without waiting."""

from collections.abc import Sequence
from random import Random

from penstock.log.partition_log import LogSettings, PartitionLog
from penstock.log.reading.cold_reading import BatchesRead, ColdRead
from penstock.log.recovery import Recovered, open_log
from penstock.log.truncation import FullTruncation, Truncation
from penstock.protocol.batches import parse_header, split_batches
from penstock.protocol.records import BatchOptions, Record, build_batch
from penstock.sim.device import FolderNode
from penstock.sim.disk import Mount, SimDisk, SimFile
from penstock.types import LeaderEpoch, Offset

LOGS = "logs"
FOLDER = f"{LOGS}/orders-0"
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SETTINGS = LogSettings(
    segment_bytes=1_000_000, segment_ms=7 * DAY_MS, index_interval_bytes=200, index_bytes_max=10_000_000
)


def new_disk(seed: int = 0) -> Mount:
    disk = SimDisk(Random(seed))
    mount = disk.mount()
    mount.make_folder(LOGS)
    disk.root.sync()
    return mount


def new_log(disk: Mount, **changes: int) -> PartitionLog:
    return PartitionLog(disk, FOLDER, SETTINGS._replace(**changes))


def reopened(disk: Mount, **changes: int) -> Recovered:
    return open_log(disk, FOLDER, SETTINGS._replace(**changes))


def batch_of(values: Sequence[bytes], times: Sequence[int] = (), **options: object) -> bytes:
    stamps = list(times) or [NOW_MS] * len(values)
    made = [Record(Offset(0), time, None, value) for time, value in zip(stamps, values, strict=True)]
    settings: BatchOptions = options  # type: ignore[assignment]
    return build_batch(made, **settings)


def append(
    log: PartitionLog,
    values: Sequence[bytes],
    times: Sequence[int] = (),
    *,
    epoch: int = 1,
    **options: object,
) -> Offset:
    batch = bytearray(batch_of(values, times, **options))
    return log.append(batch, parse_header(batch), LeaderEpoch(epoch))


def flush(log: PartitionLog) -> None:
    plan = log.begin_flush()
    log.disk.sync(plan.files, plan.folders)
    log.end_flush(plan)


def checkpoint(log: PartitionLog, committed: Offset | None = None) -> None:
    if not log.needs_checkpoint:
        flush(log)
        return
    plan = log.begin_checkpoint()
    flush(log)
    for write in plan.indexes.writes:
        file = log.disk.open(write.path, create=True)
        file.write(write.position, write.render())
        log.disk.sync([file], ())
        file.release()
    log.disk.sync((), [log.folder])
    log.disk.store(plan.render_stored())
    for path in log.end_checkpoint(plan, committed):
        log.disk.remove(path)


def truncate_to(log: PartitionLog, offset: Offset) -> None:
    """Removes every batch that reaches `offset` or further."""
    if offset < log.log_end_offset:
        carry_out(Truncation(log, offset))


def truncate_fully_and_start_at(log: PartitionLog, offset: Offset) -> None:
    carry_out(FullTruncation(log, offset))


def carry_out(truncation: Truncation) -> None:
    truncation.run()
    truncation.end()


def read(
    log: PartitionLog, offset: int, end: int | None = None, bytes_max: int = 2**30, at_least_one: bool = True
) -> BatchesRead:
    end_offset = log.log_end_offset if end is None else Offset(end)
    found = log.read(Offset(offset), end_offset, bytes_max, at_least_one=at_least_one)
    return found.run().found if isinstance(found, ColdRead) else found


def batches(log: PartitionLog) -> list[bytes]:
    """Every batch of the log, read from its start."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = read(log, offset)
        data = bytes(part.data)
        found += [data[at : at + header.size] for at, header in split_batches(data)]
        assert part.next_offset > offset, "no progress"
        offset = part.next_offset
    return found


def log_folder(disk: SimDisk) -> FolderNode:
    """What the device has of it."""
    folder: object = disk.root
    for name in FOLDER.split("/"):
        assert isinstance(folder, FolderNode)
        folder = folder.seen[name]
    assert isinstance(folder, FolderNode)
    return folder


def file_at(disk: Mount, path: str) -> SimFile:
    return disk.open(path)


def flip(disk: Mount, path: str, position: int, bit: int = 1) -> None:
    """A bit rots on the platter and in the cache alike."""
    file = disk.open(path)
    file.write(position, bytes([file.read(position, 1)[0] ^ bit]))
    disk.sync([file], ())
