"""A broker of a cluster finds that its copy of a partition is damaged, and others have it whole.

One of them leads, the damaged copy leaves the in-sync replicas and is copied anew, and nothing is missed.
"""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.errors import ErrorCode
from penstock.protocol.batches import parse_header
from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.cluster_load import read_all
from tests.integration.cluster_processes import ClusterProcesses
from tests.integration.raw_client import connected
from tests.integration.test_cli import Cli
from tests.integration.test_cli_storage_trouble import SEGMENTS, flip

RECORDS = 60
DAMAGED = 12
"""The first record of the second segment, which `rot` damages."""
EVERYBODY = [1, 2, 3]
GROUPS = "__consumer_offsets"
TIME_MS = 1_700_000_000_000
"""Timestamp of the first record; each is a millisecond later than the one before."""
CLUSTER_SETTINGS = {**SEGMENTS, "auto.balance": "false", "offsets.topic.num.partitions": 1}


@pytest.fixture
def topic(cluster: ClusterProcesses, topic: str) -> str:
    """Led by broker 1, and full of records that all replicas have."""
    fill(cluster, topic)
    return topic


def fill(cluster: ClusterProcesses, topic: str) -> None:
    cluster.create_led_by(topic, 1)
    write(cluster, topic, range(RECORDS))
    cluster.until_in_sync(topic, EVERYBODY)


def write(cluster: ClusterProcesses, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    for number in numbers:
        producer.produce(topic, b"%080d" % number + b" " * 90_000, timestamp=TIME_MS + number)
        assert producer.flush(30) == 0, f"record {number} was not acknowledged"


def rot(cluster: ClusterProcesses, node_id: int, *topics: str) -> None:
    """Flip a byte in an old segment of each, which a start after a clean stop does not read."""
    broker = cluster.brokers[node_id]
    assert broker.stop() == 0
    for topic in topics:
        segments = sorted((broker.data_dir / "logs" / f"{topic}-0").glob("*.log"))
        assert int(segments[1].stem) == DAMAGED
        flip(segments[1], 5_000)
    broker.start()
    for topic in topics:
        cluster.until_in_sync(topic, EVERYBODY)


def end_of_batch(log: Path, *, behind: int) -> int:
    """Where a batch ends. The byte before it is covered by the checksum, some bytes of a header are not."""
    content, position = log.read_bytes(), 0
    while position <= behind:
        position += parse_header(content, position).size
    return position


def until_copied_anew(cluster: ClusterProcesses, node_id: int, topic: str) -> None:
    """In sync again, with a sound copy, and without a restart. The damaged copy is kept for people."""
    broker = cluster.brokers[node_id]
    eventually(lambda: f"partition.replacement_begins partition={topic}-0" in broker.stderr, seconds_max=20)
    cluster.until_in_sync(topic, EVERYBODY)
    sound = next(each for each in EVERYBODY if each != node_id)
    assert cluster.log_of(node_id, topic) == cluster.log_of(sound, topic)
    assert (broker.data_dir / "strays" / f"{topic}-0.damaged").is_dir()


def look_up(cluster: ClusterProcesses, topic: str, number: int) -> int | None:
    """The offset that has the time of this record, or the next one; None: nobody can tell now."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, TIME_MS + number)], timeout=5)
    except KafkaException:
        return None
    finally:
        consumer.close()
    return found.offset if found.error is None else None


def until_led_by_1(cluster: ClusterProcesses, *topics: str) -> None:
    eventually(lambda: {cluster.leader(topic) for topic in topics} == {1}, seconds_max=30, every=0.2)


def test_a_damaged_leader_hands_over_and_copies_anew(cluster: ClusterProcesses, topic: str) -> None:
    looked_up = f"{topic}-looked-up"
    fill(cluster, looked_up)
    rot(cluster, 1, topic, looked_up)
    until_led_by_1(cluster, topic, looked_up)

    assert read_all(cluster.bootstrap, topic) == list(range(RECORDS))
    eventually(lambda: look_up(cluster, looked_up, DAMAGED) == DAMAGED, seconds_max=20)
    for each in (topic, looked_up):
        assert f"partition.handed_over partition={each}-0" in cluster.brokers[1].stderr
        until_copied_anew(cluster, 1, each)
    assert cluster.brokers[1].stop() == 0
    assert "storage.no_clean_mark" not in cluster.brokers[1].stderr


def test_a_leader_that_cannot_read_a_segment_hands_over(cluster: ClusterProcesses, topic: str) -> None:
    broker = cluster.brokers[1]
    assert broker.stop() == 0  # started again it has no file of an old segment open
    broker.start()
    cluster.until_in_sync(topic, EVERYBODY)
    until_led_by_1(cluster, topic)
    segment = sorted((broker.data_dir / "logs" / f"{topic}-0").glob("*.log"))[1]
    segment.unlink()
    segment.symlink_to(segment)  # which fails whoever opens it, as a bad disk does

    assert read_all(cluster.bootstrap, topic) == list(range(RECORDS))
    assert f"partition.read_failed partition={topic}-0" in broker.stderr
    assert f"partition.handed_over partition={topic}-0" in broker.stderr
    until_copied_anew(cluster, 1, topic)
    assert not (broker.data_dir / "strays" / f"{topic}-0.damaged" / "damaged").exists()


def test_a_damaged_follower_is_out_of_sync_when_its_leader_dies(
    cluster: ClusterProcesses, topic: str
) -> None:
    rot(cluster, 2, topic)
    until_led_by_1(cluster, topic)

    find_damage(cluster.brokers[2], topic)  # as soon as it has heard from its leader what it may show
    # Nobody writes to the partition, so that no lag shows that the replica is not in sync.
    left = f"partition.out_of_sync partition={topic}-0"
    eventually(lambda: left in cluster.brokers[2].stderr)
    cluster.brokers[1].kill()
    write(cluster, topic, range(RECORDS, RECORDS + 5))
    assert cluster.leader(topic) in (2, 3)
    assert read_all(cluster.bootstrap, topic) == list(range(RECORDS + 5))
    cluster.brokers[1].start()
    until_copied_anew(cluster, 2, topic)


def committed(consumer: Consumer, topic: str) -> int | None:
    """None: whom it asked is no longer the coordinator. It looks for the new one before it asks again."""
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=5)
    except KafkaException as refusal:
        if refusal.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return None
    return found.offset


def test_groups_are_served_by_a_sound_replica_of_a_damaged_coordinator(
    cluster: ClusterProcesses, topic: str
) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    for offset in range(60):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    cluster.until_in_sync(GROUPS, EVERYBODY)
    first = cluster.preferred_leader(GROUPS)
    broker = cluster.brokers[first]
    assert broker.stop() == 0
    (log,) = (broker.data_dir / "logs" / f"{GROUPS}-0").glob("*.log")
    flip(log, end_of_batch(log, behind=log.stat().st_size // 3) - 1)
    broker.start()

    # The preferred leader gets leadership back by itself. Then it loads the groups.
    eventually(lambda: f"partition.handed_over partition={GROUPS}-0" in broker.stderr, seconds_max=40)
    eventually(lambda: committed(consumer, topic) == 59, seconds_max=20)
    consumer.commit(offsets=[TopicPartition(topic, 0, 60)], asynchronous=False)
    consumer.close()
    until_copied_anew(cluster, first, GROUPS)


def find_damage(broker: BrokerProcess, topic: str) -> None:
    """As any consumer would that comes to the damaged segment."""
    with connected(broker.bootstrap) as client:

        def is_refused() -> bool:
            (answer,) = client.fetch(topic, DAMAGED).responses[0].partitions
            return answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

        eventually(is_refused, every=0.1)


def test_the_documented_steps_when_the_last_copy_in_sync_is_damaged(
    cluster: ClusterProcesses, topic: str
) -> None:
    """Those of docs/operations.md. What only the damaged copy had is lost."""
    cli, first = Cli(cluster.bootstrap), cluster.brokers[1]
    cli.ok("topic", "alter", topic, "--set", "min.insync.replicas=1")
    for behind in (2, 3):
        cluster.brokers[behind].kill()
    cluster.until_in_sync(topic, [1])
    write(cluster, topic, range(RECORDS, RECORDS + 5))
    assert first.stop() == 0
    flip(sorted((first.data_dir / "logs" / f"{topic}-0").glob("*.log"))[1], 5_000)
    first.start()
    find_damage(first, topic)
    eventually(lambda: f"partition.last_copy_damaged partition={topic}-0" in first.stderr)
    for behind in (2, 3):
        cluster.brokers[behind].start()

    elect = ("cluster", "elect", "--unclean", "--topic", topic, "--partition", "0", "--yes")
    assert "1 partition needs none" in cli.ok(*elect), "the cluster does not know of the damage"
    assert cluster.isr(topic) == [1]
    first.stop()
    eventually(lambda: "elected a leader of partition 0" in cli.ok(*elect), every=0.2)
    assert read_all(cluster.bootstrap, topic) == list(range(RECORDS))
    first.start()
    cluster.until_in_sync(topic, EVERYBODY)
    assert cluster.log_of(1, topic) == cluster.log_of(2, topic)
    assert (first.data_dir / "strays" / f"{topic}-0.damaged").is_dir()


def test_a_copy_that_is_found_damaged_at_the_start_is_fetched_anew(
    cluster: ClusterProcesses, topic: str
) -> None:
    broker = cluster.brokers[3]
    assert broker.stop() == 0
    folder = broker.data_dir / "logs" / f"{topic}-0"
    last = sorted(folder.glob("*.log"))[-1]
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size // 2)
    broker.start()
    cluster.until_in_sync(topic, EVERYBODY)
    assert f"partition.damaged partition={topic}-0" in broker.stderr
    assert (broker.data_dir / "strays" / f"{topic}-0.damaged").is_dir()
    assert cluster.log_of(3, topic) == cluster.log_of(1, topic)
    assert read_all(cluster.bootstrap, topic) == list(range(RECORDS))
