"""Bounds are numbers that agree with each other, with Kafka where clients rely on it, and with settings."""

import ast
from pathlib import Path

from penstock import limits
from penstock.config.broker import BrokerConfig

SOURCE = Path(limits.__file__).read_text()
NAMES = [name for name in vars(limits) if name.isupper()]


def test_every_bound_is_a_positive_integer() -> None:
    assert all(type(getattr(limits, name)) is int and getattr(limits, name) > 0 for name in NAMES)


def test_the_file_holds_constants_and_assertions_and_nothing_else() -> None:
    _, *statements = ast.parse(SOURCE).body
    assert {type(statement) for statement in statements} == {ast.Assign, ast.Assert}


def test_breaking_an_assumption_stops_the_process_at_import() -> None:
    broken = SOURCE.replace("REQUEST_BYTES_MAX = 100 * MIB", "REQUEST_BYTES_MAX = 1 * MIB", 1)
    assert broken != SOURCE
    try:
        exec(compile(broken, "limits", "exec"), {})
    except AssertionError:
        return
    raise AssertionError("a batch that fits no request went unnoticed")


def test_bounds_clients_rely_on_are_kafkas() -> None:
    assert limits.REQUEST_BYTES_MAX == 104_857_600
    assert limits.BATCH_BYTES_MAX == 1_048_588
    assert limits.FETCH_BYTES_MAX == 57_671_680
    assert limits.TOPIC_NAME_CHARACTERS_MAX == 249
    assert limits.PRODUCER_WINDOW_BATCHES == 5


def test_a_broker_without_configuration_obeys_the_limits() -> None:
    broker = BrokerConfig.of()
    assert broker.network.request_bytes_max == limits.REQUEST_BYTES_MAX
    assert broker.network.request_bytes_in_flight_max == limits.REQUEST_BYTES_IN_FLIGHT_MAX
    assert broker.network.connections_max == limits.CONNECTIONS_MAX
    assert broker.fetch.fetch_bytes_max == limits.FETCH_BYTES_MAX
    assert broker.topic_defaults.batch_bytes_max == limits.BATCH_BYTES_MAX
