"""A steady producer and two consumer groups, with their lag as the broker reports it.

`billing` keeps up. `shipping` has one worker, which is slower than the producer: its lag grows until more
workers join and share the partitions. The part ends when all orders are sent and neither group has lag.

Rule: threads end with the block that started them, and an error of a thread is raised there.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from examples.demo.broker import Broker
from examples.demo.orders import Order
from examples.demo.processes import DemoFailed, Interruption

PARTITIONS = 4
ORDERS_PER_S = 1500
SLOW_ORDERS_PER_S = 900
"""Orders that one worker of `shipping` handles in a second."""
MORE_WORKERS_AFTER = 0.45
"""Share of the orders after which more workers join."""
DRAINED_SECONDS_MAX = 120.0
LOOKED_EVERY_S = 1.0
WAIT_S = 0.1
HEADING = "  second  billing behind  shipping behind   oldest  workers of shipping"

GROUPS: dict[str, dict[str, Any]] = {
    "billing": {"group.protocol": "consumer"},  # KIP-848
    "shipping": {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 500,  # members hear of each other sooner than after three seconds
    },
}


class Threads:
    """Threads of the stream, with one event that ends them."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.stop = threading.Event()
        self._pool = pool
        self._all: list[Future[None]] = []

    def start(self, work: Callable[..., None], *given: object) -> Future[None]:
        future = self._pool.submit(work, *given, self.stop)
        self._all.append(future)
        return future

    def check(self) -> None:
        for future in self._all:
            if future.done():
                future.result()


@contextmanager
def threads() -> Iterator[Threads]:
    with ThreadPoolExecutor(2 + PARTITIONS, "demo") as pool:
        made = Threads(pool)
        try:
            yield made
        finally:
            made.stop.set()


def send(bootstrap: str, orders: Sequence[Order], stop: threading.Event) -> None:
    """Each order to `orders` and its payment to `payments`, at an even pace, exactly once."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
        }
    )
    failures: list[str] = []

    def delivered(failure: KafkaError | None, message: Message) -> None:
        if failure is not None:
            failures.append(failure.str())

    started = time.monotonic()
    for number, order in enumerate(orders):
        ahead_s = number / ORDERS_PER_S - (time.monotonic() - started)
        if ahead_s > 0 and stop.wait(ahead_s):
            break
        made_at = str(time.time_ns() // 1_000_000)
        producer.produce(
            "orders", order.value(), order.key, headers={"made-at": made_at}, on_delivery=delivered
        )
        producer.produce("payments", order.payment.value(), order.payment.card, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(5 if stop.is_set() else 60)
    if not stop.is_set() and (left or failures):
        raise DemoFailed(f"{left + len(failures)} records could not be sent: {failures[:1] or 'no answer'}")


def work(bootstrap: str, group: str, orders_per_s: float | None, stop: threading.Event) -> None:
    """A group member that handles a number of orders a second and commits their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **GROUPS[group],
        }
    )
    at_once = 500 if orders_per_s is None else max(1, round(orders_per_s * WAIT_S))
    consumer.subscribe(["orders"])
    try:
        while not stop.is_set():
            handled = [each for each in consumer.consume(at_once, WAIT_S) if each.error() is None]
            if not handled:
                continue
            if orders_per_s is not None:
                stop.wait(len(handled) / orders_per_s)
            consumer.commit(asynchronous=True)
    finally:
        consumer.close()


def stream(broker: Broker, orders: Sequence[Order], interruption: Interruption) -> int:
    """Run the stream and print a line for each second. Returns the largest lag of `shipping`."""
    most = 0
    workers = 1
    print(HEADING)
    with threads() as all_threads:
        all_threads.start(work, broker.bootstrap, "billing", None)
        all_threads.start(work, broker.bootstrap, "shipping", SLOW_ORDERS_PER_S)
        sending = all_threads.start(send, broker.bootstrap, orders)
        started = time.monotonic()
        while (now_s := time.monotonic() - started) < DRAINED_SECONDS_MAX:
            interruption.wait(LOOKED_EVERY_S)
            all_threads.check()
            billing, shipping = broker.group("billing"), broker.group("shipping")
            behind = [group.get("records_behind") for group in (billing, shipping)]
            print(_line(now_s + LOOKED_EVERY_S, behind, shipping.get("age_ms") or 0, workers), flush=True)
            most = max(most, behind[1] or 0)
            if sending.done() and behind == [0, 0]:
                return most
            if workers == 1 and now_s > MORE_WORKERS_AFTER * len(orders) / ORDERS_PER_S:
                for _ in range(PARTITIONS - 1):
                    all_threads.start(work, broker.bootstrap, "shipping", SLOW_ORDERS_PER_S)
                workers = PARTITIONS
    raise DemoFailed(f"the groups did not catch up within {DRAINED_SECONDS_MAX:.0f} s")


def _line(second: float, behind: Sequence[int | None], oldest_ms: int, workers: int) -> str:
    billing, shipping = ("-" if number is None else f"{number:,}" for number in behind)
    return f"  {second:>6.0f}  {billing:>14}  {shipping:>15}  {oldest_ms / 1000:>5.1f} s  {workers}"
