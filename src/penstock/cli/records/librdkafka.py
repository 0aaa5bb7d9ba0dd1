"""Settings of librdkafka (confluent-kafka), which sends and receives the records of `produce` and `consume`.

Its producer and consumer have what these commands need and the wire client does not: batching from a stream
of records, compression, Java's partitioner, and membership in groups. Every other request of a command goes
over the wire client (cli/broker_connector.py).

Rule: a command looks up its topic over the wire client first. librdkafka reports a failure only after its
      whole timeout, and without the reason.
"""

import logging
from typing import Any

from penstock.cli.broker_connector import CLIENT_ID, BrokerConnector


def settings_of(broker: BrokerConnector) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(map(str, broker.addresses)),
        "client.id": CLIENT_ID,
        "socket.timeout.ms": max(int(broker.timeout_s * 1000), 1000),
        "logger": _silent_logger(),
    }
    if broker.tls is not None:
        settings["security.protocol"] = "SSL"
        names = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
        settings |= {name: path for name, path in zip(names, broker.tls, strict=True) if path is not None}
    return settings


def _silent_logger() -> logging.Logger:
    """Suppress librdkafka's own log lines on stderr; commands report the relevant errors themselves."""
    logger = logging.getLogger("penstock.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
