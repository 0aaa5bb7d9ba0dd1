"""Shared parts of the examples: orders in a topic, consumers that can crash, and a count at the end."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS = 100
ORDERS_AT_ONCE = 10
WAIT_S = 1.0
"""Time limit of one poll."""


class Crash(Exception):
    """Simulates a crash: nothing after the line that raises it runs."""


class Shop:
    """A topic with a hundred orders, which is deleted at the end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """A member of the group, which begins at the committed offsets.

        Only the program itself commits. Closing leaves the group at once; after a real crash the group would
        notice at the session timeout.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.topic])
        try:
            yield consumer
        finally:
            consumer.close()


@contextmanager
def open_shop() -> Iterator[Shop]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a broker, as host:port")
    bootstrap = parser.parse_args().bootstrap
    topic = f"orders-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    try:
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(ORDERS):
            producer.produce(topic, key=f"order-{number}", value=f"{number + 1}.00 EUR")
        producer.flush()
        yield Shop(bootstrap, topic)
    finally:
        admin.delete_topics([topic])[topic].result()
        admin.delete_consumer_groups([topic])[topic].result()


def orders(consumer: Consumer) -> Iterator[list[Message]]:
    """Yield ten orders at a time, until the last one has arrived."""
    messages: list[Message] = []
    while not messages or messages[-1].offset() < ORDERS - 1:
        messages = []
        while len(messages) < ORDERS_AT_ONCE:
            received = consumer.consume(ORDERS_AT_ONCE - len(messages), WAIT_S)
            messages += [message for message in received if not message.error()]
        yield messages


def order_id(message: Message) -> str:
    key = message.key()
    assert key is not None, "every order has its number as its key"
    return key.decode()


def report(charged: Iterable[str]) -> None:
    """Print how many orders were lost and how many were handled twice."""
    times = Counter(charged)
    lost = ORDERS - len(times)
    duplicated = sum(count > 1 for count in times.values())
    print(f"orders={ORDERS} effects={sum(times.values())} lost={lost} duplicated={duplicated}")
