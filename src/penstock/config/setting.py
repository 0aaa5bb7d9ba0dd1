"""A declared setting: its name, type, default, bounds and meaning.

Strategy: everything that is known of a setting stands in one declaration, and every use of it
(parsing, refusing, describing, documenting) reads that. A value has two forms: typed for code, and
Kafka's text for the wire, the store and the file. `parse` and `render` go between them.

Rule 1: `parse(render(value)) == value` for every value a setting allows.
Rule 2: a refusal names the key, the value and what is allowed.
"""

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from math import inf, isfinite
from typing import Any, NamedTuple

from penstock.errors import ConfigError
from penstock.limits import INT_MAX, LONG_MAX, SHORT_MAX

_PASSWORD = re.compile(r"(?<=://)([^/?@:]*):[^/?]*@")
"""In an address: of the metadata store."""

SettingValue = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Kafka's numbers. A smaller one counts before a larger one; a group's own before all."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class SettingRule(NamedTuple):
    """What bounds cannot say. `description` completes the sentence "it must be ..."."""

    is_satisfied: Callable[[Any], bool]
    description: str


_INTEGERS = {ConfigType.SHORT: SHORT_MAX, ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}
# Python reads more as a number than Kafka does (1_000, other scripts' digits, nan).
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)
_INTEGER_DIGITS_MAX = 20
_QUOTED_MAX = 250


class Setting(NamedTuple):
    name: str
    type: ConfigType
    default: SettingValue | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[str, ...] | tuple[int, ...] = ()
    rule: SettingRule | None = None
    synonyms: tuple[str, ...] = ()
    """Broker settings whose value is taken, in this order, where this one is not set."""
    dynamic: bool = False
    """May be changed while the broker runs."""
    effect: str = ""
    """Empty when the setting is honoured; otherwise why setting it changes nothing."""

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> SettingValue:
        value = _PARSERS[self.type](text.strip())
        if value is None or not self._allows(value):
            shown = "(hidden)" if self.sensitive else _quoted(hide_password(text))
            raise ConfigError(f"{self.name} = {shown}: must be {self.allowed_text}")
        return value

    def render(self, value: SettingValue) -> str:
        return render(value)

    @property
    def default_text(self) -> str | None:
        return None if self.default is None else render(self.default)

    @property
    def allowed_text(self) -> str:
        """What is allowed, as the end of a sentence that begins with "must be"."""
        if self.rule is not None:
            return self.rule.description
        if self.allowed:
            choices = ", ".join(str(choice) for choice in self.allowed)
            return f"a list of {choices}" if self.type is ConfigType.LIST else f"one of {choices}"
        return _TYPE_DESCRIPTIONS[self.type] + self._range_text()

    def _range_text(self) -> str:
        if self.minimum is None:
            return ""
        if self.maximum is None:
            return f" of at least {self.minimum}"
        return f" from {self.minimum} to {self.maximum}"

    def _allows(self, value: SettingValue) -> bool:
        if self.allowed:
            chosen: Iterable[SettingValue] = value if isinstance(value, tuple) else (value,)
            if not all(choice in self.allowed for choice in chosen):
                return False
        return self._in_range(value) and (self.rule is None or self.rule.is_satisfied(value))

    def _in_range(self, value: SettingValue) -> bool:
        if isinstance(value, bool | str | tuple):
            return True
        widest = _INTEGERS.get(self.type)
        if widest is not None and not -widest - 1 <= value <= widest:
            return False
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )


def hide_password(text: str) -> str:
    """As it may be shown to anybody."""
    return _PASSWORD.sub(r"\1:***@", text) if "@" in text else text


def render(value: SettingValue) -> str:
    """Kafka's text for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).replace("e+", "E")  # as Java writes what is very large
    return str(value)


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for setting in settings:
        assert setting.name not in found, f"{setting.name} is declared twice"
        found[setting.name] = setting
    return found


def unknown_setting_message(name: str, known: Iterable[str]) -> str:
    """The sentence that refuses a key nobody declared."""
    # Only a refusal needs it, and it takes longer to load than this whole package.
    from difflib import get_close_matches

    nearest = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown setting {_quoted(name)}{hint}"


def _quoted(text: str) -> str:
    """A client may send anything; what is said about it has to fit a reply and a log line."""
    return repr(text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "...")


def _read_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _read_integer(text: str) -> int | None:
    if len(text) > _INTEGER_DIGITS_MAX or not _INTEGER.fullmatch(text):
        return None
    return int(text)


def _read_decimal(text: str) -> float | None:
    value = float(text) if _DECIMAL.fullmatch(text) else inf
    return value if isfinite(value) else None


def _read_list(text: str) -> tuple[str, ...] | None:
    if not text:
        return ()
    items = tuple(item.strip() for item in text.split(","))
    return items if all(items) else None


_PARSERS: dict[ConfigType, Callable[[str], SettingValue | None]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.STRING: str,
    ConfigType.PASSWORD: str,
    ConfigType.SHORT: _read_integer,
    ConfigType.INT: _read_integer,
    ConfigType.LONG: _read_integer,
    ConfigType.DOUBLE: _read_decimal,
    ConfigType.LIST: _read_list,
}

_TYPE_DESCRIPTIONS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.PASSWORD: "a text",
    ConfigType.SHORT: "an integer",
    ConfigType.INT: "an integer",
    ConfigType.LONG: "an integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list without empty items",
}
