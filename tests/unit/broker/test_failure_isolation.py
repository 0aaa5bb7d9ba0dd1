"""One thing fails; what has nothing to do with it goes on, and nobody waits for ever."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.broker.broker import Environment, RunningBroker, running_broker
from penstock.broker.cluster.metadata_service import MetadataServiceLimits
from penstock.config.sources import load
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from penstock.testing import broker
from tests.integration.os_faults import OsFaults
from tests.integration.raw_client import Closed, RawClient, batch_of, connected, records_of
from tests.unit.broker.support import running_cluster

Result = TypeVar("Result")


def create(client: RawClient, topic: str) -> CreatableTopicResult:
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    reply = client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(timeout_ms=5_000, topics=[wanted]))
    return reply.topics[0]


async def as_client(broker: RunningBroker, does: Callable[[RawClient], Result]) -> Result:
    """Over the network, while the broker's loop goes on."""
    listener = broker.listeners[0]

    def connect() -> Result:
        with connected(f"{listener.host}:{listener.port}") as client:
            return does(client)

    return await asyncio.to_thread(connect)


async def fail_for_a_bug(before: ClusterImage, after: ClusterImage) -> None:
    raise ZeroDivisionError("a mistake of ours")


async def test_when_metadata_can_no_longer_be_changed_that_is_said_at_once(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "kafka": "127.0.0.1:0"})
    async with running_broker(config, Environment()) as broker:
        await as_client(broker, lambda client: create(client, "before"))
        broker.cluster.subscribe(fail_for_a_bug)
        with pytest.raises(Closed):
            await as_client(broker, lambda client: create(client, "fatal"))

        for topic in ("after", "long after"):
            refused = await as_client(broker, partial(create, topic=topic))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert refused.error_message == "the metadata can no longer be changed"

        assert "'metadata' ended" in (broker.not_ready() or "")
        produced = await as_client(broker, lambda client: client.produce("before", batch_of(b"x")))
        assert produced.error_code == ErrorCode.NONE, "what needs no change of metadata goes on"


@pytest.mark.parametrize(
    "queued_max",
    [
        pytest.param(1_000, id="in the queue"),
        pytest.param(1, id="for room in the queue"),
    ],
)
async def test_changes_that_wait_when_the_writer_ends_do_not_wait_for_ever(queued_max: int) -> None:
    async with running_cluster(limits=MetadataServiceLimits(changes_queued_max=queued_max)) as harness:
        harness.cluster.subscribe(fail_for_a_bug)
        waiting = [asyncio.create_task(harness.topic(name)) for name in ("fatal", "next", "last")]
        async with asyncio.timeout(2):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(outcome, BaseException) for outcome in outcomes), "none was carried out"
            with pytest.raises(ApiError, match="can no longer be changed"):
                await harness.cluster.change(lambda image: pytest.fail("nobody carries it out"))


@pytest.fixture
def cold_topic(tmp_path: Path) -> Path:
    """Records that are only on disk."""
    with broker(tmp_path / "data") as running, connected(running.bootstrap) as client:
        client.create_topic("t")
        for _ in range(3):
            assert client.produce("t", batch_of(bytes(6_000))).error_code == 0
    return tmp_path / "data"


def test_a_fetch_that_fails_for_a_bug_is_answered_and_so_is_what_follows(
    cold_topic: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = OsFaults(monkeypatch)
    with broker(cold_topic) as running, connected(running.bootstrap) as client:
        bug = faults.add("open", lambda path: path.endswith(".log"), ZeroDivisionError, times_max=1)
        failed = client.fetch("t", 0)
        assert bug.hits == 1
        assert failed.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert records_of(client.fetch("t", 0)), "on the same connection"
    assert sum(line.startswith("task.failed") for line in caplog.messages) == 1
