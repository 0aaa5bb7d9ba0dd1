"""At least once: work, then commit.

Survives: no order is lost, wherever the consumer crashes.
Does not: orders that were worked on and not yet committed are worked on again.
"""

from confluent_kafka import Consumer
from shop import Crash, open_shop, order_id, orders, report

CRASHES_AT = "order-33"


def work(consumer: Consumer, charged: list[str], crashes_at: str | None) -> None:
    for messages in orders(consumer):
        for message in messages:
            if order_id(message) == crashes_at:
                raise Crash
            charged.append(order_id(message))  # this has happened ...
        consumer.commit(
            message=messages[-1], asynchronous=False
        )  # ... and is known to have only from here on


def main() -> None:
    charged: list[str] = []  # the payment provider's books, which outlive our process
    with open_shop() as shop:
        try:
            with shop.consumer() as consumer:
                work(consumer, charged, CRASHES_AT)
        except Crash:
            print(f"crashed at {CRASHES_AT}, after {len(charged)} orders")
        with shop.consumer() as consumer:
            work(consumer, charged, None)
    report(charged)


if __name__ == "__main__":
    main()
