"""Commands about a group reach the broker that coordinates it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.group.client import coordinator_of
from penstock.config.listeners import Address
from penstock.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse

FIRST, SECOND = Address("one", 9092), Address("two", 9092)


class Connected:
    def __init__(self, address: Address, coordinator: Address) -> None:
        self.address = address
        self._coordinator = coordinator

    def ask(self, api: Any, message: Any) -> FindCoordinatorResponse:
        host, port = self._coordinator
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key="billing", node_id=2, host=host, port=port)]
        )


class Connector:
    """Two bootstrap addresses; without an address the first one accepts."""

    addresses = (FIRST, SECOND)
    timeout_s = 1.0

    def __init__(self, coordinator: Address) -> None:
        self._coordinator = coordinator
        self.connected: list[Address] = []

    @contextmanager
    def client(self, address: Address | None = None) -> Iterator[Connected]:
        self.connected.append(address or FIRST)
        yield Connected(self.connected[-1], self._coordinator)


@pytest.mark.parametrize(("coordinator", "connected"), [(FIRST, [FIRST]), (SECOND, [FIRST, SECOND])])
def test_a_group_is_asked_of_its_coordinator_among_several_bootstrap_addresses(
    coordinator: Address, connected: list[Address]
) -> None:
    connector = Connector(coordinator)
    with coordinator_of(cast("BrokerConnector", connector), "billing"):
        assert connector.connected == connected
