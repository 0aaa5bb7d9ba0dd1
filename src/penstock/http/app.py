"""The HTTP application and its routes.

GET /health/live     200 while the process responds at all
GET /health/ready    200 when clients can be served; otherwise 503 with the reason
GET /metrics         metrics for Prometheus (metrics.py); /metrics/groups: those of all groups
GET /v1/groups       consumer groups and their lag (groups.py)
/v1/cluster          state of the cluster, draining and balancing (cluster.py)

One middleware authorizes changes for all routes (change_access.py).
"""

import socket

from aiohttp import web

from penstock.broker.broker import RunningBroker
from penstock.http.change_access import ChangeAccess, access_middleware
from penstock.http.cluster import ClusterPages
from penstock.http.errors import errors_as_json
from penstock.http.groups import GroupPages
from penstock.http.metrics import MetricsPage
from penstock.limits import HTTP_REQUEST_BYTES_MAX
from penstock.observability.logs import Log


async def start_serving(
    listening: socket.socket, broker: RunningBroker, log: Log, tokens_path: str | None
) -> web.AppRunner:
    """Serve requests on a listening socket until the runner is cleaned up."""
    access = ChangeAccess(listening, tokens_path, log)
    app = web.Application(
        client_max_size=HTTP_REQUEST_BYTES_MAX, middlewares=[errors_as_json, access_middleware(access)]
    )
    health = _Health(broker)
    app.router.add_get("/health/live", health.live)
    app.router.add_get("/health/ready", health.ready)
    MetricsPage(broker).add_to(app.router)
    GroupPages(broker.groups).add_to(app.router)
    ClusterPages(broker.cluster, broker.storage.partitions).add_to(app.router)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    return runner


class _Health:
    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker

    async def live(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def ready(self, request: web.Request) -> web.Response:
        reason = self._broker.not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)
