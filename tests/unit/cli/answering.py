"""A broker that commands can ask, with answers that were written down before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from penstock.cli.broker_connector import BrokerConnector
from penstock.config.listeners import Address


class CannedReplies:
    """The same answers again and again, by the name of what is asked. What it was asked is kept."""

    timeout_s = 0.0

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: dict[str, Any] = {}

    @contextmanager
    def client(self) -> Iterator["CannedReplies"]:
        yield self

    def ask(self, api: Any, message: Any, *, at: Any = None) -> Any:
        self.asked[api.name] = message
        return self._answers[api.name]

    def brokers(self) -> dict[int, Address]:
        return {node.node_id: Address(node.host, node.port) for node in self._answers["Metadata"].brokers}


def as_broker(answering: CannedReplies) -> BrokerConnector:
    """For those who want to know that it is one."""
    return cast("BrokerConnector", answering)
