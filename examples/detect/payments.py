"""Payments for `penstock pipeline detect`, with fraud planted among honest ones.

    penstock topic create payments --partitions 3
    python examples/detect/payments.py --bootstrap 127.0.0.1:9092 --topic payments
    penstock pipeline detect --topic payments --rules examples/detect/payments.toml \
        --to alerts --checkpoint ./detect-payments --once

The same seed makes the same payments, up to now. What was planted is printed: these are the alerts to expect.
Honest cards pay once in ten minutes at most, small sums, in one country, so that no rule is about them.
"""

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

MINUTES_APART_MIN = 10


class Payment(NamedTuple):
    at: datetime
    card: str
    amount: float
    country: str
    merchant: str

    def value(self) -> bytes:
        return json.dumps({**self._asdict(), "at": self.at.isoformat()}).encode()


class Planted(NamedTuple):
    rule: str
    key: str
    payments: int


def honest(cards: int, start: datetime, hours: float, chance: random.Random) -> Iterator[Payment]:
    for number in range(cards):
        country = chance.choice(["AT", "DE", "FR", "NL"])
        at = start + timedelta(minutes=chance.uniform(0, MINUTES_APART_MIN))
        while at < start + timedelta(hours=hours):
            amount = round(chance.uniform(5, 200), 2)
            yield Payment(at, f"card-{number:05}", amount, country, f"shop-{chance.randrange(50)}")
            at += timedelta(minutes=MINUTES_APART_MIN * chance.uniform(1, 3))


def fraud(start: datetime, hours: float, chance: random.Random) -> Iterator[tuple[Planted, list[Payment]]]:
    """One of each kind, somewhere in the first two thirds of the time."""

    def begin() -> datetime:
        return start + timedelta(hours=chance.uniform(0.1, hours * 2 / 3))

    def row(key: str, count: int, every_s: float, amount: float) -> list[Payment]:
        at = begin()
        return [
            Payment(at + timedelta(seconds=every_s * number), key, amount, "DE", "shop-quick")
            for number in range(count)
        ]

    yield Planted("many-payments", "stolen-1", 5), row("stolen-1", 5, every_s=9, amount=30.0)
    yield Planted("much-money", "stolen-2", 3), row("stolen-2", 3, every_s=120, amount=1800.0)
    at = begin()
    far = [
        Payment(at + timedelta(minutes=15 * number), "stolen-3", 20.0, country, "shop-far")
        for number, country in enumerate(("DE", "BR", "JP"))
    ]
    yield Planted("many-countries", "stolen-3", 3), far
    at = begin()
    tried = [
        Payment(at + timedelta(minutes=number), f"tried-{number}", 1.0, "DE", "shop-tested")
        for number in range(9)
    ]
    yield Planted("card-testing", "shop-tested", 9), tried


def payments(cards: int, hours: float, seed: int, start: datetime) -> tuple[list[Payment], list[Planted]]:
    """All of them in the order of their times, and what was planted."""
    chance = random.Random(seed)  # noqa: S311
    found = list(honest(cards, start, hours, chance))
    planted = []
    for what, made in fraud(start, hours, chance):
        planted.append(what)
        found += made
    return sorted(found), planted


def main() -> None:
    from confluent_kafka import Producer

    parser = argparse.ArgumentParser(description="Payments, with fraud planted among honest ones.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="payments")
    parser.add_argument("--cards", type=int, default=500)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    start = datetime.now(UTC) - timedelta(hours=given.hours)
    made, planted = payments(given.cards, given.hours, given.seed, start)
    producer = Producer({"bootstrap.servers": given.bootstrap, "linger.ms": 20})
    failures: list[str] = []

    def delivered(failure: object, record: object) -> None:
        if failure is not None:
            failures.append(str(failure))

    for payment in made:
        time_ms = int(payment.at.timestamp() * 1000)
        producer.produce(given.topic, payment.value(), payment.card, timestamp=time_ms, on_delivery=delivered)
        producer.poll(0)
    if left := producer.flush(60) + len(failures):
        raise SystemExit(f"{left} payments could not be written: {failures[:1] or 'no answer'}")
    print(f"{len(made):,} payments written to {given.topic}. Planted:")
    for what in planted:
        print(f"  {what.rule}: {what.key}, {what.payments} payments")


if __name__ == "__main__":
    main()
