"""DescribeConfigs: api key 32, versions 1 to 4, flexible from 4.

Lists the configuration of topics and brokers, with the source of each value.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int8, Int16, Int32, String, Struct, versions


class DescribeConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = []


class DescribeConfigsRequest(Struct):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, versions(3)] = False


class DescribeConfigsSynonym(Struct):
    name: String = ""
    value: String | None = None
    source: Int8 = 0


class DescribeConfigsResourceResult(Struct):
    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[Int8, versions(3)] = 0
    documentation: Annotated[String | None, versions(3)] = None


class DescribeConfigsResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Struct):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []


DESCRIBE_CONFIGS = Api(
    key=32,
    versions=(1, 4),
    flexible=4,
    request=DescribeConfigsRequest,
    response=DescribeConfigsResponse,
)
