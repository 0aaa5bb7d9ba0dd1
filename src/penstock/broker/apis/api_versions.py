"""ApiVersions: api key 18, versions 0 to 4.

Returns the APIs and versions that this broker serves. The first request on every connection.

Behaviour
    The list comes from the router. A client whose software name Kafka would not accept gets INVALID_REQUEST
    and no list. An unknown version of this API still gets a reply: the code that reads the frame sends
    `unsupported_version_reply` in the layout of version 0 (KIP-511).
Versions
    3  the client names its software; features are listed
    4  features whose lowest level is 0 may be listed; there is none here
Differs from Kafka
    Of Kafka's features only metadata.version is listed: the others stand for APIs that are not offered.
    penstock.version, the level of the cluster, is listed beside it.
"""

import re
from collections.abc import Callable

from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, never_waits, no_names
from penstock.errors import ErrorCode
from penstock.metadata import levels
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from penstock.security.access import Operation

Supported = list[tuple[int, int, int]]
"""(api key, oldest version, newest version) of every API that is routed."""

METADATA_VERSION = "metadata.version"
METADATA_LEVEL_MIN = 7
METADATA_LEVEL_MAX = 29
"""Kafka 4.2's level: tools infer the broker's release from it."""
SOFTWARE_NAMED_FROM = 3

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersions:
    api = ServedApi(API_VERSIONS, Operation.DESCRIBE, ON_CLUSTER, no_names, weigh=never_waits)

    def __init__(self, supported: Callable[[], Supported], image: Callable[[], ClusterImage]) -> None:
        self._supported = supported
        self._image = image

    def __call__(self, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
        if context.version >= SOFTWARE_NAMED_FROM and not _is_named_well(request):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        image = self._image()
        levels_now = {METADATA_VERSION: METADATA_LEVEL_MAX, levels.FEATURE: image.level}
        return ApiVersionsResponse(
            api_keys=[ApiVersion(*entry) for entry in self._supported()],
            supported_features=[
                SupportedFeatureKey(METADATA_VERSION, METADATA_LEVEL_MIN, METADATA_LEVEL_MAX),
                SupportedFeatureKey(levels.FEATURE, levels.OLDEST, levels.NEWEST),
            ],
            finalized_features_epoch=image.features.revision,
            finalized_features=[
                FinalizedFeatureKey(name, max_version_level=level, min_version_level=level)
                for name, level in levels_now.items()
            ],
        )


def unsupported_version_reply(supported: Supported) -> ApiVersionsResponse:
    """The reply to an unknown version of ApiVersions: the versions of ApiVersions that are supported."""
    own = [ApiVersion(*entry) for entry in supported if entry[0] == API_VERSIONS.key]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


def _is_named_well(request: ApiVersionsRequest) -> bool:
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    )
