"""Two of three brokers are down before anybody asked for a group: what works with the one that is left.

The topic of the groups is created all the same, with its three replicas. One of them is in sync, which is too
few to commit anything.
"""

from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC
from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.cluster_processes import running_cluster
from tests.integration.group_client import commit, find_coordinator
from tests.integration.raw_client import connected

COMMIT_SECONDS_MAX = 3.0
"""Every commit is answered within this time."""
PAGE_SECONDS_MAX = 8.0


def outcome_of_a_commit(broker: BrokerProcess) -> set[ErrorCode]:
    with connected(broker.bootstrap) as client:
        client.socket.settimeout(COMMIT_SECONDS_MAX)
        assert find_coordinator(client, "g") in (1, 2)
        return commit(client, "g", "k", {0: 7})


def test_no_commit_succeeds_until_a_second_broker_is_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path, settings={"offsets.topic.num.partitions": 1}) as cluster:
        cluster.create_led_by("k", 1)
        for gone in (2, 3):
            cluster.brokers[gone].kill()
        cluster.until_in_sync("k", [1])
        first = cluster.brokers[1]
        eventually(lambda: outcome_of_a_commit(first) == {ErrorCode.COORDINATOR_NOT_AVAILABLE})
        assert outcome_of_a_commit(first) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}, "at once, every time"
        for page in ("metrics", "v1/groups"):
            # What cannot be committed keeps nobody waiting who only looks.
            with urlopen(f"http://{first.http}/{page}", timeout=PAGE_SECONDS_MAX) as answer:
                assert answer.status == HTTPStatus.OK
        found = cluster.admin().list_topics(GROUP_TOPIC, timeout=10).topics[GROUP_TOPIC].partitions[0]
        assert (sorted(found.replicas), found.isrs) == ([1, 2, 3], [1])

        cluster.brokers[2].start()
        eventually(lambda: outcome_of_a_commit(first) == {ErrorCode.NONE}, seconds_max=20)
