"""The values of options: from text to what it means, or to an error that shows a right one.

Pure: nothing here knows a cluster.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from penstock.errors import ConfigError
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
_OFFSETS_EXAMPLE: Final = '{"orders":{"0":23,"1":-1},"payments":{"0":-2}}'
_TIMES_EXAMPLE: Final = '{"orders":{"0":1700000000000,"1":1700000000000}}'
_ASSIGN_EXAMPLE: Final = '{"orders":[0,1],"payments":[2]}'

Choice = TypeVar("Choice")


def whole_number(name: str, text: str, *, least: int = 1) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"option {name} is {text!r}; give a whole number, at least {least}")
    return number


def yes_or_no(name: str, text: str) -> bool:
    return one_of(name, text, {"true": True, "false": False})


def one_of(name: str, text: str, choices: Mapping[str, Choice]) -> Choice:
    chosen = text.strip().lower()
    if chosen not in choices:
        raise ConfigError(f"option {name} is {text!r}; give one of {', '.join(choices)}")
    return choices[chosen]


def milliseconds(name: str, text: str) -> int:
    """As Spark reads times: 90s, 15m, 2h; a number alone is milliseconds."""
    number = text.strip().lower()
    unit = number.lstrip("0123456789")
    digits = number.removesuffix(unit) if unit else number
    if not digits or (unit and unit not in _UNITS_MS):
        raise ConfigError(f"option {name} is {text!r}; give a time such as 30s, 15m or 2h")
    return int(int(digits) * _UNITS_MS[unit or "ms"])


def partition_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    offsets = _partition_numbers(name, text, _OFFSETS_EXAMPLE)
    if any(offset < EARLIEST for offset in offsets.values()):
        raise ConfigError(f"option {name} is {text}; an offset is not negative, -1 is latest, -2 earliest")
    return offsets


def partition_times(name: str, text: str) -> dict[TopicPartition, int]:
    times = _partition_numbers(name, text, _TIMES_EXAMPLE)
    if any(time < 0 for time in times.values()):
        raise ConfigError(f"option {name} is {text}; a timestamp is in milliseconds since 1970")
    return times


def partitions(name: str, text: str) -> frozenset[TopicPartition]:
    try:
        found = frozenset(
            TopicPartition(topic, _partition(number))
            for topic, numbers in _document(text).items()
            for number in numbers
        )
    except (ValueError, TypeError, AttributeError):
        found = frozenset()
    if not found:
        raise ConfigError(f"option {name} is {text!r}; give JSON such as {_ASSIGN_EXAMPLE}")
    return found


def _partition_numbers(name: str, text: str, example: str) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, _partition(number)): _whole(value)
            for topic, values in _document(text).items()
            for number, value in values.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"option {name} is {text!r}; give JSON such as {example}") from None


def _document(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return document


def _partition(value: object) -> int:
    number = int(value) if isinstance(value, str) else _whole(value)
    if number < 0:
        raise ValueError("a partition is not negative")
    return number


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a whole number")
    return value
