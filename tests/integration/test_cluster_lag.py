"""How far groups are behind, asked of every broker of a real cluster: one answer, and a whole one."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.broker_process import BrokerProcess, eventually, penstock
from tests.integration.cluster_processes import ClusterProcesses, running_cluster
from tests.integration.messages import QUIET

PARTITIONS = 6
GROUPS = [f"group-{number}" for number in range(9)]
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 6}
UNAVAILABLE = re.compile(r"^penstock_group_coordinators_unavailable (\d+)$", re.MULTILINE)
SCRAPE_S = 10
"""How long Prometheus waits for a page unless a setting says otherwise."""
LAG = re.compile(r'penstock_group_lag_records\{group="([^"]+)",topic="orders",partition="(\d)"\} (\d+)')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as started:
        started.create("orders", partitions=PARTITIONS, factor=1)
        producer = Producer({"bootstrap.servers": started.bootstrap, **QUIET})
        for number in range(PARTITIONS * 10):
            producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(20) == 0
        for number, group in enumerate(GROUPS):
            consumer = Consumer({"bootstrap.servers": started.bootstrap, "group.id": group, **QUIET})
            places = [TopicPartition("orders", index, number) for index in range(PARTITIONS)]
            consumer.commit(offsets=places, asynchronous=False)
            consumer.close()
        yield started


def get(broker: BrokerProcess, path: str) -> tuple[int, Any]:
    status, body = broker.get(path)
    return status, json.loads(body)


def whole(broker: BrokerProcess, group: str) -> Any:
    """Everything about a group, once every leader has answered in time."""

    def look() -> Any:
        status, document = get(broker, f"/v1/groups/{group}")
        return document if status == 200 and not document["partitions_unknown"] else None

    return eventually(look, seconds_max=30, every=0.2)


def groups_in(broker: BrokerProcess, path: str) -> set[str]:
    """Groups that have lag metrics on a page."""
    _, text = broker.get(path)
    return {group for group, _, _ in LAG.findall(text) if group in GROUPS}


def without_ages(document: Any) -> Any:
    """Time passes between two questions."""
    if isinstance(document, list):
        return [without_ages(each) for each in document]
    if isinstance(document, dict):
        return {key: without_ages(value) for key, value in document.items() if key != "age_ms"}
    return document


def test_every_broker_gives_the_same_whole_answer_about_a_group(cluster: ClusterProcesses) -> None:
    for number, group in enumerate(GROUPS):
        answers = [whole(broker, group) for broker in cluster.brokers.values()]
        documents = [without_ages(answer) for answer in answers]
        assert documents[0] == documents[1] == documents[2]
        partitions = documents[0]["partitions"]
        assert [entry["partition"] for entry in partitions] == list(range(PARTITIONS))
        assert {entry["records_behind"] for entry in partitions} == {10 - number}
        assert {entry["standing"] for entry in partitions} == {"ok"}
        assert all(entry["committed_at_ms"] > 1_600_000_000_000 for entry in partitions)
        assert documents[0]["records_behind"] == PARTITIONS * (10 - number)
        assert documents[0]["partitions_unknown"] == 0
        ages = [entry["age_ms"] for answer in answers for entry in answer["partitions"]]
        assert all(0 < age < 120_000 for age in ages)


def test_every_broker_names_the_members_of_a_group_and_what_they_hold(cluster: ClusterProcesses) -> None:
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "members", "client.id": "worker", **QUIET}
    consumer = Consumer({**config, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    eventually(lambda: consumer.poll(0.1) is not None and len(consumer.assignment()) == PARTITIONS)
    consumer.commit(offsets=[TopicPartition("orders", 2, 7)], asynchronous=False)
    documents = [whole(broker, "members") for broker in cluster.brokers.values()]
    consumer.close()
    for document in documents:
        (member,) = document["members"]
        assert (member["client_id"], len(member["partitions"])) == ("worker", PARTITIONS)
        assert document["rebalances"] == documents[0]["rebalances"]
        assert document["rebalances"]["total"] >= 1
        assert document["rebalances"]["last_reason"].startswith("worker-")
        standings = [entry["standing"] for entry in document["partitions"]]
        assert standings == ["ok" if index == 2 else "no_commit" for index in range(PARTITIONS)]
        assert {entry["member_id"] for entry in document["partitions"]} == {member["member_id"]}
        assert {entry["log_end_offset"] for entry in document["partitions"]} == {10}


def test_every_broker_lists_all_groups_and_pages_through_them(cluster: ClusterProcesses) -> None:
    asked = [get(broker, "/v1/groups?prefix=group-") for broker in cluster.brokers.values()]
    assert [status for status, _ in asked] == [200] * 3
    answer, *others = [without_ages(document) for _, document in asked]
    assert others == [answer, answer]
    assert [entry["group"] for entry in answer["groups"]] == GROUPS
    assert (answer["next_after"], answer["unavailable"]) == (None, [])
    seen, after = [], ""
    for number in (1, 2, 3, 1, 2, 3):
        _, page = get(cluster.brokers[number], f"/v1/groups?prefix=group-&limit=2&after={after}")
        seen += [entry["group"] for entry in page["groups"]]
        after = page["next_after"]
        if after is None:
            break
    assert seen == GROUPS


def test_a_group_that_does_not_exist_is_not_found_on_any_broker(cluster: ClusterProcesses) -> None:
    for broker in cluster.brokers.values():
        status, answer = get(broker, "/v1/groups/nobody")
        assert (status, answer["error"]["code"]) == (404, "group_not_found")


def test_a_group_has_metrics_on_one_broker_for_all_its_partitions(cluster: ClusterProcesses) -> None:
    exported: dict[str, list[int]] = {}
    sums: dict[str, int] = {}
    for node, broker in cluster.brokers.items():
        status, text = broker.get("/metrics")
        assert status == 200
        for group, _, behind in LAG.findall(text):
            if group in GROUPS:
                exported.setdefault(group, []).append(node)
                sums[group] = sums.get(group, 0) + int(behind)
    assert sorted(exported) == GROUPS
    assert all(nodes == [nodes[0]] * PARTITIONS for nodes in exported.values())
    assert len({nodes[0] for nodes in exported.values()}) > 1, "groups have several coordinators"
    assert sums == {group: PARTITIONS * (10 - number) for number, group in enumerate(GROUPS)}


def test_every_broker_has_the_lag_metrics_of_all_groups(cluster: ClusterProcesses) -> None:
    for broker in cluster.brokers.values():
        status, text = broker.get("/metrics/groups")
        assert status == 200
        lag = {(group, int(index)): int(behind) for group, index, behind in LAG.findall(text)}
        expected = {
            (group, index): 10 - number for number, group in enumerate(GROUPS) for index in range(PARTITIONS)
        }
        assert {each: lag.get(each) for each in expected} == expected
        assert len(lag) == len(LAG.findall(text)), "each partition of a group has one series"
        assert UNAVAILABLE.findall(text) == ["0"]
        assert 'penstock_group_state{group="group-0",' in text
        assert "penstock_connections" not in text


def test_the_command_describes_a_group_at_any_broker(cluster: ClusterProcesses) -> None:
    for broker in cluster.brokers.values():
        told = penstock("group", "describe", "group-3", "--url", f"http://{broker.http}")
        assert told.exit_code == 0, told.stderr
        assert "behind: 42 records" in told.stdout
        assert len(re.findall(r"^orders ", told.stdout, re.MULTILINE)) == PARTITIONS


def test_partitions_and_groups_of_a_silent_broker_are_said_to_be_unknown(cluster: ClusterProcesses) -> None:
    led_by_3 = {index for index in range(PARTITIONS) if cluster.leader("orders", index) == 3}
    assert led_by_3
    of_broker_3 = groups_in(cluster.brokers[3], "/metrics")
    other = next(group for group in GROUPS if group not in of_broker_3)
    mine = next(iter(of_broker_3))
    cluster.brokers[3].pause()
    try:
        began = time.monotonic()
        status, group = get(cluster.brokers[1], f"/v1/groups/{other}")
        assert time.monotonic() - began < 4.0
        standings = {entry["partition"]: entry["standing"] for entry in group["partitions"]}
        assert {index for index, standing in standings.items() if standing == "unknown"} == led_by_3
        assert (status, group["partitions_unknown"], len(standings)) == (200, len(led_by_3), PARTITIONS)
        status, answer = get(cluster.brokers[2], f"/v1/groups/{mine}")
        assert (status, answer["error"]["code"]) == (503, "coordinator_unavailable")
        assert "broker 3" in answer["error"]["message"]
    finally:
        cluster.brokers[3].resume()
    eventually(
        lambda: [get(broker, f"/v1/groups/{mine}")[0] for broker in cluster.brokers.values()] == [200] * 3,
        seconds_max=30,
    )


def test_after_a_broker_died_its_partitions_are_listed_as_offline(cluster: ClusterProcesses) -> None:
    led_by_2 = {index for index in range(PARTITIONS) if cluster.leader("orders", index) == 2}
    assert led_by_2
    cluster.brokers[2].kill()

    def offline(node: int, group: str) -> set[int]:
        status, answer = get(cluster.brokers[node], f"/v1/groups/{group}")
        partitions = answer["partitions"] if status == 200 else ()
        return {entry["partition"] for entry in partitions if entry["standing"] == "offline"}

    for group in GROUPS:
        for node in (1, 3):
            eventually(lambda node=node, group=group: offline(node, group) == led_by_2, seconds_max=30)  # type: ignore[misc]
    status, answer = get(cluster.brokers[1], "/v1/groups?prefix=group-")
    assert [entry["partitions_unknown"] for entry in answer["groups"]] == [len(led_by_2)] * len(GROUPS)
    assert (status, answer["unavailable"]) == (200, [])


def test_lag_metrics_count_a_coordinator_that_is_silent(cluster: ClusterProcesses) -> None:
    # It leads again what it led before the test above paused it.
    of_broker_3 = eventually(lambda: groups_in(cluster.brokers[3], "/metrics"), seconds_max=30)
    cluster.brokers[3].pause()
    try:
        # Asked at once, while broker 3 still coordinates its groups.
        status, text = cluster.brokers[1].get("/metrics/groups", timeout_s=SCRAPE_S)
    finally:
        cluster.brokers[3].resume()
    assert (status, UNAVAILABLE.findall(text)) == (200, ["1"])
    exported = {group for group, _, _ in LAG.findall(text) if group in GROUPS}
    assert exported
    assert exported.isdisjoint(of_broker_3)
