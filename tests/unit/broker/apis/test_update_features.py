"""UpdateFeatures: raising the level of the cluster, asking whether it could be, and every refusal."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.update_features import UpdateFeatures
from penstock.errors import ErrorCode
from penstock.metadata import levels
from penstock.protocol.messages.update_features import (
    UPDATE_FEATURES,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.unit.broker.support import DENY_EVERYTHING, HandlerHarness, running_cluster


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


async def update(
    harness: HandlerHarness, *updates: FeatureUpdateKey, version: int = 2
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(feature_updates=list(updates))
    return await harness.ask(UPDATE_FEATURES, UpdateFeatures(harness.cluster), request, version)


@pytest.mark.parametrize("version", range(3))
async def test_the_level_that_is_reached_is_no_change(harness: HandlerHarness, version: int) -> None:
    wanted = FeatureUpdateKey(levels.FEATURE, 1), FeatureUpdateKey("metadata.version", 29)
    reply = await update(harness, *wanted, version=version)
    assert (reply.error_code, reply.error_message) == (ErrorCode.NONE, None)
    named = [result.feature for result in reply.results]
    assert named == ([] if version == 2 else [levels.FEATURE, "metadata.version"])


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (FeatureUpdateKey(levels.FEATURE, 2), "knows 1 to 1"),
        (FeatureUpdateKey(levels.FEATURE, 0), "cannot be lowered"),
        (FeatureUpdateKey("metadata.version", 20), "cannot be changed"),
        (FeatureUpdateKey("group.version", 1), "no feature group.version"),
        (FeatureUpdateKey(levels.FEATURE, 1, upgrade_type=9), "9 is no kind of change"),
        (FeatureUpdateKey(levels.FEATURE, 1, upgrade_type=2), "cannot be lowered"),
        (FeatureUpdateKey(levels.FEATURE, 2, upgrade_type=3), "cannot be lowered"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_reason(
    harness: HandlerHarness, wanted: FeatureUpdateKey, words: str
) -> None:
    reply = await update(harness, FeatureUpdateKey(levels.FEATURE, 1), wanted)
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert reply.error_message is not None
    assert words in reply.error_message


async def test_a_level_that_brokers_lack_is_not_raised(harness: HandlerHarness) -> None:
    next_release = UpdateFeatures(harness.cluster, newest=2)
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(levels.FEATURE, 2)], validate_only=True)
    reply = await harness.ask(UPDATE_FEATURES, next_release, request)
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Upgrade these first" in (reply.error_message or "")
    assert harness.cluster.image.level == 1


async def test_whoever_may_not_alter_the_cluster_is_refused(harness: HandlerHarness) -> None:
    reply = await harness.ask(
        UPDATE_FEATURES, UpdateFeatures(harness.cluster), UpdateFeaturesRequest(), authorizer=DENY_EVERYTHING
    )
    assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
