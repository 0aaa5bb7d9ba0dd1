"""Ports for servers that a test starts later, on loopback.

A port that is free now may be taken when the server is started. So the ports are none of those that the
system gives to clients and to servers on port 0, each worker of a test run has a part of its own, and a
process gives no port twice.
"""

import os
import random
import socket

PORTS = range(20_000, 32_000)
TRIES_MAX = 1_000
_given: set[int] = set()


def free_port_range(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    own, chance = _ports_of_this_worker(), random.SystemRandom()
    for _ in range(TRIES_MAX):
        first = chance.choice(own[:-count])
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first
    raise AssertionError(f"no {count} ports in a row are free between {own.start} and {own.stop}")


def free_ports(count: int) -> list[int]:
    return [free_port_range(1) for _ in range(count)]


def _ports_of_this_worker() -> range:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(PORTS) // workers
    return PORTS[number * size : (number + 1) * size]


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
