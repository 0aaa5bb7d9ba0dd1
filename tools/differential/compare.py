"""Comparison of two responses.

Lists whose order carries no meaning become mappings from a label (the topic's name, the partition's
index ...) to the element, so that a difference has a readable path, and brokers may use any
order. Lists in `ORDERED` are compared element by element.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

ABSENT = "(absent)"
ORDERED = frozenset({"synonyms", "record_errors", "records", "ordered"})
SETS = frozenset({"subscribed_topic_names"})
"""Lists of texts whose order carries no meaning."""

_LABELS = (
    "key",
    "name",
    "topic",
    "topic_id",
    "group_id",
    "member_id",
    "group_instance_id",
    "index",
    "partition_index",
    "partition",
    "api_key",
    "node_id",
    "broker_id",
    "log_dir",
    "producer_id",
)


@dataclass(frozen=True)
class Difference:
    """One field that differs. The path is made of field names and labels, joined by dots."""

    path: str
    kafka: Plain
    penstock: Plain


def differences(kafka: Plain, penstock: Plain, path: str = "") -> Iterator[Difference]:
    """Every field in which the two responses differ, in the order of Kafka's response."""
    if isinstance(kafka, dict) and isinstance(penstock, dict):
        for key in (*kafka, *(key for key in penstock if key not in kafka)):
            inner = f"{path}.{key}" if path else key
            yield from differences(kafka.get(key, ABSENT), penstock.get(key, ABSENT), inner)
    elif isinstance(kafka, list) and isinstance(penstock, list):
        for index in range(max(len(kafka), len(penstock))):
            yield from differences(_at(kafka, index), _at(penstock, index), f"{path}.{index}")
    elif type(kafka) is not type(penstock) or kafka != penstock:
        yield Difference(path, kafka, penstock)


def labelled(value: Plain, field: str = "") -> Plain:
    """The response with unordered lists of structs turned into mappings by label."""
    if isinstance(value, dict):
        return {key: labelled(inner, key) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    if field in SETS:
        return [*sorted(str(element) for element in value)]
    structs = [element for element in value if isinstance(element, dict)]
    if field in ORDERED or len(structs) != len(value):
        return [labelled(element) for element in value]
    return _by_label(structs)


def _by_label(structs: list[dict[str, Plain]]) -> dict[str, Plain]:
    found: dict[str, Plain] = {}
    for struct in structs:
        label = _label(struct)
        occurrence = 1
        unique = label
        while unique in found:
            occurrence += 1
            unique = f"{label}#{occurrence}"
        found[unique] = labelled(struct)
    return dict(sorted(found.items()))


def _label(struct: Mapping[str, Plain]) -> str:
    if "resource_name" in struct:
        return f"{struct.get('resource_type', '')}:{struct['resource_name']}"
    return next((str(struct[name]) for name in _LABELS if struct.get(name) is not None), "element")


def _at(values: list[Plain], index: int) -> Plain:
    return values[index] if index < len(values) else ABSENT
