"""Cluster clients that a process keeps, so that the next micro-batch finds open connections.

A client serves one caller at a time: it is borrowed and returned. Threads that need clients with the same
settings at the same time get one each.

Rule 1: A child process never uses connections that its parent opened. After a fork it begins with none.
Rule 2: At most IDLE_CLIENTS_MAX clients are kept for the same settings. They are closed at exit.
Rule 3: A connection of a kept client may be broken. The client checks each before it uses it again.
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
    """The settings of a client. Callers with equal settings share clients. They can be sent to executors."""

    bootstrap: tuple[Address, ...]
    client_id: str = "penstock-spark"
    tls: ClientTls | None = None
    sasl_mechanism: str | None = None
    timeout_s: float = TIMEOUT_S

    def connect(self) -> ClusterClient:
        """Create a client. WireError if that fails."""
        return ClusterClient(
            self.bootstrap,
            client_id=self.client_id,
            tls=self.tls,
            sasl_mechanism=self.sasl_mechanism,
            timeout_s=self.timeout_s,
        )


class ClientPool:
    """Idle clients of this process, by their settings."""

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
            # A child process must not keep a client that its parent borrowed before the fork.
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
        """Close idle clients. A borrowed client is closed or kept when it is returned."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for clients in idle.values():
            for client in clients:
                client.close()

    def reset_after_fork(self) -> None:
        """Close a child's copies of the parent's sockets. The parent's connections stay open."""
        self._lock = Lock()  # another thread of the parent may have held the old lock
        self._process = os.getpid()
        self.close()


_pool: Final = ClientPool()
borrowed_client: Final = _pool.borrowed_client
"""`with borrowed_client(settings) as client:` borrows a client from this process's pool."""
atexit.register(_pool.close)
os.register_at_fork(after_in_child=_pool.reset_after_fork)
