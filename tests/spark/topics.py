"""Topics for tests: made, filled and looked at with the wire client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import pyarrow as pa

from penstock.config.listeners import parse_address
from penstock.protocol.compression import Codec
from penstock.spark.records.encode import encode
from penstock.testing import Broker
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import ClusterClient

WAIT_SECONDS_MAX = 60
BATCH_BYTES_MAX = 1_000_000


@contextmanager
def client_of(running: Broker) -> Iterator[ClusterClient]:
    address = parse_address(running.bootstrap)
    assert address is not None
    with ClusterClient([address], client_id="test") as client:
        yield client


def create(running: Broker, topic: str, partitions: int = 1, **configs: str) -> None:
    """Records of these tests are from 1970 and stay all the same."""
    configs = {"retention_ms": "-1", **configs}
    with client_of(running) as client:
        client.create_topic(
            topic, partitions, {key.replace("_", "."): value for key, value in configs.items()}
        )


def fill(
    running: Broker, topic: str, values: list[bytes | None], *, partition: int = 0, codec: Codec = Codec.NONE
) -> None:
    """Values with their own text as keys, at the time they are numbered by: value 5 at 5 seconds."""
    count = len(values)
    batches = encode(
        pa.array(values, pa.binary()),
        pa.array(values, pa.binary()),
        None,
        pa.array([1000 * number for number in range(count)], pa.int64()),
        codec=codec,
        batch_bytes_max=BATCH_BYTES_MAX,
    )
    with client_of(running) as client:
        client.produce(TopicPartition(topic, partition), batches)


def numbered(count: int, start: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(start, start + count)]


def committed(running: Broker, group: str, topic: str, partitions: int = 1) -> list[Offset | None]:
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    with client_of(running) as client:
        found = client.committed(group, wanted)
    return [found[partition] for partition in wanted]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert monotonic() < deadline, "it did not come to pass"
        sleep(0.05)
