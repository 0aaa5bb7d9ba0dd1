"""DescribeLogDirs: sizes on disk, room that is left, and a disk that failed."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.apis.describe_log_dirs import DescribeLogDirs
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from penstock.security.access import AllowEverything, Authorizer
from penstock.types import Offset
from tests.unit.broker.config_support import BrokerHarness, append, deny_everything, running

PATH = "/somewhere/logs"


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def described(
    inside: BrokerHarness,
    topics: list[tuple[str, list[int]]] | None,
    *,
    failure: str | None = None,
    authorizer: Authorizer | None = None,
) -> Any:
    asked = None if topics is None else [DescribableLogDirTopic(*topic) for topic in topics]
    handler = DescribeLogDirs(inside.directory, inside.partitions, inside.pool, PATH, lambda: failure)
    return await inside.ask(
        DESCRIBE_LOG_DIRS,
        handler,
        DescribeLogDirsRequest(asked),
        authorizer=authorizer or AllowEverything(),
    )


def sizes(reply: Any) -> dict[tuple[str, int], int]:
    [result] = reply.results
    entries = [(topic.name, entry) for topic in result.topics for entry in topic.partitions]
    assert all((entry.offset_lag, entry.is_future_key) == (0, False) for _, entry in entries)
    found = {(name, entry.partition_index): entry.partition_size for name, entry in entries}
    assert len(found) == len(entries), "each partition is listed once"
    return found


def log_bytes(folder: str) -> int:
    return sum(file.stat().st_size for file in Path(folder).glob("*.log"))


async def test_null_lists_every_partition_with_the_bytes_of_its_log_files(inside: BrokerHarness) -> None:
    one, other = await inside.topic("t", partitions=2)
    await inside.topic("__consumer_offsets", internal=True)
    append(one, 10, 20)
    append(one, 30)

    reply = await described(inside, None)
    on_disk = log_bytes(one.log.folder)
    assert on_disk > 100
    assert sizes(reply) == {("t", 0): on_disk, ("t", 1): 0, ("__consumer_offsets", 0): 0}
    assert other.log.size_bytes == 0


async def test_deleting_records_frees_nothing_until_their_segment_goes(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    append(partition, 10, 20)
    before = sizes(await described(inside, None))
    partition.delete_before(Offset(2))

    assert sizes(await described(inside, None)) == before


async def test_only_what_was_asked_for_is_listed_and_only_once(inside: BrokerHarness) -> None:
    await inside.topic("t", partitions=3)
    await inside.topic("u")

    reply = await described(inside, [("t", [2, 0, 2]), ("t", [0]), ("t", [9, -1]), ("absent", [0])])
    assert sizes(reply).keys() == {("t", 0), ("t", 2)}


async def test_an_empty_list_asks_for_the_directory_alone(inside: BrokerHarness) -> None:
    await inside.topic("t")

    reply = await described(inside, [])
    [result] = reply.results
    assert (result.error_code, result.log_dir, result.topics) == (0, PATH, [])


async def test_the_room_of_the_file_system_is_told(inside: BrokerHarness, tmp_path: Path) -> None:
    [result] = (await described(inside, None)).results

    total = shutil.disk_usage(tmp_path).total
    assert result.total_bytes == total
    assert 0 < result.usable_bytes <= total


async def test_a_failed_directory_is_a_storage_error_without_partitions(inside: BrokerHarness) -> None:
    await inside.topic("t")

    [result] = (await described(inside, None, failure="a sync failed")).results
    assert (result.error_code, result.log_dir, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, PATH, [])
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)


async def test_a_directory_that_is_gone_is_a_storage_error(inside: BrokerHarness) -> None:
    await inside.topic("t")
    inside.directory.disk.remove_folder(inside.directory.path)

    [result] = (await described(inside, None)).results
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def test_who_may_not_describe_the_cluster_sees_no_directory(inside: BrokerHarness) -> None:
    await inside.topic("t")

    reply = await described(inside, None, authorizer=deny_everything)
    assert (reply.error_code, reply.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
