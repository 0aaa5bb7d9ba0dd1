"""Metrics of a broker process, after what they count has happened to it."""

from pathlib import Path

from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.raw_client import connected


def value_of(broker: BrokerProcess, metric: str) -> int:
    status, text = broker.get("/metrics")
    assert status == 200
    (value,) = (line.split(" ")[1] for line in text.splitlines() if line.startswith(f"{metric} "))
    return int(value)


def test_connections_beyond_the_limit_are_counted_on_the_metrics_page(tmp_path: Path) -> None:
    with serving(tmp_path / "data", settings={"max.connections": 1}) as broker:
        assert value_of(broker, "penstock_connections_rejected_total") == 0
        with connected(broker.bootstrap) as allowed:
            allowed.ask(API_VERSIONS, 0, ApiVersionsRequest())
            for _ in range(3):
                with connected(broker.bootstrap) as one_too_many:
                    assert one_too_many.is_closed_by_broker()
            assert value_of(broker, "penstock_connections_rejected_total") == 3
            assert value_of(broker, "penstock_connections") == 1
        eventually(lambda: value_of(broker, "penstock_connections") == 0)
        assert value_of(broker, "penstock_connections_rejected_total") == 3
