"""ApiVersions: the router's list, features, and what a client with a bad name is told."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.api_versions import ApiVersions, unsupported_version_reply
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import ClusterImage, Features
from penstock.protocol.frames import decode_response, encode_response
from penstock.protocol.messages.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from tests.unit.broker.support import DENY_EVERYTHING, HandlerHarness, running_cluster

SUPPORTED = [(0, 0, 13), (3, 0, 13), (18, 0, 4)]
IMAGE = ClusterImage(cluster_id="c", features=Features({"penstock.version": 1}, revision=12))
HANDLER = ApiVersions(lambda: SUPPORTED, lambda: IMAGE)
LISTED = [ApiVersion(*entry) for entry in SUPPORTED]


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


@pytest.mark.parametrize("version", range(5))
async def test_what_is_routed_is_listed_in_every_version(harness: HandlerHarness, version: int) -> None:
    request = ApiVersionsRequest("client", "1.0")
    reply = await harness.ask(API_VERSIONS, HANDLER, request, version, authorizer=DENY_EVERYTHING)

    assert (reply.error_code, reply.api_keys) == (ErrorCode.NONE, LISTED)


async def test_the_metadata_version_and_the_level_of_the_cluster_are_features(
    harness: HandlerHarness,
) -> None:
    reply = await harness.ask(API_VERSIONS, HANDLER, ApiVersionsRequest("client", "1.0"))

    assert reply.supported_features == [
        SupportedFeatureKey("metadata.version", 7, 29),
        SupportedFeatureKey("penstock.version", 1, 1),
    ]
    assert reply.finalized_features == [
        FinalizedFeatureKey("metadata.version", 29, 29),
        FinalizedFeatureKey("penstock.version", 1, 1),
    ]
    assert reply.finalized_features_epoch == 12


@pytest.mark.parametrize(
    ("name", "release"),
    [("-a", "1"), ("a-", "1"), ("", "1"), ("a", ""), ("a b", "1"), ("a", "1.0."), ("é", "1"), ("a\n", "1")],
)
async def test_software_that_is_named_badly_gets_no_list(
    harness: HandlerHarness, name: str, release: str
) -> None:
    reply = await harness.ask(API_VERSIONS, HANDLER, ApiVersionsRequest(name, release), 3)

    assert reply == ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("name", "release"), [("a", "1"), ("apache-kafka-java", "4.2.0"), ("A.b-9", "0-rc.1")]
)
async def test_software_that_is_named_well_gets_the_list(
    harness: HandlerHarness, name: str, release: str
) -> None:
    reply = await harness.ask(API_VERSIONS, HANDLER, ApiVersionsRequest(name, release), 3)

    assert reply.api_keys == LISTED


async def test_versions_without_a_software_name_do_not_ask_for_one(harness: HandlerHarness) -> None:
    assert (await harness.ask(API_VERSIONS, HANDLER, ApiVersionsRequest(), 2)).api_keys == LISTED


def test_an_unknown_version_is_told_which_there_are_in_the_oldest_layout() -> None:
    reply = unsupported_version_reply(SUPPORTED)

    frame = b"".join(encode_response(API_VERSIONS, 0, 7, reply))
    # Correlation id, error 35, one entry: key 18, versions 0 to 4; and nothing behind it.
    assert frame[4:].hex() == "00000007" + "0023" + "00000001" + "0012" + "0000" + "0004"
    assert decode_response(API_VERSIONS, 0, frame[4:])[1].error_code == ErrorCode.UNSUPPORTED_VERSION
