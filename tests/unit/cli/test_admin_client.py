"""What is asked of leaders is asked of whoever leads by then."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.cli import admin_client as module
from penstock.cli.admin_client import Admin
from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.config.listeners import Address
from penstock.errors import CommandFailed


class Found(NamedTuple):
    offset: int
    timestamp: int


class Moving:
    """Answers with these, one for each time that it is asked."""

    def __init__(self, *answers: int | Found) -> None:
        self._answers = list(answers)
        self.learned = 0

    def list_topics(self, topic: str, timeout: float) -> None:
        self.learned += 1

    def list_offsets(self, wanted: Mapping[Any, Any], request_timeout: float) -> Mapping[Any, Future[Any]]:
        answer = self._answers.pop(0)
        future: Future[Any] = Future()
        if isinstance(answer, int):
            future.set_exception(KafkaException(KafkaError(answer)))
        else:
            future.set_result(answer)
        return {TopicPartition("orders", 0): future}


def asked(moving: Moving, timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> int | None:
    monkeypatch.setattr(module.kafka, "AdminClient", lambda settings: moving)
    monkeypatch.setattr(module, "leaderless_reason", lambda *asked: None)
    admin = Admin(BrokerConnector((Address("127.0.0.1", 1),), timeout_s))
    return admin.offsets("orders", [0], PositionSpec(PositionKind.LATEST))[0].offset


def test_another_leader_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, Found(7, -1))
    assert asked(moving, 10, monkeypatch) == 7
    assert moving.learned == 3


def test_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match="the offsets of topic orders cannot be read"):
        asked(Moving(KafkaError.FENCED_LEADER_EPOCH), 0, monkeypatch)


def test_what_another_leader_would_say_as_well_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match="the offsets of topic orders cannot be read"):
        asked(Moving(KafkaError.TOPIC_AUTHORIZATION_FAILED), 10, monkeypatch)
