"""What AlterConfigs and IncrementalAlterConfigs make of a resource's settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.alter import (
    Alteration,
    AlterOp,
    alter_broker_overrides,
    alter_topic_overrides,
)
from penstock.config.broker import BrokerConfig
from penstock.config.kafka_settings import PROTECTIVE_SETTINGS
from penstock.config.sources import load
from penstock.config.topic import TopicConfig
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.errors import ApiError, ErrorCode

DEFAULT = BrokerConfig.of()
SET, DELETE, APPEND, SUBTRACT = AlterOp.SET, AlterOp.DELETE, AlterOp.APPEND, AlterOp.SUBTRACT
Step = tuple[str, str | None, int]


def topic(current: dict[str, str], *steps: Step, broker: BrokerConfig = DEFAULT) -> dict[str, str]:
    before = dict(current)
    after = alter_topic_overrides(current, [Alteration(*step) for step in steps], broker)
    assert current == before, "nothing is changed in place"
    return after


def topic_refusal(current: dict[str, str], *steps: Step) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as refused:
        topic(current, *steps)
    return refused.value.code, refused.value.detail


def broker_refusal(*steps: Step) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as refused:
        alter_broker_overrides({}, [Alteration(*step) for step in steps], DEFAULT)
    return refused.value.code, refused.value.detail


def test_set_and_delete_change_only_what_they_name() -> None:
    current = {"retention.ms": "5", "segment.ms": "6"}
    assert topic(current, ("retention.ms", " 7 ", SET), ("segment.ms", None, DELETE)) == {"retention.ms": "7"}
    assert topic(current, ("flush.ms", "1", SET)) == {**current, "flush.ms": "1"}


@pytest.mark.parametrize("name", ["retention.ms", "no.such.setting"])
def test_deleting_what_is_not_set_changes_nothing(name: str) -> None:
    assert topic({}, (name, None, DELETE)) == {}


def test_append_adds_to_the_list_the_topic_has_or_follows() -> None:
    assert topic({}, ("cleanup.policy", "compact", APPEND)) == {"cleanup.policy": "delete,compact"}
    compact = load(sets=["log.cleanup.policy=compact"])
    assert topic({}, ("cleanup.policy", "delete", APPEND), broker=compact) == {
        "cleanup.policy": "compact,delete"
    }
    assert topic({"cleanup.policy": "compact"}, ("cleanup.policy", "compact", APPEND)) == {
        "cleanup.policy": "compact"
    }


def test_subtract_takes_from_the_list() -> None:
    both = {"cleanup.policy": "compact,delete"}
    assert topic(both, ("cleanup.policy", "delete", SUBTRACT)) == {"cleanup.policy": "compact"}
    throttled = {"leader.replication.throttled.replicas": "0:1,1:2,2:3"}
    assert topic(throttled, ("leader.replication.throttled.replicas", "0:1, 2:3,9:9", SUBTRACT)) == {
        "leader.replication.throttled.replicas": "1:2"
    }


def test_what_is_appended_has_to_be_allowed() -> None:
    code, said = topic_refusal({}, ("cleanup.policy", "shred", APPEND))
    assert code is ErrorCode.INVALID_CONFIG
    assert "must be a list of compact, delete" in said


@pytest.mark.parametrize("op", [APPEND, SUBTRACT])
def test_only_lists_can_be_appended_to_or_subtracted_from(op: AlterOp) -> None:
    assert topic_refusal({}, ("retention.ms", "5", op)) == (
        ErrorCode.INVALID_CONFIG,
        "retention.ms is not a list: it can only be set or deleted",
    )


@pytest.mark.parametrize("op", [SET, APPEND, SUBTRACT])
def test_a_value_is_required_except_to_delete(op: AlterOp) -> None:
    assert topic_refusal({}, ("cleanup.policy", None, op))[0] is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("op", [-1, 4, 127])
def test_an_unknown_operation_is_refused(op: int) -> None:
    assert topic_refusal({}, ("retention.ms", "5", op)) == (
        ErrorCode.INVALID_REQUEST,
        f"retention.ms: unknown operation {op}",
    )


def test_a_key_given_twice_is_refused() -> None:
    steps = ("retention.ms", "5", SET), ("retention.ms", None, DELETE)
    assert topic_refusal({}, *steps) == (ErrorCode.INVALID_REQUEST, "retention.ms is given twice")


def test_a_value_that_is_not_allowed_is_refused_with_what_is() -> None:
    assert topic_refusal({}, ("retention.ms", "abc", SET)) == (
        ErrorCode.INVALID_CONFIG,
        "retention.ms = 'abc': must be an integer of at least -1",
    )


def test_a_value_longer_than_kafka_allows_is_refused() -> None:
    name = "leader.replication.throttled.replicas"
    fits = ",".join(["0:1"] * 8191)
    assert len(fits) == 32_763
    assert topic({}, (name, fits, SET)) == {name: fits}
    code, said = topic_refusal({}, (name, fits + ",0:12345", SET))
    assert (code, said) == (ErrorCode.INVALID_CONFIG, f"{name}: longer than 32767 bytes")
    assert topic_refusal({name: fits}, (name, "7:7,8:8", APPEND))[0] is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("name", ["retention.mss", "remote.storage.enable", "local.retention.ms", ""])
@pytest.mark.parametrize("op", [SET, APPEND, SUBTRACT])
def test_an_unknown_key_is_refused(name: str, op: AlterOp) -> None:
    code, said = topic_refusal({}, (name, "1", op))
    assert code is ErrorCode.INVALID_CONFIG
    assert said.startswith(f"unknown setting {name!r}")


def test_a_key_left_by_a_newer_release_stays_until_it_is_deleted() -> None:
    left = {"from.a.newer.release": "1"}
    assert topic(left, ("retention.ms", "5", SET)) == {**left, "retention.ms": "5"}
    assert topic(left, ("from.a.newer.release", None, DELETE)) == {}
    assert topic_refusal(left, ("from.a.newer.release", "2", SET))[0] is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "name", ["message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"]
)
def test_settings_kafka_removed_are_accepted_and_not_kept(name: str) -> None:
    assert topic({}, (name, "anything", SET), ("retention.ms", "5", SET)) == {"retention.ms": "5"}
    assert topic({name: "old"}, (name, None, DELETE)) == {}


def test_what_remains_has_to_hold_together() -> None:
    current = {"max.compaction.lag.ms": "10"}
    code, said = topic_refusal(current, ("min.compaction.lag.ms", "11", SET))
    assert code is ErrorCode.INVALID_CONFIG
    assert said == "min.compaction.lag.ms = 11: must be at most max.compaction.lag.ms = 10"
    assert topic(current, ("min.compaction.lag.ms", "10", SET))["min.compaction.lag.ms"] == "10"


def test_flushing_at_intervals_needs_an_interval_of_the_topic_or_its_broker() -> None:
    policy = ("flush.policy", "interval", int(SET))
    assert topic_refusal({}, policy) == (
        ErrorCode.INVALID_CONFIG,
        "flush.policy = interval: needs flush.ms or flush.messages",
    )
    assert topic({}, policy, ("flush.messages", "10", SET))
    assert topic({}, policy, broker=load(sets=["log.flush.interval.ms=5"]))
    assert topic_refusal({"flush.policy": "interval", "flush.ms": "1"}, ("flush.ms", None, DELETE))


def test_a_broker_takes_what_can_be_changed_while_it_runs() -> None:
    steps = [Alteration("log.retention.ms", "5"), Alteration("log.cleanup.policy", "compact", APPEND)]
    own = alter_broker_overrides({"max.connections": "9"}, steps, DEFAULT)
    assert own == {"max.connections": "9", "log.retention.ms": "5", "log.cleanup.policy": "delete,compact"}
    changed = DEFAULT.with_dynamic(own=own)
    assert changed.network.connections_max == 9
    assert changed.topic_defaults.retention_ms == 5


@pytest.mark.parametrize(
    "name", ["node.id", "listeners", "log.dirs", "num.partitions", "listener.name.a.ssl.client.auth"]
)
@pytest.mark.parametrize("op", [SET, APPEND])
def test_what_is_read_at_start_cannot_be_changed_later(name: str, op: AlterOp) -> None:
    assert broker_refusal((name, "1", op)) == (
        ErrorCode.INVALID_CONFIG,
        f"{name} is read-only at run time; it is set when the broker starts",
    )


def test_a_brokers_settings_are_checked_like_a_topics() -> None:
    assert broker_refusal(("max.connections", "0", SET))[0] is ErrorCode.INVALID_CONFIG
    assert broker_refusal(("max.connections", None, SET))[0] is ErrorCode.INVALID_REQUEST
    assert broker_refusal(("max.connections", "1", SET), ("max.connections", "2", SET))[0] is (
        ErrorCode.INVALID_REQUEST
    )
    code, said = broker_refusal(("log.flush.policy", "interval", SET))
    assert code is ErrorCode.INVALID_CONFIG
    assert "needs log.flush.interval.ms" in said


def test_a_broker_takes_sizes_that_have_no_use_as_kafka_does() -> None:
    for name, value in (("message.max.bytes", "104857601"), ("log.segment.bytes", "1048576")):
        assert alter_broker_overrides({}, [Alteration(name, value)], DEFAULT) == {name: value}
    small = DEFAULT.with_dynamic(own={"log.segment.bytes": "1048576"})
    assert small.topic_defaults.batch_bytes_max == 1_048_576


@pytest.mark.parametrize(
    "name", ["log.cleaner.threads", "log.cleaner.io.buffer.size", "log.cleaner.io.buffer.load.factor"]
)
def test_what_kafka_changes_at_run_time_is_taken_also_without_effect(name: str) -> None:
    assert alter_broker_overrides({}, [Alteration(name, "2")], DEFAULT).keys() == {name}


def test_a_broker_keeps_settings_that_it_does_not_know_without_effect() -> None:
    known = Alteration("max.connections", "5")
    own = alter_broker_overrides({}, [Alteration("my.plugin.setting", " as it is "), known], DEFAULT)
    assert own == {"my.plugin.setting": " as it is ", "max.connections": "5"}
    without_unknown = DEFAULT.with_dynamic(own={"max.connections": "5"})
    assert DEFAULT.with_dynamic(own=own).network == without_unknown.network
    assert alter_broker_overrides(own, [Alteration("my.plugin.setting", None, DELETE)], DEFAULT) == {
        "max.connections": "5"
    }
    assert alter_broker_overrides({}, [Alteration("my.plugin.setting", "2")], DEFAULT, cluster_wide=True) == {
        "my.plugin.setting": "2"
    }


@pytest.mark.parametrize(("text", "op"), [("1", APPEND), ("1", SUBTRACT), (None, SET), ("1", 9)])
def test_an_unknown_broker_setting_can_only_be_set_or_deleted(text: str | None, op: int) -> None:
    code, said = broker_refusal(("my.plugin.setting", text, op))
    assert code is ErrorCode.INVALID_REQUEST
    assert said.startswith("unknown setting 'my.plugin.setting'")


def test_unknown_broker_settings_are_bounded_in_number_and_size() -> None:
    many = {f"unknown.{number}": "1" for number in range(100)}
    assert alter_broker_overrides(many, [Alteration("unknown.0", "2")], DEFAULT) == {**many, "unknown.0": "2"}
    with pytest.raises(ApiError, match="101 settings that this broker does not know"):
        alter_broker_overrides(many, [Alteration("one.more", "1")], DEFAULT)
    large = {"a": "x" * 32_000, "b": "x" * 32_000}
    with pytest.raises(ApiError, match="are too many"):
        alter_broker_overrides(large, [Alteration("c", "x" * 3_000)], DEFAULT)
    assert "1 to 249 bytes" in broker_refusal(("x" * 250, "1", SET))[1]
    assert "1 to 249 bytes" in broker_refusal(("", "1", SET))[1]


def test_replacing_a_brokers_settings_leaves_only_what_is_given() -> None:
    changed = DEFAULT.with_dynamic(own={"max.connections": "5"})
    assert alter_broker_overrides({}, [Alteration("max.connections.per.ip", "7")], changed) == {
        "max.connections.per.ip": "7"
    }


def test_settings_for_all_brokers_are_judged_without_one_brokers_own() -> None:
    shortest, longest = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    one = DEFAULT.with_dynamic(own={longest: "2000", "log.cleanup.policy": "compact"})
    large = Alteration(shortest, "3000")
    with pytest.raises(ApiError):
        alter_broker_overrides(one.given.own, [large], one)
    added = Alteration("log.cleanup.policy", "compact", APPEND)
    assert alter_broker_overrides({}, [large, added], one, cluster_wide=True) == {
        shortest: "3000",
        "log.cleanup.policy": "delete,compact",
    }
    assert alter_broker_overrides({}, [Alteration(shortest, "3000")], one, cluster_wide=True)


NAMES = st.sampled_from(sorted(TOPIC_SETTINGS)) | st.text(max_size=20)
TEXTS = (
    st.none() | st.text(max_size=12) | st.integers(-2, 2**40).map(str) | st.sampled_from(["compact", "true"])
)
STEPS = st.lists(st.builds(Alteration, NAMES, TEXTS, st.integers(-1, 5)), max_size=4)


@given(st.lists(STEPS, max_size=4))
def test_any_request_gives_settings_a_topic_can_obey_or_an_error_code(
    requests: list[list[Alteration]],
) -> None:
    current: dict[str, str] = {}
    for request in requests:
        try:
            current = alter_topic_overrides(current, request, DEFAULT)
        except ApiError as refusal:
            assert refusal.code in {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}  # noqa: PT017
        TopicConfig.effective(current, DEFAULT)


def test_a_stored_value_that_cannot_be_parsed_is_passed_over_and_named() -> None:
    """An earlier release that did not know the setting has kept whatever came."""
    config = DEFAULT.with_dynamic(own={"num.partitions": "many", "max.connections": "5"})
    assert config.topic_creation == DEFAULT.topic_creation
    assert config.network.connections_max == 5
    (warning,) = config.warnings
    assert warning.startswith("num.partitions")


@pytest.mark.parametrize("name", sorted(PROTECTIVE_SETTINGS))
def test_a_protection_that_is_not_there_is_rejected_at_run_time(name: str) -> None:
    with pytest.raises(ApiError) as refusal:
        alter_broker_overrides({}, [Alteration(name, "something")], DEFAULT)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert PROTECTIVE_SETTINGS[name] in refusal.value.detail
    assert alter_broker_overrides({}, [Alteration(name, "")], DEFAULT) == {name: ""}
    assert (
        alter_broker_overrides({name: "something"}, [Alteration(name, None, AlterOp.DELETE)], DEFAULT) == {}
    )


def test_a_protection_for_one_listener_is_rejected_too() -> None:
    with pytest.raises(ApiError, match="TLS is Python's"):
        alter_broker_overrides({}, [Alteration("listener.name.ssl.ssl.cipher.suites", "A")], DEFAULT)
