"""One broker that describes a topic that was deleted does not make a pipeline refuse its checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.protocol.messages.list_offsets import LIST_OFFSETS
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.archive.archive import ArchiveSettings
from penstock.spark.pipelines.common.checkpoint import noted_topic_ids
from penstock.spark.pipelines.detect import detect
from penstock.spark.pipelines.detect.detect import DetectSettings
from penstock.spark.pipelines.detect.rules import DetectRule, DetectRules, RuleKind, StreamSpec
from penstock.spark.pipelines.etl import etl
from penstock.types import TopicId
from penstock.wire.cluster_client import ClusterClient
from tests.spark.etl_runs import settings_for, written
from tests.unit.wire.fake_cluster import TOPIC_ID, FakeCluster, client_of, offsets_answer

OLD_ID = TopicId(b"deleted long ago")
RULES = DetectRules(StreamSpec(), (DetectRule("many", RuleKind.COUNT, 2, 60_000),))
SPEC = """
    name = "purchases"
    [extract]
    from = "topic"
    topic = "orders"
    schema = "id bigint"
    [load]
    to = "topic"
    topic = "loaded"
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(2)
    made.existing = {"orders", "alerts", "orders.rejected", "purchases.extract", "purchases.dead", "loaded"}
    for broker in made.brokers:
        broker.on(LIST_OFFSETS, offsets_answer(offset=0))
    client = client_of(made)
    monkeypatch.setattr(client, "create_topic", lambda *given: None)

    @contextmanager
    def borrowed(access: object) -> Iterator[ClusterClient]:
        yield client

    for pipeline in (archive, detect, etl):
        monkeypatch.setattr(pipeline, "open_client", borrowed)
    return made


def test_archive_goes_on_though_one_broker_describes_the_deleted_topic(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    settings = ArchiveSettings(("orders",), tmp_path / "lake", {})
    archive.check(settings)
    (settings.checkpoint_folder / "metadata").touch()
    cluster.mislead(0, topic_id=OLD_ID)
    archive.check(settings)
    assert noted_topic_ids(settings.checkpoint_folder) == {"orders": TOPIC_ID}
    cluster.mislead(1, topic_id=OLD_ID)
    with pytest.raises(CommandFailed, match="deleted and made anew"):
        archive.check(settings)


def test_detect_goes_on_though_one_broker_describes_the_deleted_topic(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    settings = DetectSettings("orders", "alerts", RULES, {}, tmp_path / "checkpoint")
    assert detect.check(settings) == TOPIC_ID
    (settings.checkpoint / "metadata").touch()
    cluster.mislead(0, topic_id=OLD_ID)
    assert detect.check(settings) == TOPIC_ID


def test_etl_goes_on_though_one_broker_describes_the_deleted_topic(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    settings = settings_for(written(tmp_path, SPEC), "broker-0:9092")
    etl.check(settings)
    (settings.checkpoint("extract") / "metadata").touch()
    cluster.mislead(0, topic_id=OLD_ID)
    etl.check(settings)
    assert noted_topic_ids(settings.checkpoint("extract")) == {"orders": TOPIC_ID}
