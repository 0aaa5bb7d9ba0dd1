"""A leader finds that its copy is damaged. Others have it whole: one of them leads, and nothing is missed."""

import shutil
from pathlib import Path

from confluent_kafka import Producer

from tests.integration.broker_process import eventually
from tests.integration.cluster_load import read_all
from tests.integration.cluster_processes import running_cluster
from tests.integration.test_cli_storage_trouble import SEGMENTS, flip

RECORDS = 60
EVERYBODY = [1, 2, 3]


def test_a_damaged_leader_hands_over(tmp_path: Path) -> None:
    with running_cluster(tmp_path, settings=SEGMENTS) as cluster:
        cluster.create_led_by("k", 1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
        for number in range(RECORDS):
            producer.produce("k", b"%080d" % number + b" " * 90_000)
            producer.flush(10)
        cluster.until_in_sync("k", EVERYBODY)
        segments = sorted((cluster.brokers[1].data_dir / "logs" / "k-0").glob("*.log"))
        assert len(segments) > 3
        assert cluster.brokers[1].stop() == 0  # or the start would look at everything, and fetch it anew
        flip(segments[1], 5_000)
        cluster.brokers[1].start()
        cluster.until_in_sync("k", EVERYBODY)
        eventually(lambda: cluster.leader("k") == 1, seconds_max=30, every=0.2)

        assert read_all(cluster.bootstrap, "k") == list(range(RECORDS))
        assert cluster.leader("k") in (2, 3)
        assert 1 not in cluster.isr("k")
        assert "partition.handed_over" in cluster.brokers[1].stderr

        # And what the operations page advises helps.
        assert cluster.brokers[1].stop() == 0
        shutil.rmtree(segments[0].parent)
        cluster.brokers[1].start()
        cluster.until_in_sync("k", EVERYBODY)
        assert cluster.log_of(1, "k") == cluster.log_of(2, "k")


def test_a_copy_that_is_found_damaged_at_the_start_is_fetched_anew(tmp_path: Path) -> None:
    with running_cluster(tmp_path, settings=SEGMENTS) as cluster:
        cluster.create_led_by("k", 1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
        for number in range(20):
            producer.produce("k", b"%080d" % number + b" " * 90_000)
            producer.flush(10)
        cluster.until_in_sync("k", EVERYBODY)
        broker = cluster.brokers[3]
        assert broker.stop() == 0
        folder = broker.data_dir / "logs" / "k-0"
        last = sorted(folder.glob("*.log"))[-1]
        with last.open("r+b") as file:
            file.truncate(last.stat().st_size // 2)
        broker.start()
        cluster.until_in_sync("k", EVERYBODY)
        assert "partition.damaged" in broker.stderr
        assert (broker.data_dir / "strays" / "k-0.damaged").is_dir()
        assert cluster.log_of(3, "k") == cluster.log_of(1, "k")
        assert read_all(cluster.bootstrap, "k") == list(range(20))
