"""Layers of settings: which of several given values is effective, and where it came from.

A setting can be given for one topic, dynamically for this broker or for all brokers, or at start (flags,
--set and the file form one layer); otherwise its default applies. `synonyms_of` lists every value given for a
setting, the effective one first. DescribeConfigs returns that list, and `resolve` takes its head, so the
reported and the effective value cannot differ.

Rule: values are parsed before they are put into a layer, and values that cannot be parsed are left out
      (`BrokerConfig.with_dynamic`). Keys that are not declared are skipped, so that a store written by a
      newer release can still be read.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_type_hints

from penstock.config.broker_settings import BROKER_SETTINGS, find_setting
from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.setting import ConfigSource, Setting, SettingValue
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.limits import HOUR_MS, MINUTE_MS

P = TypeVar("P", bound=tuple[Any, ...])

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {name: text for name, setting in BROKER_SETTINGS.items() if (text := setting.default_text) is not None}
)

_UNIT_MS = {"hours": HOUR_MS, "minutes": MINUTE_MS}


class GivenSettings(NamedTuple):
    """The texts given to a broker, by where they were given."""

    static: Mapping[str, str] = NO_SETTINGS
    cluster: Mapping[str, str] = NO_SETTINGS
    """Dynamic settings for all brokers."""
    own: Mapping[str, str] = NO_SETTINGS
    """Dynamic settings for this broker."""


NOTHING_GIVEN = GivenSettings()


class Synonym(NamedTuple):
    name: str
    value: str
    source: ConfigSource


def synonyms_of(setting: Setting, given: GivenSettings) -> list[Synonym]:
    """All values that a broker has for a setting, the effective one first."""
    return _synonyms((setting.name, *setting.synonyms), given)


def topic_synonyms_of(setting: Setting, overrides: Mapping[str, str], given: GivenSettings) -> list[Synonym]:
    """All values for a topic's setting: its own override, then those of the broker settings that it
    follows.
    """
    found = _synonyms(setting.synonyms, given)
    text = overrides.get(setting.name)
    if text is not None:
        found.insert(0, Synonym(setting.name, text, ConfigSource.TOPIC))
    elif not setting.synonyms and setting.default_text is not None:
        found.append(Synonym(setting.name, setting.default_text, ConfigSource.DEFAULT))
    return found


def resolve(setting: Setting, synonyms: list[Synonym]) -> SettingValue | None:
    """The effective value, in the unit of `setting`."""
    if not synonyms:
        return None
    name, text, _ = synonyms[0]
    value = setting.parse(text)
    unit_ms = 1 if name == setting.name else _UNIT_MS.get(name.rpartition(".")[2], 1)
    # A negative duration means "no limit" in every unit, and is not converted.
    return value * unit_ms if isinstance(value, int) and unit_ms > 1 and value > 0 else value


def value_of(name: str, given: GivenSettings) -> Any:
    """The broker's effective value, of the declared type; None if there is neither a value nor a default."""
    setting = find_setting(name)
    assert setting is not None, f"{name} is not declared"
    return resolve(setting, synonyms_of(setting, given))


def part_of(part: type[P], given: GivenSettings, **computed: Any) -> P:
    """A typed part of the broker's settings.

    Each field names its setting, as in `connections_max: Annotated[int, "max.connections"]`. `computed` are
    the fields that are not simply the value of one setting.
    """
    return part(**{field: value_of(name, given) for field, name in _setting_names(part).items()}, **computed)


@cache
def _setting_names(part: type) -> dict[str, str]:
    hints = get_type_hints(part, include_extras=True)
    return {field: hint.__metadata__[0] for field, hint in hints.items() if hasattr(hint, "__metadata__")}


def topic_value_of(name: str, overrides: Mapping[str, str], given: GivenSettings) -> Any:
    """The topic's effective value."""
    setting = TOPIC_SETTINGS[name]
    return resolve(setting, topic_synonyms_of(setting, overrides, given))


def group_value_of(name: str, overrides: Mapping[str, str], given: GivenSettings) -> Any:
    """The group's effective value."""
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
    # The layer decides before the name: a dynamic value wins even if it was set under a synonym.
    return [Synonym(name, layer[name], source) for source, layer in layers for name in names if name in layer]
