"""Threads of a running broker, and the decision record that lists them."""

import re
import threading
from pathlib import Path

from penstock.broker.broker import Environment, running_broker
from penstock.config.sources import load

RECORD = Path(__file__).parents[3] / "docs" / "adr" / "0010-threads-only-for-devices.md"
STARTED_WHEN_NEEDED = {"validate", "cleaner"}


def threads_in_record() -> set[str]:
    """Names in the first column of the table; a row may be of several, `read-0` to `read-3`."""
    table = RECORD.read_text().partition("| Thread | Its work |")[2].partition("\n\n")[0]
    names: set[str] = set()
    for row in table.splitlines():
        listed = re.findall(r"`([a-z]+)(?:-(\d))?`", row.split("|")[1]) if row.startswith("| `") else []
        kinds = {kind for kind, _ in listed}
        assert len(kinds) <= 1, row
        numbers = [int(number) for _, number in listed if number]
        names |= (
            {f"{kind}-{number}" for kind in kinds for number in range(numbers[0], numbers[-1] + 1)}
            if numbers
            else kinds
        )
    return names


async def test_the_decision_record_names_each_thread_of_a_broker(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    config = load({"data_dir": str(tmp_path / "data")}, ["listeners=PLAINTEXT://127.0.0.1:0"])
    async with running_broker(config, Environment()):
        started = {thread.name for thread in threading.enumerate() if thread not in others}
    assert started == threads_in_record() - STARTED_WHEN_NEEDED
