"""`penstock cluster features`: shows the level of the cluster's formats, and raises it after an upgrade."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.cluster.app import cluster_app
from penstock.cli.command import client_command, examples
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerClient, BrokerConnector

FEATURES_EXAMPLES = examples(
    ("What the cluster writes, and what the broker that is asked knows", "penstock cluster features"),
    ("When every broker runs the new release, and stays with it", "penstock cluster features --upgrade"),
)


@cluster_app.command(
    "features", help="Show the level of the cluster's formats, or raise it.", epilog=FEATURES_EXAMPLES
)
@client_command
def features(
    broker: "BrokerConnector",
    is_upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Raise the level to the newest. It cannot be lowered again.")
    ] = False,
) -> None:
    """Show or raise the level.

    Until the level is raised, brokers of the previous release can join, and a broker can be downgraded to it.
    """
    from penstock.metadata.levels import FEATURE

    with broker.client() as client:
        level, newest = _level(client)
        if is_upgrade:
            _upgrade(client, newest)
            level, newest = _level(client)
    more = "the newest" if level == newest else f"{newest} is known too: --upgrade raises it for all brokers"
    typer.echo(f"{FEATURE}: level {level}, {more}")


def _level(client: "BrokerClient") -> tuple[int, int]:
    """Return the cluster's level, and the newest level that this broker supports."""
    from penstock.metadata.levels import FEATURE
    from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest

    answer = client.ask(API_VERSIONS, ApiVersionsRequest("penstock-cli", "1"))
    reached = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    known = {feature.name: feature.max_version for feature in answer.supported_features}
    if FEATURE not in reached or FEATURE not in known:
        raise CommandFailed(f"This broker does not report {FEATURE}: it is not a Penstock broker.")
    return reached[FEATURE], known[FEATURE]


def _upgrade(client: "BrokerClient", level: int) -> None:
    from penstock.metadata.levels import FEATURE
    from penstock.protocol.messages.update_features import (
        UPDATE_FEATURES,
        FeatureUpdateKey,
        UpdateFeaturesRequest,
    )
    from penstock.wire.retry_policy import error_name

    wanted = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(FEATURE, level)])
    answer = client.ask(UPDATE_FEATURES, wanted)
    if answer.error_code:
        raise CommandFailed(answer.error_message or f"{error_name(answer.error_code)}.")
