"""A real `penstock serve` on free ports, with its data in the folder of the demo."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from examples.demo.processes import TURN_S, DemoFailed, Interruption, Program, running

READY_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 10.0
READY_LINE = re.compile(r"penstock ready kafka=(?P<kafka>\S+) http=(?P<http>\S+)\n")


class Broker(NamedTuple):
    program: Program
    bootstrap: str
    http: str

    def check(self) -> None:
        if self.program.exit_code is not None:
            raise DemoFailed(f"the broker ended by itself:\n{self.program.output()}")

    def group(self, name: str) -> dict[str, Any]:
        """The broker's report on a consumer group; None before the group exists."""
        self.check()
        address = f"http://{self.http}/v1/groups?prefix={name}"
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_SECONDS_MAX) as reply:
                groups = json.load(reply)["groups"]
        except OSError as problem:
            raise DemoFailed(f"{address} gives no answer: {problem}\n{self.program.output()}") from problem
        return next((group for group in groups if group["group"] == name), {})


def arguments(folder: Path) -> list[str]:
    addresses = ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    # The first member of a group need not wait three seconds for others, as it should in production.
    return [
        "serve",
        "--data-dir",
        str(folder / "data"),
        *addresses,
        "--set",
        "group.initial.rebalance.delay.ms=0",
    ]


@contextmanager
def serving(folder: Path, interruption: Interruption) -> Iterator[Broker]:
    logs = folder / "logs"
    with running(arguments(folder), logs / "broker.out", logs / "broker.err") as program:
        until = time.monotonic() + READY_SECONDS_MAX
        while (ready := READY_LINE.search(program.stdout)) is None:
            if program.exit_code is not None or time.monotonic() > until:
                raise DemoFailed(f"the broker did not become ready:\n{program.output()}")
            interruption.wait(TURN_S)
        yield Broker(program, ready["kafka"], ready["http"])
