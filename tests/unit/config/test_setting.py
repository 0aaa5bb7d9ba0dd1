"""Text to value and back, and what a refusal says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.broker_settings import BROKER_SETTINGS, find_setting
from penstock.config.setting import (
    ConfigType,
    Setting,
    SettingRule,
    SettingValue,
    by_name,
    render,
    unknown_setting_message,
)
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.errors import ConfigError
from penstock.limits import INT_MAX, LONG_MAX, SHORT_MAX

ALL_SETTINGS = [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()]
WIDEST = {ConfigType.SHORT: SHORT_MAX, ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}
WORDS = st.text(st.characters(exclude_characters=",", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text == text.strip()
)
RULED: dict[str, st.SearchStrategy[SettingValue]] = {
    "log.dirs": st.tuples(WORDS),
    "log.dir": WORDS,
    "metadata.store": st.just("embedded"),
    "listeners": st.lists(WORDS, min_size=1).map(tuple),
    "group.consumer.assignors": st.sampled_from([("uniform",), ("range", "uniform")]),
    "ssl.enabled.protocols": st.sampled_from([("TLSv1.2",), ("TLSv1.3",), ("TLSv1.3", "TLSv1.2")]),
    "leader.replication.throttled.replicas": st.sampled_from([(), ("*",), ("0:1", "12:3")]),
    "follower.replication.throttled.replicas": st.sampled_from([(), ("*",), ("0:1", "12:3")]),
}


def values_of(setting: Setting) -> st.SearchStrategy[SettingValue]:
    """Everything a setting allows."""
    if setting.name in RULED:
        return RULED[setting.name]
    if setting.type is ConfigType.LIST:
        choices = [str(choice) for choice in setting.allowed]
        return st.lists(st.sampled_from(choices) if choices else WORDS).map(tuple)
    if setting.allowed:
        return st.sampled_from(setting.allowed)
    if setting.type in WIDEST:
        widest = WIDEST[setting.type]
        lowest = -widest - 1 if setting.minimum is None else int(setting.minimum)
        highest = widest if setting.maximum is None else int(setting.maximum)
        return st.integers(lowest, highest)
    if setting.type is ConfigType.DOUBLE:
        return st.floats(setting.minimum, setting.maximum, allow_nan=False, allow_infinity=False)
    if setting.type is ConfigType.BOOLEAN:
        return st.booleans()
    return WORDS


@given(st.data())
def test_every_allowed_value_survives_being_written_and_read(data: st.DataObject) -> None:
    setting = data.draw(st.sampled_from(ALL_SETTINGS))
    value = data.draw(values_of(setting))
    again = setting.parse(render(value))
    assert again == value
    assert type(again) is type(value)


@given(st.sampled_from(ALL_SETTINGS), st.text())
def test_any_text_is_a_value_or_a_config_error_that_names_the_key(setting: Setting, text: str) -> None:
    try:
        value = setting.parse(text)
    except ConfigError as refusal:
        sentence = str(refusal)
    else:
        assert setting.parse(render(value)) == value
        return
    assert sentence.startswith(f"{setting.name} = ")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("retention.ms", "abc", "retention.ms = 'abc': must be an integer of at least -1"),
        ("retention.ms", "-2", "retention.ms = '-2': must be an integer of at least -1"),
        ("retention.ms", "1_000", "retention.ms = '1_000': must be an integer of at least -1"),
        ("retention.ms", "١٠", "retention.ms = '١٠': must be an integer of at least -1"),
        ("retention.ms", str(2**63), f"retention.ms = '{2**63}': must be an integer of at least -1"),
        ("segment.bytes", str(2**31), f"segment.bytes = '{2**31}': must be an integer of at least 1048576"),
        ("segment.bytes", "14", "segment.bytes = '14': must be an integer of at least 1048576"),
        ("compression.lz4.level", "18", "compression.lz4.level = '18': must be an integer from 1 to 17"),
        (
            "compression.gzip.level",
            "0",
            "compression.gzip.level = '0': must be one of -1, 1, 2, 3, 4, 5, 6, 7, 8, 9",
        ),
        ("preallocate", "yes", "preallocate = 'yes': must be true or false"),
        (
            "flush.policy",
            "always",
            "flush.policy = 'always': must be one of before_ack, interval, os",
        ),
        (
            "cleanup.policy",
            "delete,shred",
            "cleanup.policy = 'delete,shred': must be a list of compact, delete",
        ),
        ("cleanup.policy", "delete,,", "cleanup.policy = 'delete,,': must be a list of compact, delete"),
        (
            "min.cleanable.dirty.ratio",
            "nan",
            "min.cleanable.dirty.ratio = 'nan': must be a number from 0 to 1",
        ),
        (
            "min.cleanable.dirty.ratio",
            "1.01",
            "min.cleanable.dirty.ratio = '1.01': must be a number from 0 to 1",
        ),
        (
            "leader.replication.throttled.replicas",
            "0-1",
            "leader.replication.throttled.replicas = '0-1': must be '*' or a comma-separated list of"
            " partition:broker pairs",
        ),
    ],
)
def test_a_refusal_names_the_key_the_value_and_what_is_allowed(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        TOPIC_SETTINGS[name].parse(text)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " +5 ", 5),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", " compact , delete ", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("min.cleanable.dirty.ratio", ".25", 0.25),
        ("min.cleanable.dirty.ratio", "1e-2", 0.01),
        ("follower.replication.throttled.replicas", "*", ("*",)),
    ],
)
def test_text_is_read_as_leniently_as_kafka_reads_it(name: str, text: str, value: SettingValue) -> None:
    assert TOPIC_SETTINGS[name].parse(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (("a", "b"), "a,b"), ((), ""), (0.5, "0.5"), (-1, "-1")],
)
def test_values_are_written_as_kafka_writes_them(value: SettingValue, text: str) -> None:
    assert render(value) == text


def test_a_list_with_an_empty_item_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a comma-separated list without empty items"):
        BROKER_SETTINGS["advertised.listeners"].parse("A://a:1,,B://b:1")


def test_a_number_beyond_what_a_float_holds_is_refused() -> None:
    setting = Setting("ratio", ConfigType.DOUBLE, 0.5, "A ratio.")
    with pytest.raises(ConfigError):
        setting.parse("9" * 400)


def test_a_password_is_not_repeated_in_a_refusal() -> None:
    setting = Setting(
        "secret", ConfigType.PASSWORD, None, "A secret.", rule=SettingRule(lambda _: False, "better")
    )
    with pytest.raises(ConfigError, match=r"secret = \(hidden\): must be better") as refusal:
        setting.parse("hunter2")
    assert "hunter2" not in str(refusal.value)


def test_a_refusal_of_a_huge_value_or_key_is_short() -> None:
    with pytest.raises(ConfigError) as refusal:
        TOPIC_SETTINGS["retention.ms"].parse("x" * 1_000_000)
    assert len(str(refusal.value)) < 400
    assert len(unknown_setting_message("x" * 1_000_000, TOPIC_SETTINGS)) < 400


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert (
        unknown_setting_message("log.retention.mss", BROKER_SETTINGS)
        == "unknown setting 'log.retention.mss'; did you mean 'log.retention.ms'?"
    )
    assert unknown_setting_message("zzz", BROKER_SETTINGS) == "unknown setting 'zzz'"


def test_a_setting_cannot_be_declared_twice() -> None:
    setting = TOPIC_SETTINGS["retention.ms"]
    with pytest.raises(AssertionError, match=r"retention\.ms is declared twice"):
        by_name([setting, setting])


def test_a_key_for_one_listener_is_declared_by_the_setting_for_all() -> None:
    setting = find_setting("listener.name.tls.ssl.client.auth")
    assert setting is not None
    with pytest.raises(ConfigError, match=r"listener\.name\.tls\.ssl\.client\.auth = 'maybe'"):
        setting.parse("maybe")
    assert find_setting("listener.name.tls.log.dirs") is None
    assert find_setting("listener.name.tls.ssl.nothing") is None


@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_a_sentence_and_allows_its_own_default(setting: Setting) -> None:
    assert setting.doc.endswith(".")
    assert setting.default_text is None or setting.parse(setting.default_text) == setting.default


def test_a_refusal_does_not_show_a_password() -> None:
    with pytest.raises(ConfigError) as refused:
        BROKER_SETTINGS["metadata.store"].parse("http://user:secret@host:1")
    assert "user:***@host" in str(refused.value)
    assert "secret" not in str(refused.value)
