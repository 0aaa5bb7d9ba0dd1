"""UnregisterBroker: api key 64, version 0, flexible.

Removes the registration of a broker that will not come back.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, String, Struct


class UnregisterBrokerRequest(Struct):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


UNREGISTER_BROKER = Api(
    key=64,
    versions=(0, 0),
    flexible=0,
    request=UnregisterBrokerRequest,
    response=UnregisterBrokerResponse,
)
