"""aiokafka's suite would start a container; here its fixtures are answered with the running broker.

Loaded by pytest inside the suite's interpreter, beside plugin.py.
"""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_IMAGE = "penstock/kafka:2.13_4.0.0"
"""Never pulled. The suite reads from its tag which versions of Kafka's features to expect."""


def _broker() -> SimpleNamespace:
    host, port = os.environ["PENSTOCK_COMPAT_KAFKA"].rsplit(":", 1)
    tls_port = int(os.environ["PENSTOCK_COMPAT_TLS"].rsplit(":", 1)[1])
    nobody_listens = 1
    return SimpleNamespace(
        host=host,
        port=int(port),
        ssl_port=tls_port,
        sasl_plain_port=nobody_listens,
        sasl_ssl_port=nobody_listens,
        container=None,
        hosts=[f"{host}:{port}"],
    )


_ANSWERS: dict[str, Callable[[], object]] = {
    "docker": lambda: None,
    "kafka_image": lambda: _IMAGE,
    "ssl_folder": lambda: Path(os.environ["PENSTOCK_COMPAT_CERTIFICATES"]),
    "kafka_server": _broker,
    "acl_manager": lambda: None,
    "kafka_config": lambda: None,
    "kerberos_utils": lambda: None,
}


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> object | None:
    answer = _ANSWERS.get(fixturedef.argname)
    if answer is None:
        return None
    result = answer()
    fixturedef.cached_result = (result, fixturedef.cache_key(request), None)
    # A hook that returns None lets the next one, which would start the container, have its turn.
    return result if result is not None else fixturedef


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.docker_image = _IMAGE
