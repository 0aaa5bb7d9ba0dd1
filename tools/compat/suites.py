"""The projects whose suites are supported, and the broker that each of them expects.

A project is recognised by the package that it builds. Only the tests are copied from its folder, so that they
run against the released client and not against the source beside them.

Rule 1: broker settings follow those that the project's own fixtures give Kafka.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.compat.broker import RunningBroker

_PYTEST = ("pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock==3.15.1", "pytest-timeout==2.4.0")


class SuiteError(Exception):
    """The folder holds no supported project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    name: str
    """Name of the package; also of the list and of the environment's folder."""
    requirements: tuple[str, ...]
    copied: tuple[str, ...]
    tests: tuple[str, ...]
    """Folders or files for pytest, relative to the copy."""
    settings: Mapping[str, str]
    """Settings of the broker."""
    broker_fixture: str = ""
    """If set, only tests that use this fixture use a broker."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; {kafka} is replaced by the broker's host:port, {home} by the working folder."""

    def environment(self, broker: RunningBroker, home: Path) -> dict[str, str]:
        values = {"kafka": broker.kafka, "home": str(home)}
        return {name: text.format(**values) for name, text in self.variables.items()}


CONFLUENT_KAFKA = Suite(
    name="confluent-kafka",
    # Its fixtures import the registry's client and a starter of clusters, whether used or not.
    requirements=(
        *_PYTEST,
        "confluent-kafka==2.16.1",
        *("trivup", "attrs", "authlib", "avro", "cachetools", "fastavro", "googleapis-common-protos"),
        *("httpx", "jsonschema", "orjson", "protobuf", "pyrsistent", "pyyaml", "requests"),
    ),
    copied=("tests", "pyproject.toml"),
    tests=("tests/integration",),
    # Kafka from 4.1 on keeps the latter for the whole cluster, and the tests find it on each topic.
    settings={"num.partitions": "4", "min.insync.replicas": "1"},
    variables={"BROKERS": "{kafka}"},
)

KAFKA_PYTHON = Suite(
    name="kafka-python",
    requirements=(
        *_PYTEST,
        "kafka-python==3.0.12",
        *("crc32c", "lz4", "python-snappy", "xxhash", "zstandard"),
    ),
    copied=("test", "servers", "pyproject.toml"),
    tests=("test/integration",),
    # Its tests place replicas on broker 0; the rest is from the properties it gives Kafka.
    settings={
        "num.partitions": "4",
        "node.id": "0",
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "2",
    },
    variables={"KAFKA_URI": "kafka://{kafka}", "KAFKA_VERSION": "4.2.0", "KAFKA_ROOT": "{home}"},
)

AIOKAFKA = Suite(
    name="aiokafka",
    requirements=(*_PYTEST, "aiokafka==0.14.0", "cramjam==2.11.0", "async-timeout==5.0.1", "docker==7.1.0"),
    copied=("tests", "pyproject.toml"),
    tests=("tests",),
    # One of its tests asks broker 0 by its number; the delay is what Kafka's distribution comes with.
    settings={"num.partitions": "2", "node.id": "0", "group.initial.rebalance.delay.ms": "0"},
    broker_fixture="kafka_server",
)

SUITES: Final = (CONFLUENT_KAFKA, KAFKA_PYTHON, AIOKAFKA)


def recognise(folder: Path) -> Suite:
    """The suite of the project in this folder."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
        raise SuiteError(f"{folder} holds no Python project: {problem!r}") from problem
    for suite in SUITES:
        if suite.name == project:
            return suite
    known = ", ".join(suite.name for suite in SUITES)
    raise SuiteError(f"{folder} holds {project}, which is not one of {known}")
