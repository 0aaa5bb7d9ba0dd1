"""What a task does with its range while brokers describe its topic differently."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.protocol.messages.fetch import FETCH
from penstock.protocol.messages.metadata import METADATA
from penstock.spark.options.options import batch_read_settings
from penstock.spark.pool import ClientSettings
from penstock.spark.source import reading
from penstock.spark.source.discovery import DataLost
from penstock.spark.source.offsets import OffsetRange
from penstock.spark.source.reading import read_range
from penstock.spark.topic_table import TopicTable, full_schema
from penstock.types import Offset, TopicId
from penstock.wire.cluster_client import ClusterClient
from penstock.wire.retry_policy import GONE_AFTER_S
from tests.unit.wire.fake_cluster import ORDERS, TOPIC_ID, FakeCluster, Log, client_of

OTHER_ID = TopicId(b"another topic...")
RECORDS = 30
WANTED = OffsetRange(ORDERS, Offset(0), Offset(RECORDS), TOPIC_ID)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(3)
    made.leaders = {0: 2, 1: 2}
    made.brokers[2].on(FETCH, Log(RECORDS // 10).serve)
    client = client_of(made)

    @contextmanager
    def borrowed_client(settings: ClientSettings) -> Iterator[ClusterClient]:
        yield client

    monkeypatch.setattr(reading, "borrowed_client", borrowed_client)
    return made


def read_and_lost(**options: str) -> tuple[int, list[int]]:
    """How many rows are read, and which numbers of offsets are reported as lost."""
    needed = {"bootstrap": "broker-0:9092", "subscribe": "orders"}
    lost: list[int] = []
    table = TopicTable(full_schema(include_headers=False))
    batches = read_range(batch_read_settings(needed | options), table, WANTED, lost.append)
    return sum(batch.num_rows for batch in batches), lost


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("facts", [{"topic_id": OTHER_ID}, {"existing": set()}])
def test_one_broker_that_is_behind_costs_no_records(
    cluster: FakeCluster, facts: dict[str, object], loss: str
) -> None:
    cluster.mislead(0, **facts)
    assert read_and_lost(failOnDataLoss=loss) == (RECORDS, [])
    assert [broker.count(METADATA) for broker in cluster.brokers] == [1, 1, 0]


def test_a_range_of_a_topic_made_anew_is_lost_when_all_brokers_agree(
    cluster: FakeCluster,
) -> None:
    cluster.topic_id = OTHER_ID
    assert read_and_lost(failOnDataLoss="false") == (0, [RECORDS])
    assert GONE_AFTER_S - 1 <= cluster.now <= GONE_AFTER_S
    with pytest.raises(DataLost, match="topic orders was deleted and made anew"):
        read_and_lost(failOnDataLoss="true")
