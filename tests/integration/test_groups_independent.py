"""Groups know nothing of one another, and a new one reads what was there before it."""

from pathlib import Path

from tests.integration.broker_process import serving
from tests.integration.group_client import committed
from tests.integration.group_crowd import (
    SHORT_GROUP_TIMEOUTS,
    GroupProcesses,
    create_topic,
    group_processes,
    write,
)
from tests.integration.raw_client import RawClient, connected

EVERYTHING = [(partition, number) for number in range(50) for partition in range(2)]
ENDS = {0: 50, 1: 50}


def read_all(them: GroupProcesses, client: RawClient) -> None:
    _, topic, group = them.where
    them.wait_until(lambda: them.delivered() == set(EVERYTHING))
    them.wait_until(lambda: committed(client, group, topic, 0, 1) == ENDS)
    for member in them.members:
        member.leave()


def test_every_group_reads_everything_for_itself(data_dir: Path, tmp_path: Path) -> None:
    with serving(data_dir, settings=SHORT_GROUP_TIMEOUTS) as broker, connected(broker.bootstrap) as client:
        address = broker.bootstrap
        create_topic(address, "t", 2)
        with (
            group_processes(address, "t", "first", tmp_path) as first,
            group_processes(address, "t", "second", tmp_path) as second,
        ):
            for kind, them in (("confluent-cooperative", first), ("kafka-python", second)):
                them.add(kind)
                them.add(kind)
            write(address, "t", *EVERYTHING)
            for them in (first, second):
                read_all(them, client)

        with group_processes(address, "t", "latecomers", tmp_path) as latecomers:
            reader = latecomers.add("aiokafka")
            latecomers.wait_until(lambda: len(reader.delivered()) == len(EVERYTHING))
            assert latecomers.delivered() == set(EVERYTHING), "history, from its beginning"
            reader.leave()
        assert committed(client, "first", "t", 0, 1) == ENDS
