"""Parsing of option values. An error contains a valid example.

The functions are pure and use no cluster.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from penstock.errors import ConfigError
from penstock.limits import INT_MAX, LONG_MAX
from penstock.types import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1

_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_NUMBER: Final = re.compile("[+-]?[0-9]{1,19}")
_TIME: Final = re.compile(f"(?P<digits>[0-9]{{1,19}})(?P<unit>{'|'.join(_UNITS_MS)})?")
_OFFSETS_EXAMPLE: Final = '{"orders":{"0":23,"1":-1},"payments":{"0":-2}}'
_TIMES_EXAMPLE: Final = '{"orders":{"0":1700000000000,"1":1700000000000}}'
_ASSIGN_EXAMPLE: Final = '{"orders":[0,1],"payments":[2]}'

Choice = TypeVar("Choice")


class SourceOptions:
    """Options by name. Case is ignored."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def number(self, name: str, *, least: int = 1, most: int = LONG_MAX) -> int | None:
        text = self.text(name)
        return None if text is None else parse_whole_number(name, text, least=least, most=most)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        return default if text is None else parse_flag(name, text)

    def first_given(self, names: tuple[str, ...]) -> tuple[str, str] | None:
        return next(((name, text) for name in names if (text := self.text(name)) is not None), None)


def parse_whole_number(name: str, text: str, *, least: int = 1, most: int = LONG_MAX) -> int:
    try:
        number = _parse_digits(text.strip())
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigError(f"option {name} is {text!r}; give a whole number, {_bounds(least, most)}")
    return number


def _bounds(least: int, most: int) -> str:
    return f"at least {least}" if most == LONG_MAX else f"from {least} to {most}"


def _parse_digits(text: str) -> int:
    """Parse a number as Java does. Python would also accept 1_000 and digits of other scripts."""
    if not _NUMBER.fullmatch(text):
        raise ValueError("not a whole number")
    return int(text)


def parse_flag(name: str, text: str) -> bool:
    return parse_choice(name, text, {"true": True, "false": False})


def parse_choice(name: str, text: str, choices: Mapping[str, Choice]) -> Choice:
    chosen = text.strip().lower()
    if chosen not in choices:
        raise ConfigError(f"option {name} is {text!r}; give one of {', '.join(choices)}")
    return choices[chosen]


def parse_duration_ms(name: str, text: str) -> int:
    """Parse a duration as Spark does: 90s, 15m, 2h. A plain number is in milliseconds."""
    found = _TIME.fullmatch(text.strip().lower())
    time_ms = int(int(found["digits"]) * _UNITS_MS[found["unit"] or "ms"]) if found else LONG_MAX + 1
    if time_ms > LONG_MAX:
        raise ConfigError(f"option {name} is {text!r}; give a time such as 30s, 15m or 2h")
    return time_ms


def parse_partition_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    offsets = _parse_partition_numbers(name, text, _OFFSETS_EXAMPLE)
    if any(not EARLIEST <= offset <= LONG_MAX for offset in offsets.values()):
        raise ConfigError(f"option {name} is {text}; an offset is not negative, -1 is latest, -2 earliest")
    return offsets


def parse_partition_times(name: str, text: str) -> dict[TopicPartition, int]:
    times = _parse_partition_numbers(name, text, _TIMES_EXAMPLE)
    if any(not 0 <= time <= LONG_MAX for time in times.values()):
        raise ConfigError(f"option {name} is {text}; a timestamp is in milliseconds since 1970")
    return times


def parse_partitions(name: str, text: str) -> frozenset[TopicPartition]:
    try:
        found = frozenset(
            TopicPartition(topic, _parse_partition(number))
            for topic, numbers in _parse_document(text).items()
            for number in numbers
        )
    except (ValueError, TypeError, AttributeError):
        found = frozenset()
    if not found:
        raise ConfigError(f"option {name} is {text!r}; give JSON such as {_ASSIGN_EXAMPLE}")
    return found


def _parse_partition_numbers(name: str, text: str, example: str) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, _parse_partition(number)): _check_whole(value)
            for topic, values in _parse_document(text).items()
            for number, value in values.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"option {name} is {text!r}; give JSON such as {example}") from None


def _parse_document(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return document


def _parse_partition(value: object) -> int:
    number = _parse_digits(value) if isinstance(value, str) else _check_whole(value)
    if not 0 <= number <= INT_MAX:
        raise ValueError("no number of a partition")
    return number


def _check_whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a whole number")
    return value
