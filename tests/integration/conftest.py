"""A broker process that the tests of one worker share; each test has topics of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.cluster_processes import ClusterProcesses, running_cluster
from tests.integration.messages import QUIET

ADMIN_SECONDS_MAX = 20.0


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """For tests that need nothing special of it and do it no harm."""
    with serving(tmp_path_factory.mktemp("shared") / "data") as broker:
        yield broker


@pytest.fixture
def bootstrap(shared_broker: BrokerProcess) -> str:
    return shared_broker.bootstrap


@pytest.fixture(scope="module")
def started_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    """Three brokers for the tests of a file, with the settings that the file names `CLUSTER_SETTINGS`."""
    settings = getattr(request.module, "CLUSTER_SETTINGS", None)
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: ClusterProcesses) -> ClusterProcesses:
    """With every broker there, also after a test that failed."""
    started_cluster.start_missing()
    return started_cluster


class CreateTopic(Protocol):
    def __call__(self, name: str, partitions: int, config: dict[str, str] | None = None) -> None: ...


@pytest.fixture
def create_topic(bootstrap: str) -> CreateTopic:
    """In the shared broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def create(name: str, partitions: int, config: dict[str, str] | None = None) -> None:
        for future in admin.create_topics([NewTopic(name, partitions, config=config or {})]).values():
            future.result(ADMIN_SECONDS_MAX)

    return create


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def own_broker(data_dir: Path) -> Iterator[BrokerProcess]:
    """For tests that stop, kill or fill it."""
    with serving(data_dir) as broker:
        yield broker
