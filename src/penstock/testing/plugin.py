"""Fixtures for pytest, loaded in every test run of an environment that has Penstock installed.

Rule 1: loading this module costs test runs without these fixtures nothing: it imports no more than pytest has
        imported already.
"""

from collections.abc import Iterator

import pytest

from penstock.testing.in_process import Broker, broker


@pytest.fixture
def penstock_broker() -> Iterator[Broker]:
    """A broker for one test, empty at its start."""
    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def penstock_session_broker() -> Iterator[Broker]:
    """One broker for all tests of the run: faster, but the tests share its topics."""
    with broker() as running:
        yield running
