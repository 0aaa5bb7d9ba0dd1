"""AlterConfigs: api key 33, versions 0 to 2, flexible from 2.

Replaces the whole configuration of a resource. IncrementalAlterConfigs is its successor.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Bool, Int8, Int16, Int32, String, Struct


class AlterableConfig(Struct):
    name: String = ""
    value: String | None = None


class AlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Struct):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Struct):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


ALTER_CONFIGS = Api(
    key=33,
    versions=(0, 2),
    flexible=2,
    request=AlterConfigsRequest,
    response=AlterConfigsResponse,
)
