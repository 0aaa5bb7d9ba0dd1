"""Fixtures for pytest, loaded in every run of an environment that has Penstock installed.

Rule 1: loading this costs nothing to those who do not use it: no more is imported than pytest has
        imported already.
"""

from collections.abc import Iterator

import pytest

from penstock.testing.in_process import Broker, broker


@pytest.fixture
def penstock_broker() -> Iterator[Broker]:
    """A broker of the test's own, empty at its start."""
    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def penstock_session_broker() -> Iterator[Broker]:
    """One broker for all tests of the run: quicker, but they see each other's topics."""
    with broker() as running:
        yield running
