"""UpdateFeatures: api key 57, versions 0 to 2, flexible.

Raises the level of a feature of the cluster.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int8, Int16, Int32, String, Struct, versions


class FeatureUpdateKey(Struct):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, versions(0, 0)] = False
    upgrade_type: Annotated[Int8, versions(1)] = 1


class UpdateFeaturesRequest(Struct):
    timeout_ms: Int32 = 60_000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, versions(1)] = False


class UpdatableFeatureResult(Struct):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class UpdateFeaturesResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Annotated[list[UpdatableFeatureResult], versions(0, 1)] = []


UPDATE_FEATURES = Api(
    key=57,
    versions=(0, 2),
    flexible=0,
    request=UpdateFeaturesRequest,
    response=UpdateFeaturesResponse,
)
