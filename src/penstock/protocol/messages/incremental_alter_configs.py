"""IncrementalAlterConfigs: api key 44, versions 0 to 1, flexible from 1.

Sets, deletes, appends to or subtracts from single configuration values.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Bool, Int8, Int16, Int32, String, Struct


class AlterableConfig(Struct):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = None


class AlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Struct):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(Struct):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


INCREMENTAL_ALTER_CONFIGS = Api(
    key=44,
    versions=(0, 1),
    flexible=1,
    request=IncrementalAlterConfigsRequest,
    response=IncrementalAlterConfigsResponse,
)
