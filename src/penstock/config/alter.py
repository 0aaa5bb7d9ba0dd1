"""AlterConfigs and IncrementalAlterConfigs: compute a resource's new overrides from its old ones.

Strategy: nothing here changes state. Each function takes the resource's current overrides (none for
AlterConfigs, which replaces them all), the requested changes, and the config of the broker whose defaults
apply. It returns the resource's new overrides in Kafka's text form, or raises ApiError with Kafka's code and
a sentence. The caller stores the result.

Rule 1: keys that the request does not name stay as they are, also those that this release does not know.
Rule 2: the settings that result must be valid together (`checks`), not only each value alone.
Rule 3: a broker keeps settings that this release does not know, as Kafka does, because tools set them and
        fail where they are rejected. They have no effect, and their number and size are limited. Settings
        that would protect something are rejected: an operator would rely on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.broker_settings import find_setting
from penstock.config.checks import broker_problems, group_problems, topic_problems
from penstock.config.group_settings import GROUP_OVERRIDE_SETTINGS
from penstock.config.kafka_settings import protection_of
from penstock.config.layers import NO_SETTINGS, group_value_of, topic_value_of, value_of
from penstock.config.setting import ConfigType, Setting, render, unknown_setting_message
from penstock.config.topic_settings import IGNORED_TOPIC_SETTINGS, TOPIC_SETTINGS
from penstock.errors import ApiError, ConfigError, ErrorCode
from penstock.limits import (
    CONFIG_VALUE_BYTES_MAX,
    UNKNOWN_SETTING_NAME_BYTES_MAX,
    UNKNOWN_SETTINGS_BYTES_MAX,
    UNKNOWN_SETTINGS_MAX,
)


class AlterOp(IntEnum):
    """Kafka's numbers of the operations."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    value: str | None
    op: int = AlterOp.SET
    """The operation as received: the number may be invalid."""


def alter_topic_overrides(
    current: Mapping[str, str], alterations: Sequence[Alteration], broker: BrokerConfig
) -> dict[str, str]:
    """The new overrides of a topic."""
    updated = dict(current)
    for alteration in _with_effect(alterations, current):
        if alteration.name in IGNORED_TOPIC_SETTINGS:
            updated.pop(alteration.name, None)
            continue
        setting = TOPIC_SETTINGS.get(alteration.name)
        if setting is None:
            _reject_unknown(alteration, updated, TOPIC_SETTINGS)
            continue
        before = topic_value_of(setting.name, updated, broker.given)
        _apply(setting, alteration, before, updated)
    _reject_problems(topic_problems(updated, broker.given))
    return updated


def alter_broker_overrides(
    current: Mapping[str, str],
    alterations: Sequence[Alteration],
    broker: BrokerConfig,
    *,
    cluster_wide: bool = False,
) -> dict[str, str]:
    """The new dynamic settings of this broker, or of all brokers."""
    updated = dict(current)
    # Cluster-wide values are checked without this broker's own values, which would hide a conflict between
    # them.
    given = broker.given._replace(own=updated)
    if cluster_wide:
        given = broker.given._replace(own=NO_SETTINGS, cluster=updated)
    for alteration in _with_effect(alterations, current):
        setting = find_setting(alteration.name)
        if setting is None:
            _store_unknown(alteration, updated)
            continue
        if not setting.dynamic:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{setting.name} is read-only at run time; it is set when the broker starts",
            )
        _apply(setting, alteration, value_of(setting.name, given), updated)
    _limit_unknown(updated)
    _reject_problems(broker_problems(given))
    return updated


def alter_group_overrides(
    current: Mapping[str, str], alterations: Sequence[Alteration], broker: BrokerConfig
) -> dict[str, str]:
    """The new settings of a group."""
    updated = dict(current)
    for alteration in _with_effect(alterations, current):
        setting = GROUP_OVERRIDE_SETTINGS.get(alteration.name)
        if setting is None:
            _reject_unknown(alteration, updated, GROUP_OVERRIDE_SETTINGS)
            continue
        _apply(setting, alteration, group_value_of(setting.name, updated, broker.given), updated)
    _reject_problems(group_problems(updated, broker.given))
    return updated


def _with_effect(alterations: Sequence[Alteration], current: Mapping[str, str]) -> list[Alteration]:
    """The alterations without deletions of settings that are not set, which succeed whatever their name."""
    seen: set[str] = set()
    for name, _, _ in alterations:
        if name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is given twice")
        seen.add(name)
    return [each for each in alterations if each.op != AlterOp.DELETE or each.name in current]


def _apply(setting: Setting, alteration: Alteration, before: object, updated: dict[str, str]) -> None:
    """Change one key of `updated`. `before` is the effective value now, its default included."""
    name, text, op = alteration
    if op == AlterOp.DELETE:
        updated.pop(name, None)
        return
    if op not in (AlterOp.SET, AlterOp.APPEND, AlterOp.SUBTRACT):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: unknown operation {op}")
    if text is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: a value is required")
    if op == AlterOp.SET:
        updated[name] = _checked(setting, text)
        return
    if setting.type is not ConfigType.LIST:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is not a list: it can only be set or deleted")
    assert isinstance(before, tuple)
    items = [item.strip() for item in text.split(",")]
    if op == AlterOp.APPEND:
        # Appending a value that is there already changes nothing.
        kept = [*before, *(item for item in items if item not in before)]
    else:
        kept = [item for item in before if item not in items]
    updated[name] = _checked(setting, ",".join(kept))


def _checked(setting: Setting, text: str) -> str:
    if len(text.encode()) > CONFIG_VALUE_BYTES_MAX:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"{setting.name}: longer than {CONFIG_VALUE_BYTES_MAX} bytes"
        )
    try:
        return render(setting.parse(text))
    except ConfigError as problem:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(problem)) from None


def _reject_unknown(alteration: Alteration, updated: dict[str, str], known: Iterable[str]) -> None:
    """Reject an unknown setting, unless the request deletes a key that a newer release stored."""
    if alteration.op != AlterOp.DELETE:
        raise ApiError(ErrorCode.INVALID_CONFIG, unknown_setting_message(alteration.name, known))
    del updated[alteration.name]


def _store_unknown(alteration: Alteration, updated: dict[str, str]) -> None:
    """Store a broker setting that is not declared. Its type is unknown, so list operations are rejected."""
    name, text, op = alteration
    if op == AlterOp.DELETE:
        updated.pop(name, None)
        return
    if op != AlterOp.SET:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{unknown_setting_message(name, ())}: it can only be set or deleted"
        )
    if text is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{unknown_setting_message(name, ())}: a value is required")
    if not 0 < len(name.encode()) <= UNKNOWN_SETTING_NAME_BYTES_MAX:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{unknown_setting_message(name, ())}: its name must have 1 to"
            f" {UNKNOWN_SETTING_NAME_BYTES_MAX} bytes",
        )
    protection = protection_of(name, text)
    if protection is not None:
        # Stored without effect, the setting would make the operator rely on a protection that does not exist.
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: this broker does not have it: {protection}")
    updated[name] = text


def _limit_unknown(updated: Mapping[str, str]) -> None:
    unknown = {name: text for name, text in updated.items() if find_setting(name) is None}
    size = sum(len(name.encode()) + len(text.encode()) for name, text in unknown.items())
    if len(unknown) > UNKNOWN_SETTINGS_MAX or size > UNKNOWN_SETTINGS_BYTES_MAX:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{len(unknown)} settings that this broker does not know, with {size} bytes, are too many: "
            f"at most {UNKNOWN_SETTINGS_MAX} with {UNKNOWN_SETTINGS_BYTES_MAX} bytes are kept; delete some",
        )


def _reject_problems(problems: Sequence[str]) -> None:
    if problems:
        raise ApiError(ErrorCode.INVALID_CONFIG, "; ".join(problems))
