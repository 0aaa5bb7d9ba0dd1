"""Speed and memory of log compaction, and the delay that it adds for producers.

    python -m benchmarks.compaction              both questions, about five minutes
    python -m benchmarks.compaction --quick      a tenth of the records

Speed: a log of a million keys is written to a folder and passed to the cleaner's process, as a broker does.
Megabytes are those of the log before cleaning; both passes and all syncs count.

Delay: a producer sends one record at a time and waits for its acknowledgement, first without compaction, then
while the cleaner cleans a gigabyte of another topic.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import Broker, running_broker, temporary_folder
from benchmarks.clients import BATCHED, Job, connected_producer, flush, in_another_process, produce_and_wait
from benchmarks.figures import Better, Figure, percentile, table
from benchmarks.settings import FULL, QUICK, Settings
from benchmarks.topics import ANSWER_S_MAX, LOG_ERRORS, new_topic
from penstock.broker.storage.cleaner_process import MODULE, step_in
from penstock.host.child_process import ChildProcess
from penstock.host.os_disk import OsDisk
from penstock.limits import CLEANER_MEMORY_BYTES, MIB
from penstock.log.compaction.batch_filter import DeleteHorizons
from penstock.log.compaction.cleanable import LogToClean
from penstock.log.compaction.cleaning_job import CleaningRequest, CleaningResult
from penstock.log.compaction.cleaning_plan import job_for, segments_with_ends
from penstock.log.partition_log import LogSettings, PartitionLog
from penstock.protocol.batches import parse_header
from penstock.protocol.records import Record, build_batch
from penstock.types import LeaderEpoch, Offset

KEYS = 1_000_000
SEGMENT_BYTES = 128 * MIB
BATCH_BYTES = 16_000
MB = 1_000_000
SPEEDS = (  # bytes of a record, records, MB/s to reach
    (1000, 1_500_000, 60.0),
    (100, 3_000_000, 10.0),
)
MEMORY_MIB_MAX = 200.0
DELAY_RATIO_MAX = 2.0
WAITING_RECORDS = 5_000
RECORD_OVERHEAD_BYTES = 24
"""Bytes of a record beside its value: the key of 16 bytes and the framing."""


def measure(settings: Settings) -> Iterator[Figure]:
    for record_bytes, records, target in SPEEDS:
        yield from _speed(settings, record_bytes, settings.scaled(records), target)
    yield from _delay(settings)


# Speed


def _speed(settings: Settings, record_bytes: int, records: int, target: float) -> Iterator[Figure]:
    wall, cpu, memory = [], [], []
    keys = settings.scaled(KEYS)
    for _ in range(settings.repeats):
        with temporary_folder() as folder:
            question, log_bytes = in_another_process(
                write_log, str(folder / "bench-0"), keys, records, record_bytes
            )
            cleaner = ChildProcess(MODULE)
            began = time.monotonic()
            cleaned = _cleaned(cleaner, question)
            wall.append(log_bytes / MB / (time.monotonic() - began))
            assert cleaned.keys == keys
            cpu.append(log_bytes / MB / _cpu_seconds(cleaner.pid))
            memory.append(_peak_mebibytes(cleaner.pid))
            cleaner.stop()
    what = f"{keys:,} keys, records of {record_bytes:,} B"
    yield Figure(
        name=f"cleaning, {what}",
        unit="MB/s",
        samples=tuple(wall),
        better=Better.HIGHER,
        target=target,
        limited_by=f"{max(cpu):.0f} MB for each second of CPU",
    )
    yield Figure(
        name=f"memory of the cleaner, {what}", unit="MiB", samples=tuple(memory), target=MEMORY_MIB_MAX
    )


def _cleaned(cleaner: ChildProcess, job: bytes) -> CleaningResult:
    """Run all steps of one cleaning job."""
    step = step_in(cleaner.send_request(job))
    while not isinstance(step, CleaningResult):
        step = step_in(cleaner.send_request(msgspec.msgpack.encode(CleaningRequest(None))))
    return step


def write_log(folder: str, keys: int, records: int, record_bytes: int) -> tuple[bytes, int]:
    """Write every key once, then keys at random. Returns the cleaning job for the log, and its size."""
    log = PartitionLog(OsDisk(), folder, LogSettings(SEGMENT_BYTES, 10**15, 4096, 10 * MIB))
    random, value = Random(0), Random(1).randbytes(record_bytes - RECORD_OVERHEAD_BYTES)
    for first in range(0, records, count := max(BATCH_BYTES // record_bytes, 1)):
        numbers = (
            number if number < keys else random.randrange(keys) for number in range(first, first + count)
        )
        made = [Record(Offset(0), 1_700_000_000_000 + n % 1000, b"key-%012d" % n, value) for n in numbers]
        batch = bytearray(build_batch(made))
        log.append(batch, parse_header(batch), LeaderEpoch(0))
    log.roll()
    pieces = segments_with_ends(log.segments)
    size = sum(segment.size_bytes for segment, _ in pieces)
    log_to_clean = LogToClean(Offset(0), log.log_end_offset, 0, size, is_overdue=False)
    job = job_for(log, log_to_clean, DeleteHorizons(0, 0, 0), memory_bytes=CLEANER_MEMORY_BYTES)
    return msgspec.msgpack.encode(CleaningRequest(job)), size


def _peak_mebibytes(pid: int | None) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say")


def _cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# Delay


def _delay(settings: Settings) -> Iterator[Figure]:
    records = settings.scaled(1_000_000)
    with temporary_folder() as folder:
        with running_broker(folder, ["log.cleaner.enable=false"]) as broker:
            _compacted_topic(broker)
            in_another_process(fill, broker.bootstrap, broker.pids, settings.scaled(KEYS), records)
            alone = _waits(broker, settings)
        with running_broker(folder, ["log.cleaner.backoff.ms=1"]) as broker:
            deadline = time.monotonic() + ANSWER_S_MAX
            while not _is_cleaning(broker) and time.monotonic() < deadline:
                pass  # that looks for a moment each time
            beside = _waits(broker, settings)
            still_cleaning = _is_cleaning(broker)
    note = "" if still_cleaning else "the cleaning ended before the producer did"
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        quiet, busy = percentile(alone, share), percentile(beside, share)
        yield Figure(name=f"produce and wait, nothing is cleaned, {label}", unit="ms", samples=(quiet,))
        yield Figure(
            name=f"produce and wait, beside a cleaning, {label}",
            unit="ms",
            samples=(busy,),
            target=DELAY_RATIO_MAX * quiet if label == "p99" else None,
            limited_by=note,
        )


def _is_cleaning(broker: Broker) -> bool:
    """Whether the broker's cleaner uses the processor. Between two cleanings it waits."""
    # A child belongs to the thread that started it.
    threads = Path(f"/proc/{broker.pid}/task").iterdir()
    children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    cleaners = [int(pid) for pid in children if MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    before = sum(map(_cpu_seconds, cleaners))
    time.sleep(0.1)
    return bool(cleaners) and sum(map(_cpu_seconds, cleaners)) > before


def _compacted_topic(broker: Broker) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "flush.policy": "os"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": LOG_ERRORS})
    new = NewTopic("compacted", num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([new])["compacted"].result(ANSWER_S_MAX)


def fill(bootstrap: str, broker_pids: tuple[int, ...], keys: int, records: int) -> None:
    producer = connected_producer(Job(bootstrap, broker_pids, "compacted", 0, records, 1000), dict(BATCHED))
    random, value = Random(0), bytes(1000 - RECORD_OVERHEAD_BYTES)
    for _ in range(records):
        key = b"key-%012d" % random.randrange(keys)
        while True:
            try:
                producer.produce("compacted", value, key=key)
                break
            except BufferError:
                producer.poll(0.05)
    flush(producer)


def _waits(broker: Broker, settings: Settings) -> list[float]:
    with new_topic(broker.bootstrap, 1, "before_ack") as topic:
        job = Job(broker.bootstrap, broker.pids, topic, 1, settings.scaled(WAITING_RECORDS), 100)
        _, took_ms = in_another_process(produce_and_wait, job)
    return sorted(took_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast compacted logs are cleaned.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, once")
    figures = list(measure(QUICK if parser.parse_args().quick else FULL))
    print(table(figures))
    return int(any(figure.is_met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
