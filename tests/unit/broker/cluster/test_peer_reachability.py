"""What a failed probe of another broker proves."""

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.cluster.peer_reachability import PeerReachability
from penstock.broker.replication.replica_fetchers import InterBrokerLink
from penstock.config.listeners import Address
from penstock.observability.logs import NullLog


def reachability_of_broker_1() -> PeerReachability:
    cluster: Any = SimpleNamespace(config=SimpleNamespace(node=SimpleNamespace(node_id=1)))
    fetchers: Any = SimpleNamespace(
        address_of=lambda broker_id: Address("127.0.0.1", 9092), link=InterBrokerLink("PLAINTEXT")
    )
    membership: Any = None
    return PeerReachability(cluster, membership, fetchers, NullLog())


@pytest.mark.parametrize(
    ("number", "answers"),
    [
        (errno.ECONNREFUSED, False),
        (errno.EHOSTUNREACH, False),
        (errno.ETIMEDOUT, False),
        (errno.EMFILE, None),
    ],
    ids=errno.errorcode.get,
)
async def test_a_probe_that_this_broker_cannot_send_proves_nothing(
    number: int, answers: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, "no connection")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    assert await reachability_of_broker_1().answers(2) is answers
