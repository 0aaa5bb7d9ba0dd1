"""DescribeConfigs: every setting, its value, and where the value came from.

The description is read from the same list that determines the effective value (`layers`). Passwords never
leave the broker: their entries and synonyms have no value. The same holds for settings that this release does
not know: any of them may be a password.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.broker_settings import BROKER_SETTINGS, find_setting
from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.layers import (
    NO_SETTINGS,
    GivenSettings,
    Synonym,
    group_value_of,
    resolve,
    synonyms_of,
    topic_synonyms_of,
)
from penstock.config.listing_order import BROKER_SLOTS, GROUP_SLOTS, TOPIC_SLOTS, in_kafkas_order
from penstock.config.setting import ConfigSource, ConfigType, Setting, hide_password, render
from penstock.config.topic_settings import TOPIC_SETTINGS


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]
    """All given values, the effective one first."""


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a topic with these overrides."""
    given = broker.given
    return [
        _topic_entry(TOPIC_SETTINGS[entry.name], overrides, given) if entry.name in overrides else entry
        for entry in _inherited_entries(*(frozenset(layer.items()) for layer in given))
    ]


def describe_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a broker, and those given for one listener."""
    given = broker.given
    extra = [find_setting(name) for name in sorted(given.static) if name not in BROKER_SETTINGS]
    settings = (*BROKER_SETTINGS.values(), *(setting for setting in extra if setting is not None))
    entries = [
        _entry(setting, synonyms_of(setting, given), read_only=not setting.dynamic) for setting in settings
    ]
    entries += _unknown_entries(
        (ConfigSource.DYNAMIC_BROKER, given.own), (ConfigSource.DYNAMIC_DEFAULT_BROKER, given.cluster)
    )
    return in_kafkas_order(entries, BROKER_SLOTS)


def describe_cluster_defaults(broker: BrokerConfig) -> list[ConfigEntry]:
    """The cluster-wide dynamic settings, and nothing else."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    cluster = broker.given.cluster
    known = [
        _entry(BROKER_SETTINGS[name], [Synonym(name, text, source)], read_only=False)
        for name, text in sorted(cluster.items())
        if name in BROKER_SETTINGS
    ]
    return [*known, *_unknown_entries((source, cluster))]


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a group with these overrides. As in Kafka, the broker's values have the source
    DEFAULT.
    """
    entries = []
    for name, setting in GROUP_OVERRIDE_SETTINGS.items():
        text = render(group_value_of(name, overrides, broker.given))
        source = ConfigSource.GROUP if name in overrides else ConfigSource.DEFAULT
        synonyms = (ConfigSynonym(name, text, source),)
        entries.append(
            ConfigEntry(name, text, source, False, False, setting.type, documentation(setting), synonyms)
        )
    return in_kafkas_order(entries, GROUP_SLOTS)


# Tools describe every topic of a cluster at once, and topics inherit most of their settings from the broker.
@lru_cache(maxsize=4)
def _inherited_entries(*layers: frozenset[tuple[str, str]]) -> tuple[ConfigEntry, ...]:
    """The entries of a topic without overrides."""
    given = GivenSettings(*(dict(layer) for layer in layers))
    settings = in_kafkas_order(TOPIC_SETTINGS.values(), TOPIC_SLOTS)
    return tuple(_topic_entry(setting, NO_SETTINGS, given) for setting in settings)


def _topic_entry(setting: Setting, overrides: Mapping[str, str], given: GivenSettings) -> ConfigEntry:
    return _entry(setting, topic_synonyms_of(setting, overrides, given), read_only=False)


def _entry(setting: Setting, synonyms: list[Synonym], *, read_only: bool) -> ConfigEntry:
    value = resolve(setting, synonyms)
    return ConfigEntry(
        name=setting.name,
        value=None if value is None or setting.sensitive else hide_password(render(value)),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only=read_only,
        sensitive=setting.sensitive,
        type=setting.type,
        documentation=documentation(setting),
        synonyms=tuple(
            ConfigSynonym(name, None if setting.sensitive else hide_password(text), source)
            for name, text, source in synonyms
        ),
    )


def _unknown_entries(*layers: tuple[ConfigSource, Mapping[str, str]]) -> Iterator[ConfigEntry]:
    """Entries of settings that are not declared. Earlier layers take precedence over later ones."""
    for name in sorted(set().union(*(layer for _, layer in layers))):
        if find_setting(name) is None:
            synonyms = tuple(ConfigSynonym(name, None, source) for source, layer in layers if name in layer)
            yield ConfigEntry(
                name=name,
                value=None,
                source=synonyms[0].source,
                read_only=True,
                sensitive=True,
                type=ConfigType.UNKNOWN,
                documentation=None,
                synonyms=synonyms,
            )


def documentation(setting: Setting) -> str:
    return f"{setting.doc} Effect: {setting.effect}." if setting.effect else setting.doc
