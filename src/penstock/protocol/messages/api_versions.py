"""ApiVersions: api key 18, versions 0 to 4, flexible from 3.

Returns the APIs and versions that this broker supports. The first request on every connection.

Versions
    4   supported features may start at level 0
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int16, Int32, Int64, String, Struct, tagged, versions


class ApiVersionsRequest(Struct):
    client_software_name: Annotated[String, versions(3)] = ""
    client_software_version: Annotated[String, versions(3)] = ""


class ApiVersion(Struct):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Struct):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Struct):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Struct):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, versions(1)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], versions(3), tagged(0)] = []
    finalized_features_epoch: Annotated[Int64, versions(3), tagged(1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], versions(3), tagged(2)] = []
    zk_migration_ready: Annotated[Bool, versions(3), tagged(3)] = False


API_VERSIONS = Api(
    key=18,
    versions=(0, 4),
    flexible=3,
    request=ApiVersionsRequest,
    response=ApiVersionsResponse,
)
