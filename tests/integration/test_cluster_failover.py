"""Three brokers, and one of them dies, is stopped, comes back without its disk. Nothing is lost.

The time until writes go on after a kill is printed: `pytest -s` shows it.
"""

import shutil
import time

from confluent_kafka import Producer

from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.cluster_load import SteadyWriter, read_all, require_intact
from tests.integration.cluster_processes import ClusterProcesses

EVERYBODY = [1, 2, 3]
RESUMED_SECONDS_MAX = 5.0
"""Up to two of them are librdkafka's, which looks once a second for leaders of partitions without one."""
ELECTED_SECONDS_MAX = 3.0
IMPATIENT = {"request.timeout.ms": 1_000, "socket.timeout.ms": 1_500}
"""A broker that is paused says nothing: how soon a client looks for another is the client's to say."""


def test_what_one_broker_acknowledges_all_can_give(cluster: ClusterProcesses) -> None:
    cluster.create("everywhere", partitions=6)
    assert {cluster.leader("everywhere", number) for number in range(6)} == set(EVERYBODY)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(600):
        producer.produce(
            "everywhere", b"%d" % number, partition=number % 6, on_delivery=lambda e, _: errors.append(e)
        )
    assert producer.flush(20) == 0
    assert errors == [None] * 600
    cluster.until_in_sync("everywhere", EVERYBODY)
    sizes = {
        broker.size_on_disk(f"logs/everywhere-{number}")
        for broker in cluster.brokers.values()
        for number in range(6)
    }
    assert 0 not in sizes, "a replica has nothing"


def test_a_leader_is_killed_and_nothing_is_lost(cluster: ClusterProcesses) -> None:
    cluster.create("killed")
    with SteadyWriter(cluster.bootstrap, "killed") as writer:
        for _ in range(2):
            time.sleep(0.5)
            leader = cluster.leader("killed")
            killed_at = time.monotonic()
            cluster.brokers[leader].kill()
            cluster.until_led_by_another("killed", leader, seconds_max=ELECTED_SECONDS_MAX)
            elected = time.monotonic() - killed_at
            took = writer.resumed_after(killed_at)
            print(
                f"broker {leader} was killed: another leads after {elected:.2f} s, writes after {took:.2f} s"
            )
            assert took < RESUMED_SECONDS_MAX
            cluster.brokers[leader].start()
            cluster.until_in_sync("killed", EVERYBODY)
    require_intact(writer, read_all(cluster.bootstrap, "killed"))


def number(broker: BrokerProcess, series: str) -> float:
    _, text = broker.get("/metrics")
    [value] = [line.removeprefix(series) for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(value)


def test_metrics_tell_that_a_broker_is_gone_and_back(cluster: ClusterProcesses) -> None:
    cluster.create_led_by("watched", 1)
    cluster.until_in_sync("watched", EVERYBODY)
    one = cluster.brokers[1]
    assert number(one, "penstock_partitions_led") > 0
    assert sum(number(broker, "penstock_controller") for broker in cluster.brokers.values()) == 1
    eventually(lambda: number(one, "penstock_partitions_under_replicated") == 0, seconds_max=10.0)
    cluster.brokers[3].kill()
    eventually(lambda: number(one, "penstock_partitions_under_replicated") > 0, seconds_max=10.0)
    eventually(lambda: number(one, 'penstock_brokers{state="fenced"}') == 1, seconds_max=10.0)
    cluster.brokers[3].start()
    eventually(lambda: number(one, "penstock_partitions_under_replicated") == 0, seconds_max=20.0)
    assert number(one, 'penstock_brokers{state="admitted"}') == 3


def test_the_controller_is_killed_and_another_takes_over(cluster: ClusterProcesses) -> None:
    controller = cluster.controller()
    cluster.create_led_by("leaderless", controller)
    with SteadyWriter(cluster.bootstrap, "leaderless") as writer:
        time.sleep(0.3)
        killed_at = time.monotonic()
        cluster.brokers[controller].kill()
        cluster.create("meanwhile", factor=2)  # whom a new client asks takes it, and sends nobody to the dead
        took = writer.resumed_after(killed_at)
        print(f"the controller was killed while it led: writes went on after {took:.2f} s")
        assert took < RESUMED_SECONDS_MAX
    cluster.brokers[controller].start()
    require_intact(writer, read_all(cluster.bootstrap, "leaderless"))


def test_a_controlled_stop_costs_no_client_an_error(cluster: ClusterProcesses) -> None:
    cluster.create("stopped")
    with SteadyWriter(cluster.bootstrap, "stopped") as writer:
        time.sleep(0.3)
        leader = cluster.leader("stopped")
        stopped_at = time.monotonic()
        assert cluster.brokers[leader].stop() == 0
        took = writer.resumed_after(stopped_at)
        print(f"broker {leader} was stopped: writes went on after {took:.2f} s")
        assert took < RESUMED_SECONDS_MAX
        cluster.brokers[leader].start()
        cluster.until_in_sync("stopped", EVERYBODY)
    require_intact(writer, read_all(cluster.bootstrap, "stopped"))


def test_a_paused_leader_is_replaced_and_gives_way_when_it_wakes(cluster: ClusterProcesses) -> None:
    cluster.create("paused")
    with SteadyWriter(cluster.bootstrap, "paused", **IMPATIENT) as writer:
        time.sleep(0.3)
        leader = cluster.leader("paused")
        paused_at = time.monotonic()
        cluster.brokers[leader].pause()
        took = writer.resumed_after(paused_at)
        print(f"broker {leader} was paused: writes went on after {took:.2f} s")
        assert took < 10
        cluster.brokers[leader].resume()
        cluster.until_in_sync("paused", EVERYBODY)
        time.sleep(0.3)
    require_intact(writer, read_all(cluster.bootstrap, "paused"))


def test_a_follower_without_its_disk_copies_everything_again(cluster: ClusterProcesses) -> None:
    cluster.create("wiped")
    with SteadyWriter(cluster.bootstrap, "wiped") as writer:
        time.sleep(0.5)
        leader = cluster.leader("wiped")
        wiped = next(node_id for node_id in EVERYBODY if node_id != leader)
        cluster.brokers[wiped].kill()
        shutil.rmtree(cluster.brokers[wiped].data_dir)
        cluster.brokers[wiped].start()
        cluster.until_in_sync("wiped", EVERYBODY)
    eventually(lambda: cluster.log_of(wiped, "wiped") == cluster.log_of(leader, "wiped"))
    require_intact(writer, read_all(cluster.bootstrap, "wiped"))
