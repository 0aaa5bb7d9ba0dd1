"""Six hours of a shop: its orders and their payments, with mistakes and fraud planted among them. Pure.

Payments are those of examples/detect/payments.py, and each of them pays for an order. The planted mistakes
and frauds are returned, too, so that the demo can check that they are found. The same seed makes the same
shop.

Planted:
    a hot key    a company places a third of all orders, each of its people with a card of their own
    mistakes     orders that no table can take: see MISTAKES
    fraud        a card tried quickly, a card emptied, a card in three countries, a row of cards tried out
"""

import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from examples.detect.payments import MINUTES_APART_MIN, Payment, Planted, fraud, honest

HOURS = 6.0
ORDERS_MIN = 100
COMPANY = 1
COMPANY_SHARE = 0.35
FIRST_CUSTOMER = 1000
UNKNOWN_CUSTOMER = 999_999
MISTAKES = ("a negative amount", "a customer whom nobody knows", "a value that is no JSON")
ORDERS_PER_MISTAKE = 500
CITIES = ("Graz", "Köln", "Lille", "Porto", "Utrecht", "Wien")


class Order(NamedTuple):
    order_id: int
    customer_id: int
    items: int
    amount: float
    country: str
    ordered_at: datetime
    payment: Payment
    mistake: str | None = None

    @property
    def key(self) -> str:
        return f"customer-{self.customer_id}"

    def value(self) -> bytes:
        if self.mistake == MISTAKES[2]:
            return f"order {self.order_id}, please".encode()
        told = {
            "order_id": self.order_id,
            "customer_id": self.customer_id,
            "items": self.items,
            "amount": self.amount,
            "country": self.country,
            "ordered_at": self.ordered_at.isoformat(),
        }
        return json.dumps(told).encode()


class Shop(NamedTuple):
    orders: list[Order]
    """Orders in the order of their times."""
    customers: list[int]
    fraud: list[Planted]

    @property
    def mistakes(self) -> int:
        return sum(order.mistake is not None for order in self.orders)


def shop(count: int, seed: int, start: datetime) -> Shop:
    """Exactly `count` orders in the six hours from `start`."""
    assert count >= ORDERS_MIN, "the fraud alone is a good number of payments"
    chance = random.Random(seed)  # noqa: S311
    paid: list[Payment] = []
    planted: list[Planted] = []
    for what, payments in fraud(start, HOURS, chance):
        planted.append(what)
        paid += payments
    paid += _honest(count - len(paid), start, chance)
    customers = _customers(sorted({payment.card for payment in paid}))
    orders = [
        _order(number, payment, customers[payment.card], chance)
        for number, payment in enumerate(sorted(paid), 1)
    ]
    return Shop(list(_with_mistakes(orders, chance)), sorted(set(customers.values())), planted)


def customers_csv(customers: Sequence[int]) -> str:
    """The reference that orders are enriched with."""
    lines = [f"{number},Customer {number},{CITIES[number % len(CITIES)]}" for number in customers]
    return "\n".join(["customer_id,name,city", *lines, ""])


def _honest(count: int, start: datetime, chance: random.Random) -> list[Payment]:
    """Choose from more payments than needed: leaving some out makes no card suspicious."""
    payments_per_card_min = math.floor(HOURS * 60 / (MINUTES_APART_MIN * 3))
    made = list(honest(math.ceil(count / payments_per_card_min), start, HOURS, chance))
    return chance.sample(made, count)


def _customers(cards: Sequence[str]) -> dict[str, int]:
    of_company = round(len(cards) * COMPANY_SHARE)
    return {
        card: COMPANY if number < of_company else FIRST_CUSTOMER + number for number, card in enumerate(cards)
    }


def _order(number: int, payment: Payment, customer: int, chance: random.Random) -> Order:
    items = chance.randint(1, 6)
    return Order(number, customer, items, payment.amount, payment.country, payment.at, payment)


def _with_mistakes(orders: Sequence[Order], chance: random.Random) -> Iterator[Order]:
    count = max(len(MISTAKES), len(orders) // ORDERS_PER_MISTAKE)
    wrong = {at: number for number, at in enumerate(chance.sample(range(len(orders)), count))}
    for at, order in enumerate(orders):
        yield order if at not in wrong else _mistaken(order, MISTAKES[wrong[at] % len(MISTAKES)])


def _mistaken(order: Order, mistake: str) -> Order:
    if mistake == MISTAKES[0]:
        return order._replace(amount=-order.amount, mistake=mistake)
    if mistake == MISTAKES[1]:
        return order._replace(customer_id=UNKNOWN_CUSTOMER, mistake=mistake)
    return order._replace(mistake=mistake)
