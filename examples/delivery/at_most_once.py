"""At most once: commit, then work.

Survives: nothing is ever done twice.
Does not: orders that were committed and not yet worked on when the consumer crashed are lost.
"""

from confluent_kafka import Consumer
from shop import Crash, open_shop, order_id, orders, report

CRASHES_AT = "order-33"


def work(consumer: Consumer, charged: list[str], crashes_at: str | None) -> None:
    for messages in orders(consumer):
        consumer.commit(message=messages[-1], asynchronous=False)  # from here on these orders are done ...
        for message in messages:
            if order_id(message) == crashes_at:
                raise Crash
            charged.append(order_id(message))  # ... though this has not happened yet


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
