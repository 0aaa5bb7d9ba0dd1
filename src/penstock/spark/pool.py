"""Cluster clients that a process keeps, so that the next micro-batch finds its connections open.

A client serves one caller at a time: it is lent out and comes back. Threads that want one with the
same settings at the same time get one each.

Rule 1: a child process never uses what its parent opened: after a fork it begins with nothing.
Rule 2: no more are kept than COUNT_KEPT_MAX for the same settings; what is kept is closed at exit.
Rule 3: nothing is promised of the connections. A client looks at each before it uses it again.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final, NamedTuple

from penstock.config.listeners import Address
from penstock.host.tls import ClientTls
from penstock.wire.cluster_client import TIMEOUT_S, ClusterClient

IDLE_CLIENTS_MAX: Final = 4


class ClientSettings(NamedTuple):
    """All that a client is made of: equal settings share clients. May be sent to executors."""

    bootstrap: tuple[Address, ...]
    client_id: str = "penstock-spark"
    tls: ClientTls | None = None
    sasl_mechanism: str | None = None
    timeout_s: float = TIMEOUT_S

    def connect(self) -> ClusterClient:
        """WireError if no client can be made of them."""
        return ClusterClient(
            self.bootstrap,
            client_id=self.client_id,
            tls=self.tls,
            sasl_mechanism=self.sasl_mechanism,
            timeout_s=self.timeout_s,
        )


class Pool:
    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: dict[ClientSettings, list[ClusterClient]] = {}
        self._process = os.getpid()

    @contextmanager
    def borrowed_client(self, settings: ClientSettings) -> Iterator[ClusterClient]:
        client = self._take(settings)
        process = self._process
        try:
            yield client
        finally:
            self._return(settings, client, is_ours=process == self._process)

    def _take(self, settings: ClientSettings) -> ClusterClient:
        with self._lock:
            idle = self._idle.get(settings)
            if idle:
                return idle.pop()
        return settings.connect()

    def _return(self, settings: ClientSettings, client: ClusterClient, *, is_ours: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(settings, [])
            if is_ours and len(idle) < IDLE_CLIENTS_MAX:
                idle.append(client)
                return
        client.close()

    def close(self) -> None:
        """Of those that are lent out, each is closed or kept when it comes back."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for clients in idle.values():
            for client in clients:
                client.close()

    def reset_after_fork(self) -> None:
        """In a child: closes its copies of the parent's sockets, which the parent does not notice."""
        self._lock = Lock()  # another thread of the parent may have held the one before
        self._process = os.getpid()
        self.close()


_pool: Final = Pool()
borrowed_client: Final = _pool.borrowed_client
"""`with borrowed(settings) as client:` lends the client of this process."""
atexit.register(_pool.close)
os.register_at_fork(after_in_child=_pool.reset_after_fork)
