"""The programs under examples/, run as their reader would run them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import serving

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Groups begin at once, so that the examples take a second and not ten."""
    settings = {"group.initial.rebalance.delay.ms": 0}
    with serving(tmp_path_factory.mktemp("examples") / "data", settings=settings) as broker:
        yield broker.bootstrap


def run(name: str, bootstrap: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("delivery/at_most_once.py", "orders=100 effects=93 lost=7 duplicated=0"),
        ("delivery/at_least_once.py", "orders=100 effects=103 lost=0 duplicated=3"),
        ("delivery/idempotent_consumer.py", "orders=100 effects=100 lost=0 duplicated=0"),
    ],
)
def test_each_way_of_delivery_fails_and_survives_as_it_says(
    name: str, counts: str, broker_address: str
) -> None:
    out = run(name, broker_address)
    assert "crashed at order-33, after 33 orders" in out
    assert out.splitlines()[-1] == counts


def test_payments_are_written_and_what_was_planted_is_told(broker_address: str) -> None:
    out = run("detect/payments.py", broker_address)
    written, *planted = out.splitlines()
    assert written.endswith("payments written to payments. Planted:")
    assert len(planted) == 4


def test_every_example_is_run() -> None:
    programs = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert programs == {
        "delivery/at_most_once.py",
        "delivery/at_least_once.py",
        "delivery/idempotent_consumer.py",
        "detect/payments.py",
    }
