"""A declared setting: its name, type, default, bounds and meaning.

Strategy: everything known about a setting is in one declaration, and every use of the setting (parsing,
validating, describing, documenting) reads that declaration. A value has two forms: typed for code, and
Kafka's text for the wire, the store and the file. `parse` and `render` convert between them.

Rule 1: `setting.parse(render(value)) == value` for every value that a setting allows.
Rule 2: an error message names the setting, the value and the allowed values.
"""

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from math import inf, isfinite
from typing import Any, NamedTuple

from penstock.errors import ConfigError
from penstock.limits import INT_MAX, LONG_MAX, SHORT_MAX

_PASSWORD = re.compile(r"(?<=://)([^/?@:]*):[^/?]*@")
"""The credentials in the URL of the metadata store."""

SettingValue = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """Kafka's numbers of the types."""

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
    """Kafka's numbers of the sources. A smaller source takes precedence over a larger one; GROUP over all."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class SettingRule(NamedTuple):
    """A constraint that bounds cannot express. `description` completes the sentence "it must be ..."."""

    is_satisfied: Callable[[Any], bool]
    description: str


_INTEGERS = {ConfigType.SHORT: SHORT_MAX, ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}
# Python accepts more texts as numbers than Kafka does (1_000, digits of other scripts, nan).
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
    """Broker settings whose value applies, in this order, where this setting is not set."""
    dynamic: bool = False
    """Whether the setting may be changed while the broker runs."""
    effect: str = ""
    """Empty if the setting has an effect; otherwise why setting it changes nothing."""

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> SettingValue:
        read, _ = _TYPES[self.type]
        value = read(text.strip())
        if value is None or not self._allows(value):
            shown = "(hidden)" if self.sensitive else _quoted(hide_password(text))
            raise ConfigError(f"{self.name} = {shown}: must be {self.allowed_text}")
        return value

    @property
    def default_text(self) -> str | None:
        return None if self.default is None else render(self.default)

    @property
    def allowed_text(self) -> str:
        """The allowed values, as the end of a sentence that begins with "must be"."""
        if self.rule is not None:
            return self.rule.description
        if self.allowed:
            choices = ", ".join(str(choice) for choice in self.allowed)
            return f"a list of {choices}" if self.type is ConfigType.LIST else f"one of {choices}"
        _, values = _TYPES[self.type]
        return values + self._range_text()

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
    """The text with passwords in URLs masked, safe for logs and replies."""
    return _PASSWORD.sub(r"\1:***@", text) if "@" in text else text


def render(value: SettingValue) -> str:
    """Kafka's text form of a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).replace("e+", "E")  # Java's form of very large numbers
    return str(value)


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for setting in settings:
        assert setting.name not in found, f"{setting.name} is declared twice"
        found[setting.name] = setting
    return found


def unknown_setting_message(name: str, known: Iterable[str]) -> str:
    """The error message for a setting that is not declared."""
    # Imported here because only this message needs it, and it takes longer to load than this whole package.
    from difflib import get_close_matches

    nearest = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown setting {_quoted(name)}{hint}"


def _quoted(text: str) -> str:
    """The text, quoted and shortened: a client may send anything, and the message has to fit a reply and a
    log line.
    """
    return repr(text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "...")


def _read_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _read_integer(text: str) -> int | None:
    # Longer texts exceed every type, and int() would raise on thousands of digits.
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


_TYPES: dict[ConfigType, tuple[Callable[[str], SettingValue | None], str]] = {
    ConfigType.BOOLEAN: (_read_boolean, "true or false"),
    ConfigType.STRING: (str, "a text"),
    ConfigType.PASSWORD: (str, "a text"),
    ConfigType.SHORT: (_read_integer, "an integer"),
    ConfigType.INT: (_read_integer, "an integer"),
    ConfigType.LONG: (_read_integer, "an integer"),
    ConfigType.DOUBLE: (_read_decimal, "a number"),
    ConfigType.LIST: (_read_list, "a comma-separated list without empty items"),
}
"""The parser of each type, and its values in words."""
