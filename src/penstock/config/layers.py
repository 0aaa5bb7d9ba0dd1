"""Which of several given values counts, and where it came from.

A setting can be given for one topic, for this broker or for all brokers while they run, at start
(flags, --set, the file: one layer), or by nobody. `synonyms_of` lists everything that was given for
a setting, the one that counts first. DescribeConfigs shows that list, and `resolve` takes its head,
so what is shown and what is obeyed cannot differ.

Rule: values in a layer were parsed before they were put there, and those that cannot be are left out
(`BrokerConfig.with_dynamic`). Keys nobody declared are passed over, so that a store written by a newer
release can still be read.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.config.broker_settings import BROKER_SETTINGS, find_setting
from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.setting import ConfigSource, Setting, SettingValue
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.limits import HOUR_MS, MINUTE_MS

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {name: text for name, setting in BROKER_SETTINGS.items() if (text := setting.default_text) is not None}
)

_UNIT_MS = {"hours": HOUR_MS, "minutes": MINUTE_MS}


class GivenSettings(NamedTuple):
    """What was given to a broker, as texts, by where it was given."""

    static: Mapping[str, str] = NO_SETTINGS
    cluster: Mapping[str, str] = NO_SETTINGS
    """While running, for all brokers."""
    own: Mapping[str, str] = NO_SETTINGS
    """While running, for this broker."""


NOTHING_GIVEN = GivenSettings()


class Synonym(NamedTuple):
    name: str
    value: str
    source: ConfigSource


def synonyms_of(setting: Setting, given: GivenSettings) -> list[Synonym]:
    """All values a broker has for its setting, the one that counts first."""
    return _synonyms((setting.name, *setting.synonyms), given)


def topic_synonyms_of(setting: Setting, overrides: Mapping[str, str], given: GivenSettings) -> list[Synonym]:
    """The same for a topic's setting: its own value, then those of the broker it follows."""
    found = _synonyms(setting.synonyms, given)
    text = overrides.get(setting.name)
    if text is not None:
        found.insert(0, Synonym(setting.name, text, ConfigSource.TOPIC))
    elif not setting.synonyms and setting.default_text is not None:
        found.append(Synonym(setting.name, setting.default_text, ConfigSource.DEFAULT))
    return found


def resolve(setting: Setting, synonyms: list[Synonym]) -> SettingValue | None:
    """The value that counts, in the unit of the setting that asks."""
    if not synonyms:
        return None
    name, text, _ = synonyms[0]
    value = setting.parse(text)
    unit_ms = 1 if name == setting.name else _UNIT_MS.get(name.rpartition(".")[2], 1)
    # A negative duration means "no limit" in every unit.
    return value * unit_ms if isinstance(value, int) and unit_ms > 1 and value > 0 else value


def value_of(name: str, given: GivenSettings) -> Any:
    """The value a broker obeys, of the declared type; None where there is neither value nor default."""
    setting = find_setting(name)
    assert setting is not None, f"{name} is not declared"
    return resolve(setting, synonyms_of(setting, given))


def topic_value_of(name: str, overrides: Mapping[str, str], given: GivenSettings) -> Any:
    """The value a topic obeys."""
    setting = TOPIC_SETTINGS[name]
    return resolve(setting, topic_synonyms_of(setting, overrides, given))


def group_value_of(name: str, overrides: Mapping[str, str], given: GivenSettings) -> Any:
    """The value a group obeys."""
    setting = GROUP_OVERRIDE_SETTINGS[name]
    text = overrides.get(name)
    return value_of(setting.synonyms[0], given) if text is None else setting.parse(text)


def _synonyms(names: tuple[str, ...], given: GivenSettings) -> list[Synonym]:
    layers = (
        (ConfigSource.DYNAMIC_BROKER, given.own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, given.cluster),
        (ConfigSource.STATIC_BROKER, given.static),
        (ConfigSource.DEFAULT, _DEFAULTS),
    )
    return [Synonym(name, layer[name], source) for source, layer in layers for name in names if name in layer]
