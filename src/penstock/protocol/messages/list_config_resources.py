"""ListConfigResources: api key 74, versions 0 to 1, flexible throughout.

Lists the resources that have a configuration of their own.

Versions
    0   client metrics only
    1   resource types
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int8, Int16, Int32, String, Struct, versions


class ListConfigResourcesRequest(Struct):
    resource_types: Annotated[list[Int8], versions(1)] = []


class ListedConfigResource(Struct):
    resource_name: String = ""
    resource_type: Annotated[Int8, versions(1)] = 16


class ListConfigResourcesResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ListedConfigResource] = []


LIST_CONFIG_RESOURCES = Api(
    key=74,
    versions=(0, 1),
    flexible=0,
    request=ListConfigResourcesRequest,
    response=ListConfigResourcesResponse,
)
