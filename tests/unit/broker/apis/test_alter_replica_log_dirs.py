"""AlterReplicaLogDirs: replicas are where they are, and there is nowhere else."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.apis.alter_replica_log_dirs import AlterReplicaLogDirs
from penstock.errors import ErrorCode
from penstock.protocol.messages.alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.security.access import AllowEverything, Authorizer
from tests.unit.broker.config_support import BrokerHarness, deny_everything, running

PATH = "/somewhere/logs"
OTHER = "/elsewhere"


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        await inside.topic("t", 2)
        yield inside


async def altered(
    inside: BrokerHarness,
    *asked: tuple[str, str, list[int]],
    failure: str | None = None,
    authorizer: Authorizer | None = None,
) -> dict[tuple[str, int], int]:
    dirs = [
        AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(topic, indexes)]) for path, topic, indexes in asked
    ]
    reply = await inside.ask(
        ALTER_REPLICA_LOG_DIRS,
        AlterReplicaLogDirs(inside.cluster, inside.partitions, PATH, lambda: failure),
        AlterReplicaLogDirsRequest(dirs),
        authorizer=authorizer or AllowEverything(),
    )
    assert len({topic.topic_name for topic in reply.results}) == len(reply.results)
    return {
        (topic.topic_name, entry.partition_index): entry.error_code
        for topic in reply.results
        for entry in topic.partitions
    }


async def test_a_replica_may_stay_where_it_is(inside: BrokerHarness) -> None:
    assert await altered(inside, (PATH, "t", [0, 1, 0])) == {("t", 0): 0, ("t", 1): 0}
    assert await altered(inside) == {}


@pytest.mark.parametrize("path", [OTHER, PATH + "/", "", "logs"])
async def test_there_is_no_other_directory(inside: BrokerHarness, path: str) -> None:
    missing = ErrorCode.LOG_DIR_NOT_FOUND
    assert await altered(inside, (path, "t", [0]), (path, "no", [0])) == {
        ("t", 0): missing,
        ("no", 0): missing,
    }


async def test_the_last_directory_named_for_a_partition_counts(inside: BrokerHarness) -> None:
    missing = ErrorCode.LOG_DIR_NOT_FOUND
    assert await altered(inside, (PATH, "t", [0]), (OTHER, "t", [0])) == {("t", 0): missing}
    assert await altered(inside, (OTHER, "t", [0]), (PATH, "t", [0])) == {("t", 0): 0}


async def test_a_partition_that_does_not_exist_is_unknown(inside: BrokerHarness) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await altered(inside, (PATH, "t", [2, -1]), (PATH, "no", [0])) == {
        ("t", 2): unknown,
        ("t", -1): unknown,
        ("no", 0): unknown,
    }


async def test_a_partition_without_a_replica_here_is_not_available(inside: BrokerHarness) -> None:
    inside.partitions.find = lambda topic, index: None  # type: ignore[method-assign]
    assert await altered(inside, (PATH, "t", [1])) == {("t", 1): ErrorCode.REPLICA_NOT_AVAILABLE}


async def test_after_a_failure_of_the_disk_nothing_can_be_altered(inside: BrokerHarness) -> None:
    codes = await altered(inside, (PATH, "t", [0]), failure="an I/O error")
    assert codes == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}


async def test_a_replica_that_is_offline_is_not_said_to_be_where_it_belongs(inside: BrokerHarness) -> None:
    damaged = inside.partitions.find("t", 0)
    assert damaged is not None
    damaged.go_offline("a batch does not match its checksum")
    codes = await altered(inside, (PATH, "t", [0, 1]))
    assert codes == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("t", 1): ErrorCode.NONE}


async def test_who_may_not_alter_the_cluster_learns_nothing(inside: BrokerHarness) -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    codes = await altered(inside, (PATH, "t", [0]), (OTHER, "no", [0]), authorizer=deny_everything)
    assert codes == {("t", 0): denied, ("no", 0): denied}
