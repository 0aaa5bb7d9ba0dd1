"""An idempotent consumer: at least once, with the id of each handled message stored beside its result.

The id of each message and the result of its handling are written in one transaction. A message that is
delivered again finds its id there and is skipped.

Survives: no order is lost and none is charged twice, wherever the consumer crashes.
Does not: effects outside of the database, which cannot be part of its transaction.
"""

import sqlite3
import tempfile
from pathlib import Path

from confluent_kafka import Consumer
from shop import Crash, open_shop, order_id, orders, report

CRASHES_AT = "order-33"


class Books:
    """Charges in a database that survives a crash of the process."""

    def __init__(self, path: Path) -> None:
        self.passed_over = 0
        self._database = sqlite3.connect(path)
        self._database.execute("CREATE TABLE IF NOT EXISTS seen (message_id TEXT PRIMARY KEY)")
        self._database.execute("CREATE TABLE IF NOT EXISTS charges (order_id TEXT)")

    def charge(self, message_id: str) -> None:
        with self._database:  # one transaction: the id and the charge, or neither
            new = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [message_id]).rowcount
            if new:
                self._database.execute("INSERT INTO charges VALUES (?)", [message_id])
            else:
                self.passed_over += 1

    def charged(self) -> list[str]:
        return [row[0] for row in self._database.execute("SELECT order_id FROM charges")]

    def close(self) -> None:
        self._database.close()


def work(consumer: Consumer, books: Books, crashes_at: str | None) -> None:
    for messages in orders(consumer):
        for message in messages:
            if order_id(message) == crashes_at:
                raise Crash
            books.charge(order_id(message))
        consumer.commit(message=messages[-1], asynchronous=False)


def main() -> None:
    with open_shop() as shop, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "books.sqlite"
        books = Books(path)
        try:
            with shop.consumer() as consumer:
                work(consumer, books, CRASHES_AT)
        except Crash:
            print(f"crashed at {CRASHES_AT}, after {len(books.charged())} orders")
        books.close()
        books = Books(path)
        with shop.consumer() as consumer:
            work(consumer, books, None)
        print(f"delivered again and passed over: {books.passed_over}")
        report(books.charged())
        books.close()


if __name__ == "__main__":
    main()
