"""Clients that a process keeps: lent to one at a time, found again by the next."""

import pickle
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.config.listeners import Address
from penstock.host.tls import ClientTls
from penstock.spark.pool import IDLE_CLIENTS_MAX, ClientPool, ClientSettings
from penstock.wire.cluster_client import ClusterClient, WireError

HERE = ClientSettings((Address("127.0.0.1", 9092),))


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[ClusterClient]:
    """Clients in the order they were closed."""
    found: list[ClusterClient] = []
    monkeypatch.setattr(ClusterClient, "close", lambda client: found.append(client))
    return found


@pytest.fixture
def pool() -> Iterator[ClientPool]:
    made = ClientPool()
    yield made
    made.close()


def test_the_next_caller_finds_the_client_of_the_one_before(pool: ClientPool) -> None:
    with pool.borrowed_client(HERE) as first:
        pass
    with pool.borrowed_client(HERE._replace()) as second:
        assert second is first


def test_two_callers_never_share_a_client(pool: ClientPool) -> None:
    with pool.borrowed_client(HERE):
        pass
    with pool.borrowed_client(HERE) as first, pool.borrowed_client(HERE) as second:
        assert first is not second


@pytest.mark.parametrize(
    "other",
    [
        HERE._replace(bootstrap=(Address("127.0.0.1", 9093),)),
        HERE._replace(tls=ClientTls(ca="ca.pem")),
        HERE._replace(timeout_s=5.0),
    ],
)
def test_other_settings_mean_another_client(pool: ClientPool, other: ClientSettings) -> None:
    with pool.borrowed_client(HERE) as first:
        pass
    with pool.borrowed_client(other) as second:
        assert second is not first


def test_a_client_comes_back_after_a_failure(pool: ClientPool) -> None:
    with pytest.raises(ValueError, match="the caller's own"), pool.borrowed_client(HERE) as first:
        raise ValueError("the caller's own")
    with pool.borrowed_client(HERE) as second:
        assert second is first


def test_only_some_are_kept(pool: ClientPool, closed: list[ClusterClient]) -> None:
    with ExitStack() as stack:
        lent = [stack.enter_context(pool.borrowed_client(HERE)) for _ in range(IDLE_CLIENTS_MAX + 2)]
        assert closed == []
    assert closed == lent[1::-1], "the last to come back found no room"


def test_closing_closes_what_is_kept(pool: ClientPool, closed: list[ClusterClient]) -> None:
    with pool.borrowed_client(HERE) as client:
        pass
    pool.close()
    assert closed == [client]


def test_a_child_begins_with_nothing(
    pool: ClientPool, closed: list[ClusterClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool.borrowed_client(HERE) as kept:
        pass
    with pool.borrowed_client(HERE._replace(timeout_s=1.0)) as lent:
        monkeypatch.setattr("os.getpid", lambda: -1)
        pool.reset_after_fork()
        assert closed == [kept]
    assert closed == [kept, lent], "what was lent before the fork is not the child's to keep"


def test_settings_travel_to_executors() -> None:
    settings = HERE._replace(tls=ClientTls(ca="ca.pem", key_password="secret"))

    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "secret" not in repr(settings)


def test_settings_that_cannot_be_used_are_refused(pool: ClientPool) -> None:
    with pytest.raises(WireError, match="SASL"), pool.borrowed_client(HERE._replace(sasl_mechanism="PLAIN")):
        pass
