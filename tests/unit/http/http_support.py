"""The pages about a cluster, served as a broker serves them."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.http.change_access import ChangeAccess, access_middleware
from penstock.http.cluster import ClusterPages
from penstock.http.errors import errors_as_json
from penstock.observability.logs import NullLog
from penstock.replication.partition import Partition

JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def client_of(
    cluster: MetadataService,
    *,
    host: str = "127.0.0.1",
    tokens: Path | None = None,
    replicas: Sequence[Partition] = (),
) -> AsyncIterator[Any]:
    """`host`: where the listener would be that the broker was told to open."""
    with closing(socket.create_server((host, 0))) as listening:
        access = ChangeAccess(listening, None if tokens is None else str(tokens), NullLog())
    app = web.Application(middlewares=[errors_as_json, access_middleware(access)])
    ClusterPages(cluster, replicas).add_to(app.router)
    async with TestClient(TestServer(app)) as client:
        yield client
