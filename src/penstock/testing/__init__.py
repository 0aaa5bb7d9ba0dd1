"""A real broker inside a test: no container, no other process, no mock.

    from penstock.testing import broker

    with broker() as running:
        producer = Producer({"bootstrap.servers": running.bootstrap})

With pytest, the fixtures `penstock_broker` and `penstock_session_broker` are available without further setup.
"""

from penstock.testing.in_process import Broker, broker

__all__ = ["Broker", "broker"]
