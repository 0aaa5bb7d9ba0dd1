"""Troubles of the disk that once cost more than they had to, each as a client sees it.

A full disk, a lack of descriptors, one unreadable file: whoever is not concerned notices nothing,
and whoever is concerned is told so and is served again when the trouble is over.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from penstock.broker.broker import BrokerLimits
from penstock.errors import ErrorCode
from penstock.host.disk import Disk
from penstock.host.os_disk import OsDisk
from penstock.limits import DISK_RESERVE_BYTES
from penstock.protocol.batches import split_batches
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest
from penstock.protocol.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.records import Record, build_batch, iterate_records
from penstock.testing.in_process import broker_with
from penstock.types import Offset
from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.disk_faults import small_disk
from tests.integration.messages import FIRST_TIMESTAMP_MS
from tests.integration.os_faults import OsFaults, no_descriptor_free, system_error
from tests.integration.raw_client import (
    FETCH_VERSION,
    METADATA_VERSION,
    PRODUCE_VERSION,
    RawClient,
    batch_of,
    connected,
    fetch_request,
)

MIB = 1024 * 1024
HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
NEVER_MS = 10**9
ERROR, WARNING = logging.ERROR, logging.WARNING


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> OsFaults:
    return OsFaults(monkeypatch)


@contextmanager
def client_of(
    data_dir: Path,
    limits: BrokerLimits | None = None,
    disk: Disk | None = None,
    /,
    **settings: str | int,
) -> Iterator[RawClient]:
    """A client of a broker in this process, which runs as long as the client does."""
    with (
        broker_with(data_dir, settings, limits=limits, disk=disk) as running,
        connected(running.bootstrap) as client,
    ):
        yield client


def partition_of(client: RawClient, topic: str, offset: int = 0) -> PartitionData:
    return client.fetch(topic, offset).responses[0].partitions[0]


def values_of(partition: PartitionData) -> list[bytes | None]:
    data = partition.records or b""
    assert isinstance(data, bytes | bytearray | memoryview)
    walk = split_batches(data)
    return [
        record.value
        for start, _ in walk
        for record in iterate_records(data[start : walk.position], limit_bytes=2 * MIB)
    ]


def write(client: RawClient, topic: str, *values: bytes) -> None:
    client.create_topic(topic)
    for value in values:
        assert client.produce(topic, batch_of(value)).error_code == ErrorCode.NONE


def delete_topic(client: RawClient, topic: str) -> int:
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
    return client.ask(DELETE_TOPICS, 4, request).responses[0].error_code


# A full disk


def test_a_topic_can_be_deleted_when_there_is_no_room_to_rename_its_folder(
    data_dir: Path, faults: OsFaults
) -> None:
    """Some file systems need a block for it. What was set aside for freeing space is given up."""
    full = faults.add("rename", lambda path: path.endswith("/big-0"), system_error(errno.ENOSPC), times_max=1)
    with client_of(data_dir, BrokerLimits(disk_reserve_check_ms=NEVER_MS)) as client:
        write(client, "big", bytes(MIB // 2))
        write(client, "other", b"before")
        (data_dir / "reserve").write_bytes(bytes(1024))

        assert delete_topic(client, "big") == ErrorCode.NONE

        assert full.hits == 1
        assert not (data_dir / "reserve").exists()
        eventually(
            lambda: {path.name for path in (data_dir / "logs").iterdir() if path.is_dir()} == {"other-0"}
        )
        write(client, "other", b"after")
        write(client, "big", b"of another topic")
        assert values_of(partition_of(client, "big")) == [b"of another topic"]


def test_a_folder_that_cannot_be_renamed_does_not_end_the_broker(data_dir: Path, faults: OsFaults) -> None:
    full = faults.add("rename", lambda path: path.endswith("/big-0"), system_error(errno.ENOSPC))
    with client_of(data_dir) as client:
        write(client, "big", b"old")
        write(client, "other", b"kept")

        assert delete_topic(client, "big") == ErrorCode.NONE

        assert full.hits >= 1
        assert values_of(partition_of(client, "other")) == [b"kept"]
        client.create_topic("new")
        assert partition_of(client, "new").high_watermark == 0
    full.lift()
    with client_of(data_dir) as client:
        write(client, "big", b"new")
        assert values_of(partition_of(client, "big")) == [b"new"], "what was deleted never comes back"
        write(client, "other", b"more")


def test_a_really_full_disk_is_freed_by_deleting_a_topic(tmp_path: Path) -> None:
    """The metadata that says so needs room too."""
    with small_disk(tmp_path, megabytes=12) as disk:
        running = BrokerProcess(disk / "data", stderr_path=tmp_path / "broker.stderr")
        try:
            running.start()
            # As the broker does itself after two seconds.
            (disk / "data" / "reserve").write_bytes(bytes(DISK_RESERVE_BYTES))
            with connected(running.bootstrap) as client:
                write(client, "other", b"before")
                client.create_topic("big")
                for size in (300_000, 1_000):
                    while (answer := client.produce("big", batch_of(os.urandom(size)))).error_code == 0:
                        pass
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                fill_up(disk / "filler")

                assert delete_topic(client, "big") == ErrorCode.NONE

                eventually(lambda: not list((disk / "data" / "logs").glob("*.deleted")))
                write(client, "other", os.urandom(300_000), os.urandom(300_000))
            assert running.is_running
        finally:
            running.kill()


def fill_up(path: Path) -> None:
    """To the last block."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(path).f_bavail == 0


# No descriptor


@pytest.mark.parametrize(
    ("batches", "outcome"),
    [
        # By a thread of its own, and which clients try again.
        pytest.param(3, ErrorCode.KAFKA_STORAGE_ERROR, id="on the device"),
        # Another file is closed for it, and opened again when its turn comes.
        pytest.param(1, ErrorCode.NONE, id="in memory with its file closed"),
    ],
)
def test_a_fetch_without_a_free_descriptor_costs_others_no_reply(
    data_dir: Path, batches: int, outcome: ErrorCode
) -> None:
    written = [bytes([number]) * 6_000 for number in range(batches)]  # each beyond an index entry
    with serving(data_dir) as running, ExitStack() as stack:
        with connected(running.bootstrap) as client:
            write(client, "closed", *written)
        assert running.stop() == 0
        running.start()
        assert running.get("/health/ready")[0] == 200
        with connected(running.bootstrap) as client:
            write(client, "open", b"just written")
            both = FetchRequest(
                topics=[
                    FetchTopic(topic=name, partitions=[FetchPartition(partition_max_bytes=MIB)])
                    for name in ("closed", "open")
                ]
            )

            def is_as_expected() -> bool:
                use_gaps_between_descriptors(running, stack)
                with no_descriptor_free(running.pid):
                    reply = client.ask(FETCH, FETCH_VERSION, both)
                closed, served = (topic.partitions[0] for topic in reply.responses)
                assert reply.error_code == ErrorCode.NONE
                return (closed.error_code, values_of(closed), values_of(served)) == (
                    outcome,
                    [] if outcome else written,
                    [b"just written"],
                )

            eventually(is_as_expected)  # a checkpoint may open and close files just then
            assert values_of(partition_of(client, "closed")) == written, "and then it works"
            write(client, "closed", b"more")
        assert running.get("/health/ready")[0] == 200


def use_gaps_between_descriptors(running: BrokerProcess, stack: ExitStack) -> None:
    """With connections: otherwise a limit would also forbid to open again what was closed."""

    def has_no_gap() -> bool:
        used = [int(path.name) for path in Path(f"/proc/{running.pid}/fd").iterdir()]
        return len(used) == max(used) + 1

    while not has_no_gap():
        stack.enter_context(connected(running.bootstrap)).create_topic("open")


@pytest.mark.parametrize("policy", ["before_ack", "os"])
def test_a_producer_to_more_partitions_than_open_files_gets_through(
    data_dir: Path, faults: OsFaults, policy: str
) -> None:
    logs = f"{data_dir}/logs/"
    faults.add("open", lambda path: path.startswith(logs) and opened_below(logs) >= 30, no_descriptor_left)
    settings: dict[str, str | int] = {"num.partitions": 100, "log.flush.policy": policy}
    with client_of(data_dir, None, OsDisk(files_max=20), **settings) as client:
        client.create_topic("wide")
        for _ in range(2):
            left = list(range(100))
            deadline = time.monotonic() + 10
            while left:
                assert time.monotonic() < deadline, f"{len(left)} partitions are locked out"
                left = refused_of(client, "wide", left)
        for partition in (0, 50, 99):
            fetched = client.fetch("wide", 0, partition=partition).responses[0].partitions[0]
            assert values_of(fetched) == [b"x", b"x"]


no_descriptor_left = system_error(errno.EMFILE)


def opened_below(folder: str) -> int:
    """How many files there this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            count += str(link.readlink()).startswith(folder)
    return count


def refused_of(client: RawClient, topic: str, partitions: list[int]) -> list[int]:
    """Those of the partitions, written to with one request, that must be tried again."""
    data = [PartitionProduceData(index, batch_of(b"x")) for index in partitions]
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(topic, partition_data=data)]
    )
    answers = client.ask(PRODUCE, PRODUCE_VERSION, request).responses[0].partition_responses
    assert {answer.error_code for answer in answers} <= {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
    return [answer.index for answer in answers if answer.error_code]


# One bad file


@pytest.mark.parametrize("call", ["open", "pread"])
def test_one_unreadable_partition_at_start_leaves_all_others_in_service(
    data_dir: Path, faults: OsFaults, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    with client_of(data_dir) as client:
        for topic in ("a-good", "bad", "c-good"):
            write(client, topic, b"written before")
    broken = faults.add(
        call, lambda path: "/bad-0/" in path and path.endswith(".log"), system_error(errno.EIO)
    )
    with caplog.at_level(ERROR, logger="penstock"), client_of(data_dir) as client:
        assert broken.hits >= 1
        assert partition_of(client, "bad").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce("bad", batch_of(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for topic in ("a-good", "c-good"):
            assert values_of(partition_of(client, topic)) == [b"written before"]
            write(client, topic, b"written meanwhile")
    assert [line.split()[:2] for line in caplog.messages] == [["partition.damaged", "partition=bad-0"]]
    broken.lift()
    with client_of(data_dir) as client:
        write(client, "bad", b"written after")
        assert values_of(partition_of(client, "bad")) == [b"written before", b"written after"]


def no_descriptor(faults: OsFaults, folder: Path) -> None:
    _unreadable_time_index(faults, errno.EMFILE)


def unreadable(faults: OsFaults, folder: Path) -> None:
    _unreadable_time_index(faults, errno.EIO)


def _unreadable_time_index(faults: OsFaults, number: int) -> None:
    faults.add("open", lambda path: "/a-bad-0/" in path and path.endswith(".timeindex"), system_error(number))


def write_old_records(data_dir: Path, *topics: str) -> None:
    with client_of(data_dir, **{"log.retention.ms": -1, "log.roll.ms": HOUR_MS}) as client:
        for topic in topics:
            client.create_topic(topic)
            for days_ago in (3, 2, 1):  # a segment each
                assert client.produce(topic, batch_from(days_ago)).error_code == 0


KEEPS_LITTLE = {"log.retention.ms": HOUR_MS, "log.retention.check.interval.ms": 1}


def damage_times(folder: Path) -> None:
    """Neither the time index nor the log says how old the segment is."""
    min(folder.glob("*.timeindex")).unlink()
    with min(folder.glob("*.log")).open("r+b") as file:
        file.seek(8)
        file.write(bytes(4))


@pytest.mark.parametrize("trouble", [no_descriptor, unreadable])
def test_retention_goes_on_when_one_partition_cannot_be_looked_at(
    data_dir: Path,
    faults: OsFaults,
    caplog: pytest.LogCaptureFixture,
    trouble: Callable[[OsFaults, Path], None],
) -> None:
    write_old_records(data_dir, "a-bad", "b-good")
    trouble(faults, data_dir / "logs" / "a-bad-0")
    with caplog.at_level(WARNING, logger="penstock"), client_of(data_dir, **KEEPS_LITTLE) as client:
        eventually(lambda: partition_of(client, "b-good").error_code == ErrorCode.OFFSET_OUT_OF_RANGE)
        assert partition_of(client, "b-good", 3).log_start_offset == 3
        assert partition_of(client, "a-bad", 3).log_start_offset == 0, "nobody knows whether it is old"
        rounds = len(lines_of(caplog, "retention.postponed"))
        eventually(lambda: len(lines_of(caplog, "retention.postponed")) > rounds)
    assert all("partition=a-bad-0" in line for line in lines_of(caplog, "retention.postponed"))


def test_retention_takes_a_damaged_partition_offline_and_goes_on(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_old_records(data_dir, "a-bad", "b-good")
    damage_times(data_dir / "logs" / "a-bad-0")
    with caplog.at_level(WARNING, logger="penstock"), client_of(data_dir, **KEEPS_LITTLE) as client:
        eventually(lambda: partition_of(client, "b-good").error_code == ErrorCode.OFFSET_OUT_OF_RANGE)
        assert partition_of(client, "a-bad", 3).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (line,) = lines_of(caplog, "partition.damaged")
    assert "partition=a-bad-0" in line


def lines_of(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [line for line in caplog.messages if line.startswith(event)]


def batch_from(days_ago: float, size: int = 10) -> bytes:
    return build_batch([Record(Offset(0), int(FIRST_TIMESTAMP_MS - days_ago * DAY_MS), None, bytes(size))])


# What must be known after a restart


def test_the_age_of_a_segment_counts_from_its_first_record(data_dir: Path) -> None:
    """Otherwise the segment of a quiet topic never ends, and nothing in it is ever removed."""
    settings = {"log.retention.ms": -1, "log.roll.ms": 7 * DAY_MS}
    for days_ago in (20, 17, 14, 12):
        # Large enough for an index entry each: a start reads nothing before the last of them.
        with client_of(data_dir, **settings) as client:
            client.create_topic("quiet")
            assert client.produce("quiet", batch_from(days_ago, size=6_000)).error_code == 0
    segments = sorted(path.stem.lstrip("0") for path in (data_dir / "logs" / "quiet-0").glob("*.log"))
    assert segments == ["", "3"], "the fourth record is more than seven days after the first"


def test_a_leader_epoch_goes_on_after_a_clean_stop(data_dir: Path) -> None:
    for _ in range(2):
        with client_of(data_dir) as client:
            client.create_topic("t")
            assert epoch_of(client, "t") == 0


def epoch_of(client: RawClient, topic: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return client.ask(METADATA, METADATA_VERSION, request).topics[0].partitions[0].leader_epoch


def test_a_reader_of_records_lost_in_a_crash_is_told_where_to_go_on(data_dir: Path) -> None:
    """Without a flush before the acknowledgement records may be read and then lost."""
    with serving(data_dir, settings={"log.flush.policy": "os"}) as running:
        with connected(running.bootstrap) as client:
            write(client, "t", b"kept", b"read, then lost")
            assert partition_of(client, "t").high_watermark == 2
        running.kill()
        lose_last_batch(data_dir / "logs" / "t-0")
        running.start()
        with connected(running.bootstrap) as client:
            write(client, "t", b"in its place")
            believes_in_0, has_read_of_0 = fetch_request("t", 2), fetch_request("t", 2)
            believes_in_0.topics[0].partitions[0].current_leader_epoch = 0
            has_read_of_0.topics[0].partitions[0].last_fetched_epoch = 0
            fenced, told = (
                client.ask(FETCH, FETCH_VERSION, request).responses[0].partitions[0]
                for request in (believes_in_0, has_read_of_0)
            )
            assert epoch_of(client, "t") == 1
    assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert told.error_code == ErrorCode.NONE
    assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (0, 1)


def lose_last_batch(folder: Path) -> None:
    """As a power failure before the first checkpoint would."""
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()
    (log,) = folder.glob("*.log")
    starts = [start for start, _ in split_batches(log.read_bytes())]
    os.truncate(log, starts[-1])
