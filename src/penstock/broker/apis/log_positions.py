"""LogPositions: api key 20001, version 0.

Returns to another broker the start and end of the logs that this broker leads, and the age of the first
record that a group has not consumed. Penstock's own API: ApiVersions does not list it, and Kafka has no such
request.

Behaviour
    Allowed to clients that may act as a broker (CLUSTER_ACTION on the cluster), as replication is.
    A partition that this broker does not lead, or whose end it does not know yet, is NOT_LEADER_OR_FOLLOWER;
    one that it cannot read is KAFKA_STORAGE_ERROR.
    Timestamps are read from the log outside the event loop, and cached for a minute.
    More partitions than one request may have: POLICY_VIOLATION.
"""

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.groups.log_positions import LogPositionLookup
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.errors import ErrorCode
from penstock.limits import LOG_POSITIONS_PER_CHUNK, PEER_POSITIONS_AT_ONCE
from penstock.protocol.messages.log_positions import LOG_POSITIONS, LogPositionsRequest, LogPositionsResponse
from penstock.security.access import Operation


class LogPositions:
    api = ServedApi(LOG_POSITIONS, Operation.CLUSTER_ACTION, ON_CLUSTER, cluster_name, is_advertised=False)

    def __init__(self, positions: LogPositionLookup) -> None:
        self._positions = positions
        self._turns = asyncio.Semaphore(PEER_POSITIONS_AT_ONCE)

    async def __call__(self, request: LogPositionsRequest, context: RequestContext) -> LogPositionsResponse:
        if context.cluster_denied:
            return LogPositionsResponse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if len(request.partitions) > LOG_POSITIONS_PER_CHUNK:
            return LogPositionsResponse(ErrorCode.POLICY_VIOLATION, "too many partitions for one question")
        async with self._turns:
            return LogPositionsResponse(partitions=await self._positions.local_positions(request.partitions))
