"""What a batch that is begun again takes for written: against a cluster in memory, without Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.protocol.messages.list_offsets import LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse
from penstock.spark.pipelines.etl.stage_sink import DeadLetterTarget
from penstock.spark.pipelines.etl.stage_topic import StageTopic
from penstock.spark.pool import ClientSettings
from penstock.spark.source import source
from penstock.spark.source.source import BatchReader, OffsetRangePartition, table_schema
from penstock.wire.cluster_client import EARLIEST, ClusterClient
from tests.unit.wire.fake_cluster import ORDERS, OTHER, FakeCluster, client_of, offsets_answer

START, STABLE, END = 30, 40, 100


def offsets_beside_an_open_transaction(request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Somebody else has written a record at STABLE and has not committed it."""
    is_earliest = all(each.timestamp == EARLIEST for topic in request.topics for each in topic.partitions)
    return offsets_answer(offset=0 if is_earliest else STABLE if request.isolation_level else END)(request)


def test_what_is_behind_an_open_transaction_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster(1)
    cluster.brokers[0].on(LIST_OFFSETS, offsets_beside_an_open_transaction)

    @contextmanager
    def borrowed_client(settings: ClientSettings) -> Iterator[ClusterClient]:
        yield client_of(cluster)

    monkeypatch.setattr(source, "borrowed_client", borrowed_client)
    access = {"kafka.bootstrap.servers": "broker-0:9092"}
    stage = StageTopic(
        "orders",
        query="shop-load",
        key=[],
        access=access,
        checkpoint=tmp_path,
        dead=DeadLetterTarget("dead", "load"),
    )
    options = stage.read_options_from({"0": START, "1": START})
    tasks = BatchReader.from_options(options, table_schema(options)).partitions()
    ranges = [task.offset_range for task in tasks if isinstance(task, OffsetRangePartition)]
    assert [(each.partition, each.start, each.end) for each in ranges] == [
        (ORDERS, START, END),
        (OTHER, START, END),
    ]
