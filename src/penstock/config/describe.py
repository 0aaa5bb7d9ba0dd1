"""Answers for DescribeConfigs: every setting, its value, and where the value came from.

What is described is read from the same list that decides which value counts (`layers`). Passwords
never leave: their entries and synonyms have no value.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.broker_settings import BROKER_SETTINGS, find_setting
from penstock.config.group_settings import ONE_GROUP_SETTINGS
from penstock.config.layers import (
    NOTHING,
    Given,
    Synonym,
    group_value_of,
    resolve,
    synonyms_of,
    topic_synonyms_of,
)
from penstock.config.setting import ConfigSource, ConfigType, Setting, render, without_password
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
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]
    """The one that counts first."""


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a topic that has these of its own."""
    given = broker.given
    return [
        _topic_entry(TOPIC_SETTINGS[entry.name], overrides, given) if entry.name in overrides else entry
        for entry in _followed(*(frozenset(layer.items()) for layer in given))
    ]


def describe_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a broker, and those given for one listener."""
    given = broker.given
    extra = [find_setting(name) for name in sorted(given.static) if name not in BROKER_SETTINGS]
    settings = (*BROKER_SETTINGS.values(), *(setting for setting in extra if setting is not None))
    return [
        _entry(setting, synonyms_of(setting, given), read_only=not setting.reload) for setting in settings
    ]


def describe_cluster_defaults(broker: BrokerConfig) -> list[ConfigEntry]:
    """What was set at run time for all brokers, and nothing else."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        _entry(BROKER_SETTINGS[name], [Synonym(name, text, source)], read_only=False)
        for name, text in sorted(broker.given.cluster.items())
        if name in BROKER_SETTINGS
    ]


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of a group that has these of its own. Kafka calls the broker's values defaults."""
    entries = []
    for name, setting in ONE_GROUP_SETTINGS.items():
        text = render(group_value_of(name, overrides, broker.given))
        source = ConfigSource.GROUP if name in overrides else ConfigSource.DEFAULT
        synonyms = (ConfigSynonym(name, text, source),)
        entries.append(
            ConfigEntry(name, text, source, False, False, setting.type, documentation(setting), synonyms)
        )
    return entries


# A tool asks for every topic of a cluster at once, and most of their settings are the broker's.
@lru_cache(maxsize=4)
def _followed(*layers: frozenset[tuple[str, str]]) -> tuple[ConfigEntry, ...]:
    """The entries of a topic that has no settings of its own."""
    given = Given(*(dict(layer) for layer in layers))
    return tuple(_topic_entry(setting, NOTHING, given) for setting in TOPIC_SETTINGS.values())


def _topic_entry(setting: Setting, overrides: Mapping[str, str], given: Given) -> ConfigEntry:
    return _entry(setting, topic_synonyms_of(setting, overrides, given), read_only=False)


def _entry(setting: Setting, synonyms: list[Synonym], *, read_only: bool) -> ConfigEntry:
    value = resolve(setting, synonyms)
    return ConfigEntry(
        name=setting.name,
        value=None if value is None or setting.sensitive else without_password(render(value)),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only=read_only,
        sensitive=setting.sensitive,
        type=setting.type,
        documentation=documentation(setting),
        synonyms=tuple(
            ConfigSynonym(name, None if setting.sensitive else without_password(text), source)
            for name, text, source in synonyms
        ),
    )


def documentation(setting: Setting) -> str:
    return f"{setting.doc} Effect: {setting.effect}." if setting.effect else setting.doc
