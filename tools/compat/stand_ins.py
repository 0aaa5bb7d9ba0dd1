"""Replacements for fixtures with which some suites start a Kafka from a container or a distribution.

The replacements return the broker that is already running. pytest loads them in a suite's environment, beside
plugin.py.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.fixtures import SubRequest

_IMAGE = "penstock/kafka:2.13_4.2.0"
"""Image name; never pulled. aiokafka's suite reads the expected Kafka version from its tag."""
_NOBODY_LISTENS_AT = 1


def _certificates() -> Path:
    return Path(os.environ["PENSTOCK_COMPAT_CERTIFICATES"])


def _address(variable: str) -> tuple[str, int]:
    host, port = os.environ[variable].rsplit(":", 1)
    return host, int(port)


def _container() -> SimpleNamespace:
    host, port = _address("PENSTOCK_COMPAT_KAFKA")
    return SimpleNamespace(
        host=host,
        port=port,
        ssl_port=_address("PENSTOCK_COMPAT_TLS")[1],
        sasl_plain_port=_NOBODY_LISTENS_AT,
        sasl_ssl_port=_NOBODY_LISTENS_AT,
        container=None,
        hosts=[f"{host}:{port}"],
    )


def _distribution_with_tls() -> SimpleNamespace:
    return SimpleNamespace(ssl_dir=str(_certificates()), port=_address("PENSTOCK_COMPAT_TLS")[1])


_ANSWERS: dict[str, Callable[[], object]] = {
    # aiokafka
    "docker": lambda: None,
    "kafka_image": lambda: _IMAGE,
    "ssl_folder": _certificates,
    "kafka_server": _container,
    "acl_manager": lambda: None,
    "kafka_config": lambda: None,
    "kerberos_utils": lambda: None,
    # kafka-python
    "ssl_kafka": _distribution_with_tls,
}


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> object | None:
    answer = _ANSWERS.get(fixturedef.argname)
    if answer is None:
        return None
    result = answer()
    fixturedef.cached_result = (result, fixturedef.cache_key(request), None)
    # A hook that returns None lets the next one have its turn, which would start a Kafka.
    return fixturedef if result is None else result


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "docker_image"):
        config.option.docker_image = _IMAGE
