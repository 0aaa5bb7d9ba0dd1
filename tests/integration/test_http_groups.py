"""Groups and metrics over HTTP, as a dashboard sees them."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.messages import QUIET

SECONDS_MAX = 20.0
STRANGE = 'a/b "c"\n..%2F?x=1#é'


@pytest.fixture(scope="module")
def http_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with serving(tmp_path_factory.mktemp("http") / "data", settings=settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
        for number in range(10):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(SECONDS_MAX) == 0
        for number in range(5):
            commit(broker, f"batch-{number}", number)
        commit(broker, STRANGE, 10)
        yield broker


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, **QUIET})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def get(broker: BrokerProcess, path: str) -> tuple[int, Any]:
    status, body = broker.get(path)
    return status, json.loads(body)


def test_groups_are_listed_with_what_waits(http_broker: BrokerProcess) -> None:
    status, answer = get(http_broker, "/v1/groups?prefix=batch-")
    assert (status, answer["next_after"], answer["unavailable"]) == (200, None, [])
    first = answer["groups"][0]
    assert first.pop("age_ms") > 0
    assert first == {
        "group": "batch-0", "type": "classic", "state": "Empty", "member_count": 0,
        "records_behind": 10, "records_lost": 0, "partitions_unknown": 0,
    }  # fmt: skip
    assert [group["records_behind"] for group in answer["groups"]] == [10, 9, 8, 7, 6]


def test_a_long_list_comes_in_pages(http_broker: BrokerProcess) -> None:
    _, page = get(http_broker, "/v1/groups?prefix=batch-&limit=3")
    _, rest = get(http_broker, f"/v1/groups?prefix=batch-&limit=3&after={page['next_after']}")
    names = [group["group"] for group in page["groups"] + rest["groups"]]
    assert (names, rest["next_after"]) == ([f"batch-{number}" for number in range(5)], None)


def test_one_group_is_told_in_full(http_broker: BrokerProcess) -> None:
    status, group = get(http_broker, "/v1/groups/batch-4")
    (partition,) = group.pop("partitions")
    assert status == 200
    assert group["age_ms"] == partition["age_ms"] > 0
    assert (group["rate"], group["drain_ms"], group["members"]) == (0.0, None, [])
    assert group["rebalances"] == {
        "total": 0, "last_reason": None, "last_duration_ms": None, "under_way_ms": None
    }  # fmt: skip
    assert partition["committed_at_ms"] > 1_600_000_000_000
    kept = ("topic", "partition", "standing", "committed_offset", "log_start_offset", "log_end_offset")
    assert [partition[key] for key in kept] == ["orders", 0, "ok", 4, 0, 10]


def test_a_group_may_have_any_name(http_broker: BrokerProcess) -> None:
    status, group = get(http_broker, f"/v1/groups/{quote(STRANGE, safe='')}")
    assert (status, group["group"], group["records_behind"]) == (200, STRANGE, 0)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/groups/nobody", 404, "group_not_found"),
        ("/v1/groups?limit=0", 400, "bad_limit"),
        ("/v1/groups?limit=1001", 400, "bad_limit"),
        ("/v1/groups?limit=²", 400, "bad_limit"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
def test_a_refusal_is_json_with_a_sentence(
    http_broker: BrokerProcess, path: str, status: int, code: str
) -> None:
    answered, answer = get(http_broker, quote(path, safe="/?=&"))
    assert (answered, answer["error"]["code"]) == (status, code)
    assert answer["error"]["message"].endswith(".")


SERIES = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.e+-]+|NaN|[+-]Inf)')


def test_metrics_can_be_read_by_prometheus(http_broker: BrokerProcess) -> None:
    status, text = http_broker.get("/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SERIES.fullmatch(line) for line in lines), lines
    for line in (
        "penstock_ready 1",
        "penstock_controller 1",
        'penstock_brokers{state="admitted"} 1',
        "penstock_partitions_under_replicated 0",
        "penstock_metadata_store_unavailable_seconds 0",
        "penstock_groups 6",
        "penstock_groups_left_out 0",
        "penstock_coordinators_full 0",
        "penstock_compaction_failures_total 0",
        "penstock_compaction_postponed_logs 0",
        "penstock_compaction_uncleanable_logs 0",
        'penstock_group_lag_records{group="batch-4",topic="orders",partition="0"} 6',
        'penstock_group_state{group="batch-4",type="classic",state="Empty"} 1',
        'penstock_group_members{group="batch-4"} 0',
        'penstock_group_rebalances_total{group="batch-4"} 0',
        'penstock_group_consumption_rate{group="batch-4",topic="orders",partition="0"} 0.0',
    ):
        assert line in lines
    assert any(line.startswith('penstock_group_lag_age_seconds{group="batch-4"') for line in lines)
    assert any(line.startswith('penstock_topic_appended_bytes_total{topic="orders"} ') for line in lines)
    named = {line.split("{")[0].split(" ")[0] for line in lines}
    assert all(f"# TYPE {name} " in text for name in named)
