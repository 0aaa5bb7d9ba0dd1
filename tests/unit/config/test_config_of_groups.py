"""Settings of one group: what may be given, within which limits, and what is then obeyed."""

import pytest

from penstock.config.alter import Alteration, AlterOp, alter_group_overrides
from penstock.config.broker import BrokerConfig
from penstock.config.describe import describe_group
from penstock.config.setting import ConfigSource, ConfigType
from penstock.config.sources import load
from penstock.errors import ApiError, ErrorCode

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
BROKER = BrokerConfig.of()


def refusal(*alterations: Alteration, broker: BrokerConfig = BROKER) -> ApiError:
    with pytest.raises(ApiError) as refused:
        alter_group_overrides({}, alterations, broker)
    return refused.value


def test_what_is_given_is_kept_and_the_rest_stays() -> None:
    after = alter_group_overrides({HEARTBEAT: "2000"}, [Alteration(SESSION, " 50000 ")], BROKER)
    assert after == {HEARTBEAT: "2000", SESSION: "50000"}
    assert alter_group_overrides(after, [Alteration(HEARTBEAT, None, AlterOp.DELETE)], BROKER) == {
        SESSION: "50000"
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SESSION, "44999"),
        (SESSION, "60001"),
        (SESSION, "0"),
        (SESSION, ""),
        (SESSION, "soon"),
        (HEARTBEAT, "999"),
        (HEARTBEAT, "15001"),
        ("group.consumer.session.timeout.ms", "50000"),
        ("share.session.timeout.ms", "50000"),
    ],
)
def test_other_names_and_values_beyond_the_limits_are_refused(name: str, text: str) -> None:
    refused = refusal(Alteration(name, text))
    assert refused.code is ErrorCode.INVALID_CONFIG
    assert name in refused.detail


def test_no_value_and_a_key_given_twice_are_bad_requests() -> None:
    assert refusal(Alteration(SESSION, None)).code is ErrorCode.INVALID_REQUEST
    twice = refusal(Alteration(SESSION, "50000"), Alteration(SESSION, "50000"))
    assert twice.code is ErrorCode.INVALID_REQUEST


def test_the_operator_moves_the_limits() -> None:
    broker = load(
        {}, ["group.consumer.min.session.timeout.ms=500", "group.consumer.max.session.timeout.ms=90000"]
    )
    for text in ("1500", "90000"):
        assert alter_group_overrides({}, [Alteration(SESSION, text)], broker) == {SESSION: text}
    assert (
        "group.consumer.max.session.timeout.ms = 90000"
        in refusal(Alteration(SESSION, "90001"), broker=broker).detail
    )


def test_a_session_is_longer_than_the_interval_of_heartbeats() -> None:
    broker = load({}, ["group.consumer.min.session.timeout.ms=500"])
    assert refusal(Alteration(SESSION, "1000"), broker=broker).code is ErrorCode.INVALID_CONFIG
    assert alter_group_overrides({}, [Alteration(SESSION, "1001")], broker) == {SESSION: "1001"}


def test_a_group_follows_its_broker_where_it_has_no_value() -> None:
    broker = load({}, ["group.consumer.session.timeout.ms=50000"])
    entries = {entry.name: entry for entry in describe_group({HEARTBEAT: "2000"}, broker)}
    assert (entries[SESSION].value, entries[SESSION].source) == ("50000", ConfigSource.DEFAULT)
    assert (entries[HEARTBEAT].value, entries[HEARTBEAT].source) == ("2000", ConfigSource.GROUP)
    assert all(entry.type is ConfigType.INT and not entry.read_only for entry in entries.values())
    assert entries[HEARTBEAT].synonyms == ((HEARTBEAT, "2000", ConfigSource.GROUP),)
    config = broker.groups.consumer
    assert config.of_group({HEARTBEAT: "2000"}) == config._replace(heartbeat_ms=2000)


def test_a_setting_of_a_newer_release_is_kept_and_not_obeyed() -> None:
    stored = {"consumer.of.tomorrow": "1", SESSION: "50000"}
    assert alter_group_overrides(stored, [Alteration(HEARTBEAT, "2000")], BROKER) == {
        **stored,
        HEARTBEAT: "2000",
    }
    assert BROKER.groups.consumer.of_group(stored).session_ms == 50_000
