"""Lookups of offsets at the leaders of a topic."""

from pathlib import Path

import pytest

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.cli.topic_requests import find_offsets
from penstock.config.listeners import Address
from penstock.errors import CommandFailed
from penstock.types import TopicPartition
from tests.integration.broker_process import serving
from tests.integration.test_cli import Cli

TIMEOUT_S = 2.5


def test_asking_for_the_offsets_of_a_topic_that_is_gone_does_not_make_it(data_dir: Path) -> None:
    with serving(data_dir, settings={"auto.create.topics.enable": "true"}) as served:
        host, port = served.bootstrap.rsplit(":", 1)
        broker = BrokerConnector((Address(host, int(port)),), TIMEOUT_S)

        with pytest.raises(CommandFailed, match="the offsets of topic gone cannot be read: "):
            find_offsets(broker, [TopicPartition("gone", 0)], PositionSpec(PositionKind.LATEST))

        assert "gone" not in Cli(served.bootstrap).ok("topic", "list")
