"""Target replicas, parsed from options or from a file. Sends no requests.

The file has the form of Kafka's reassignment tool:

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from penstock.limits import INT_MAX
from penstock.types import TopicPartition

FORM: Final = '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}'

Targets = dict[TopicPartition, list[int]]


def parse_brokers(text: str) -> list[int]:
    """Parse broker ids such as 1,2,3; raise ValueError with the problem."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit()) or int(part[:12]) > INT_MAX:
            raise ValueError(f"{part!r} is not the id of a broker: give numbers, as in 1,2,3")
    brokers = [int(part) for part in parts]
    if len(set(brokers)) != len(brokers):
        raise ValueError("a broker is named twice")
    return brokers


def spread(topic: str, partitions: Sequence[int], brokers: Sequence[int]) -> Targets:
    """Assign a replica of each partition to all brokers, with the preferred leader rotating."""
    return {
        TopicPartition(topic, number): [*brokers[place:], *brokers[:place]]
        for number in partitions
        for place in (number % len(brokers),)
    }


def read_plan(text: str) -> Targets:
    """Parse a plan; raise ValueError with the problem."""
    try:
        content = json.loads(text)
    except ValueError as problem:
        raise ValueError(f"it is no JSON ({problem}); a plan looks like {FORM}") from None
    entries = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"it has no list of partitions; a plan looks like {FORM}")
    targets: Targets = {}
    for number, entry in enumerate(entries):
        if not _is_entry(entry):
            raise ValueError(f"entry {number} is not as it should be; a plan looks like {FORM}")
        name = TopicPartition(entry["topic"], entry["partition"])
        if name in targets:
            raise ValueError(f"partition {name.partition} of topic {name.topic} is named twice")
        targets[name] = entry["replicas"]
    return targets


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("topic"), str):
        return False
    replicas = entry.get("replicas")
    return (
        isinstance(replicas, list)
        and bool(replicas)
        and all(_is_id(node) for node in (*replicas, entry.get("partition")))
    )


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= INT_MAX
