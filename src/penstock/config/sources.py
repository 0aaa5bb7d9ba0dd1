"""Sources of a broker's settings: flags override --set, which overrides the file, which overrides defaults.

Every source becomes (key, text, origin) triples, lowest precedence first; each value is parsed on its own,
and a later one replaces an earlier. Then the settings are checked against each other.

Rule 1: a key that is not declared is rejected, with the nearest declared one as a hint. A Kafka setting that
        is not declared here has no effect and causes a warning, unless it protects something
        (`kafka_settings`).
Rule 2: an error message names the source of the value.
Rule 3: all problems are reported together, so that one start reveals them all.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.broker_settings import BROKER_SETTINGS, find_setting, listener_and_setting
from penstock.config.checks import broker_problems, broker_warnings, listener_problems
from penstock.config.kafka_settings import PROTECTIVE_SETTINGS, REPLACED_BY, is_without_effect
from penstock.config.layers import GivenSettings, value_of
from penstock.config.listeners import ADDRESS_FORM, advertise, parse_address
from penstock.config.setting import render, unknown_setting_message
from penstock.errors import ConfigError

FILE = "the config file"

_FLAGS = {
    "data_dir": "log.dirs",
    "http": "http.listener",
    "node_id": "node.id",
    "rack": "broker.rack",
    "metadata": "metadata.store",
    "kafka": "listeners",
}
_ADDRESS_FLAGS = {"http": "", "kafka": "PLAINTEXT://"}
"""Flags that take an address, and the prefix of the address in the setting."""
_LISTENER_KEYS = {"listeners", "advertised.listeners", "listener.security.protocol.map", "http.listener"}

Flag = str | int | bool | None


class _SourceEntry(NamedTuple):
    key: str
    text: str
    origin: str


def load(
    flags: Mapping[str, Flag] = MappingProxyType({}),
    sets: Sequence[str] = (),
    file: bytes | None = None,
    *,
    sets_origin: str = "--set",
    file_name: str = "",
) -> BrokerConfig:
    """A broker's settings, or ConfigError with one line for each problem.

    `flags` are those of `serve`, by parameter name (data_dir, kafka, http, advertised, node_id, rack,
    metadata, insecure); None is a flag that was not given. `sets` are "key=value"; error messages name their
    source as `sets_origin`. `file` is TOML, and `file_name` is what they call it.
    """
    assert flags.keys() <= {*_FLAGS, "advertised", "insecure"}, "every flag is declared"
    problems: list[str] = []
    entries = [
        *_from_file(file, f"{FILE} {file_name}".rstrip(), problems),
        *_from_sets(sets, sets_origin, problems),
        *_from_flags(flags, problems),
    ]
    warnings: list[str] = []
    static, rejected = _parse(entries, problems, warnings)
    _apply_advertised(flags.get("advertised"), static, rejected, problems)
    given = GivenSettings(MappingProxyType(static))
    problems += broker_problems(given, rejected)
    try:
        config = BrokerConfig.of(given, insecure=flags.get("insecure") is True)
    except ConfigError as problem:
        # If one of the listener settings was rejected already, an error about the others would be misleading.
        problems += [] if rejected & _LISTENER_KEYS else [str(problem)]
        raise ConfigError("\n".join(problems)) from None
    if not any(key in _LISTENER_KEYS or "ssl." in key for key in rejected):
        problems += listener_problems(config)
    if problems:
        raise ConfigError("\n".join(problems))
    return config._replace(warnings=(*warnings, *broker_warnings(given)))


def _parse(
    entries: Sequence[_SourceEntry], problems: list[str], warnings: list[str]
) -> tuple[dict[str, str], set[str]]:
    static: dict[str, str] = {}
    rejected: set[str] = set()
    listeners = next((entry.text for entry in reversed(entries) if entry.key == "listeners"), "PLAINTEXT://")
    for key, text, origin in entries:
        setting = find_setting(key)
        if setting is None and is_without_effect(key, text, listeners):
            instead = f": {REPLACED_BY[key]}" if key in REPLACED_BY else ""
            warnings.append(f"{key}: a setting of Kafka without effect here{instead} (from {origin})")
            continue
        if setting is None:
            problems.append(f"{_unknown(key)} (from {origin})")
            rejected.add(key)
            continue
        try:
            static[key] = render(setting.parse(text))
        except ConfigError as problem:
            problems.append(f"{problem} (from {origin})")
            rejected.add(key)
    return static, rejected


def _unknown(key: str) -> str:
    _, name = listener_and_setting(key)
    protection = PROTECTIVE_SETTINGS.get(name)
    if protection is not None:
        return f"{key}: a setting of Kafka that this broker does not have: {protection}; leave it out"
    message = unknown_setting_message(key, BROKER_SETTINGS)
    return message if message.endswith("?") else f"{message}; `python -m penstock.config.reference` lists all"


def _from_flags(flags: Mapping[str, Flag], problems: list[str]) -> Iterator[_SourceEntry]:
    for flag, key in _FLAGS.items():
        given = flags.get(flag)
        origin = "--" + flag.replace("_", "-")
        if given is None:
            continue
        if flag in _ADDRESS_FLAGS and parse_address(str(given)) is None:
            problems.append(f"{origin} {str(given)!r}: must be {ADDRESS_FORM}")
        else:
            yield _SourceEntry(key, _ADDRESS_FLAGS.get(flag, "") + str(given), origin)


def _apply_advertised(flag: Flag, static: dict[str, str], rejected: set[str], problems: list[str]) -> None:
    """Apply `--advertised`, which names no listener and so can only be parsed once the listeners are
    known.
    """
    if flag is None:
        return
    try:
        listeners = value_of("listeners", GivenSettings(static))
        static["advertised.listeners"] = advertise(str(flag), listeners)
    except ConfigError as problem:
        problems.append(str(problem))
        rejected.add("advertised.listeners")


def _from_sets(sets: Sequence[str], origin: str, problems: list[str]) -> Iterator[_SourceEntry]:
    for item in sets:
        key, separator, text = item.partition("=")
        if separator:
            yield _SourceEntry(key.strip(), text, origin)
        else:
            problems.append(f"{origin} {item!r}: must be key=value")


def _from_file(file: bytes | None, origin: str, problems: list[str]) -> Iterator[_SourceEntry]:
    if file is None:
        return
    # Imported here because most brokers start without a file.
    import tomllib

    try:
        content = tomllib.loads(file.decode())
    except UnicodeDecodeError as problem:
        problems.append(f"{origin} is not TOML: byte {problem.start + 1} is not UTF-8")
        return
    except tomllib.TOMLDecodeError as problem:
        problems.append(f"{origin} is not TOML: {problem}")
        return
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        problems.append(f"{origin} is not TOML: a number is too long, or a list is nested too deeply")
        return
    for key, value in content.items():
        if isinstance(value, dict):
            problems.append(
                f'{_first_leaf(key, value)}: put the whole key in quotes ("a.b" = 1) (from {origin})'
            )
        elif (text := _text_of(value)) is None:
            problems.append(
                f"{key}: must be a text, a number, true, false or a list of texts (from {origin})"
            )
        else:
            yield _SourceEntry(key, text, origin)


def _text_of(value: Any) -> str | None:
    if isinstance(value, list):
        return ",".join(value) if all(isinstance(item, str) for item in value) else None
    return render(value) if isinstance(value, bool | int | float | str) else None


def _first_leaf(key: str, value: Any) -> str:
    """The dotted key that a key without quotes (log.retention.ms) was meant to be."""
    while isinstance(value, dict) and value:
        part, value = next(iter(value.items()))
        key = f"{key}.{part}"
    return key
