"""`penstock produce` when records cannot be stored: it ends soon, and counts."""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.records.record_input import ANY_PARTITION, OutgoingRecord
from penstock.cli.records.sender import Sender
from penstock.config.listeners import parse_address
from penstock.errors import CommandFailed
from penstock.testing import broker

RECORD = OutgoingRecord(b"x", None, (), ANY_PARTITION)
TIMEOUT_S = 2.0
QUEUED_MAX = 100_000
"""Records that librdkafka takes at once. Each of them has the whole time-out."""


def test_a_lost_broker_ends_produce_after_one_timeout_without_reading_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = 0

    def records() -> Iterator[OutgoingRecord]:
        nonlocal given
        for _ in range(QUEUED_MAX * 4):
            given += 1
            if sender.records:
                served.close()
            yield RECORD

    with ExitStack() as served:
        address = parse_address(served.enter_context(broker(**{"num.partitions": 2})).bootstrap)
        assert address is not None
        sender = sender_to(BrokerConnector((address,), TIMEOUT_S), "orders")
        with pytest.raises(CommandFailed) as failed:
            sender.send(records())

    said = str(failed.value)
    assert given < QUEUED_MAX * 4
    assert f"what follows record {given - 1} of the input" in said
    unknown = r"^([0-9]+) records? not acknowledged, and (?:some of them|it) may be stored: cannot reach"
    unacknowledged = sum(map(int, re.findall(unknown, said, re.M)))
    assert unacknowledged <= QUEUED_MAX
    assert sender.records + unacknowledged == given - 1
    assert "not stored" not in said
    assert capsys.readouterr().err.startswith(f"{sender.records} record")


def sender_to(reached: BrokerConnector, topic: str) -> Sender:
    from penstock.cli.topic_metadata import create_by_writing

    create_by_writing(reached, topic)
    return Sender(reached, topic, "none", "all")
