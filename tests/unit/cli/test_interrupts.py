"""Ctrl-C and SIGTERM, at whatever a command waits for: code 130 or 143, nothing done, no traceback."""

import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from penstock.testing import Broker

SECONDS_MAX = 30.0
INTERRUPTED = 130
EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: 143}
# As from a terminal, also where the tests themselves run in the background with interrupts ignored.
HEEDING_INTERRUPTS = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "runpy.run_module('penstock', run_name='__main__', alter_sys=True)"
)


@contextmanager
def started(*arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDING_INTERRUPTS, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: "subprocess.Popen[bytes]", number: signal.Signals = signal.SIGINT) -> bytes:
    """What it still says; it ends soon, as one that was interrupted."""
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == EXIT_CODES[number], err
    assert b"Traceback" not in err
    return err


def has(served: Broker, topic: str) -> bool:
    return (served.data_dir / "logs" / f"{topic}-0").exists()


def write(served: Broker, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SECONDS_MAX) == 0


@pytest.fixture
def orders(penstock_session_broker: Broker) -> Broker:
    write(penstock_session_broker, "orders", [b"x"])
    return penstock_session_broker


@pytest.mark.parametrize("command", ["delete", "truncate"])
def test_at_the_question_nothing_is_done(orders: Broker, command: str) -> None:
    terminal, stdin = pty.openpty()
    with started("topic", command, "orders", "--bootstrap", orders.bootstrap, stdin=stdin) as process:
        assert process.stderr is not None
        question = b""
        while b"[y/N]" not in question:
            question += os.read(process.stderr.fileno(), 100)
        assert interrupt(process) == b""
    os.close(terminal)
    os.close(stdin)

    assert has(orders, "orders")


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("\x04", 1), ("Y\n", 0)])
def test_the_question_is_answered_by_yes_alone(orders: Broker, answer: str, code: int) -> None:
    terminal, stdin = pty.openpty()
    with started("topic", "delete", "orders", "--bootstrap", orders.bootstrap, stdin=stdin) as process:
        os.write(terminal, answer.encode())
        _, err = process.communicate(timeout=SECONDS_MAX)
    os.close(terminal)
    os.close(stdin)

    assert process.returncode == code
    assert (b"nothing was done." in err) == (code == 1)
    assert has(orders, "orders") == (code == 1)


@pytest.mark.parametrize("number", EXIT_CODES, ids=lambda number: number.name)
def test_while_lines_are_awaited_those_before_it_are_sent(orders: Broker, number: signal.Signals) -> None:
    topic = f"typed-{number.name}"
    with started("produce", topic, "--bootstrap", orders.bootstrap, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        segment = orders.data_dir / "logs" / f"{topic}-0" / "00000000000000000000.log"
        while not (segment.exists() and segment.stat().st_size):
            time.sleep(0.01)
        created, sent = interrupt(process, number).splitlines()
        assert created.startswith(b"created topic typed")
        assert sent.startswith(b"1 record, 3 bytes in ")


@contextmanager
def silent_broker() -> Iterator[tuple[str, threading.Event]]:
    """One that takes connections and says nothing."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def take() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1)
                asked.set()
                connection.recv(100_000)
                connection.recv(1)

        thread = threading.Thread(target=take)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", asked
        thread.join(SECONDS_MAX)


@pytest.mark.parametrize(
    "command",
    [
        "topic list",
        "topic create x",
        "topic describe x",
        "topic offsets x",
        "topic alter x --partitions 2",
        "topic delete x --yes",
        "topic truncate x --yes",
        "produce x --value v",
        "consume x",
        "log-dirs",
    ],
)
def test_while_a_broker_does_not_answer(command: str) -> None:
    _end_while_a_broker_does_not_answer(command, signal.SIGINT)


def test_sigterm_while_a_broker_does_not_answer() -> None:
    _end_while_a_broker_does_not_answer("topic list", signal.SIGTERM)


def _end_while_a_broker_does_not_answer(command: str, number: signal.Signals) -> None:
    with silent_broker() as (address, asked), started(*command.split(), "--bootstrap", address) as process:
        assert asked.wait(SECONDS_MAX)
        assert interrupt(process, number) == b""


def test_while_nobody_reads_what_is_consumed(orders: Broker) -> None:
    """A full pipe holds the command in a write, which must let go."""
    write(orders, "long", [b"x" * 1000] * 500)
    with started("consume", "long", "--bootstrap", orders.bootstrap) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 10).startswith(b"x")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == INTERRUPTED
        assert process.stderr is not None
        assert process.stderr.read() == b""
