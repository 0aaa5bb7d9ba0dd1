"""UpdateFeatures: api key 57, versions 0 to 2.

Raises the level of the cluster, which determines the formats that its brokers write.

Behaviour
    All updates or none. A level that some registered broker does not support, an unknown feature and a
    downgrade are INVALID_UPDATE_VERSION, with a sentence that names the brokers.
Versions
    1  the type of change is named; validate_only checks a change without making it
    2  there is no result for each feature
Differs from Kafka
    The feature is penstock.version. metadata.version always has the level of the release.
    There is no downgrade.
"""

from functools import partial

from penstock.broker.apis.api_versions import METADATA_LEVEL_MAX, METADATA_VERSION
from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.controller.decision import NOTHING_TO_DO, Decision
from penstock.controller.features import upgrade
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.levels import FEATURE, NEWEST
from penstock.protocol.messages.update_features import (
    UPDATE_FEATURES,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.security.access import Operation

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
RESULTS_UNTIL = 1


class UpdateFeatures:
    api = ServedApi(UPDATE_FEATURES, Operation.ALTER, ON_CLUSTER, cluster_name)

    def __init__(self, cluster: MetadataService, newest: int = NEWEST) -> None:
        """`newest` is the last level that this release supports."""
        self._cluster = cluster
        self._newest = newest

    async def __call__(
        self, request: UpdateFeaturesRequest, context: RequestContext
    ) -> UpdateFeaturesResponse:
        if context.cluster_denied:
            return UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        metadata_change = MetadataChange(self._cluster)
        try:
            newest = self._newest
            decides = [partial(_decided, update=update, newest=newest) for update in request.feature_updates]
            for outcome in await metadata_change.validate_each(
                decides
            ):  # all are validated before one is made
                if isinstance(outcome, ApiError):
                    raise outcome
            if not request.validate_only:
                for decide in decides:
                    await metadata_change.commit(decide)
        except ApiError as problem:
            return UpdateFeaturesResponse(error_code=problem.code, error_message=problem.detail or None)
        has_results = context.version <= RESULTS_UNTIL
        named = request.feature_updates if has_results else ()
        return UpdateFeaturesResponse(results=[UpdatableFeatureResult(update.feature) for update in named])


def _decided(image: ClusterImage, update: FeatureUpdateKey, newest: int) -> Decision:
    name, level = update.feature, update.max_version_level
    if update.upgrade_type in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"The level of {name} cannot be lowered.")
    if update.upgrade_type != UPGRADE:
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"{update.upgrade_type} is no kind of change.")
    if name == FEATURE and level >= 1:
        return upgrade(image, level, newest=newest)
    if name == METADATA_VERSION and level == METADATA_LEVEL_MAX:
        return NOTHING_TO_DO
    if name == METADATA_VERSION:
        detail = f"{name} is {METADATA_LEVEL_MAX} in this release and cannot be changed; {FEATURE} can."
    elif name == FEATURE:
        detail = f"{level} is no level of {name}: levels begin with 1 and cannot be lowered."
    else:
        detail = f"There is no feature {name}. The one that can be changed is {FEATURE}."
    raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, detail)
