"""`make demo`, in parts: a run of all its pipelines takes longer than one test may.

What is planted, which folder may be replaced, how a failing command is told, and that Ctrl-C leaves nothing
running: not the broker, and not Spark.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.demo import steps
from examples.demo.broker import serving
from examples.demo.folder import MARK, demo_folder
from examples.demo.orders import COMPANY, MISTAKES, customers_csv, shop
from examples.demo.processes import DemoFailed, Interruption
from tests.integration.broker_process import eventually

ROOT = Path(__file__).parents[2]
START = datetime(2026, 3, 1, tzinfo=UTC)
TELLTALE = "PENSTOCK_DEMO_TEST"
END_SECONDS_MAX = 20.0
STEP_SECONDS_MAX = 90.0


def test_the_same_seed_makes_the_same_shop_with_all_that_is_planted() -> None:
    made = shop(3000, 7, START)
    assert made == shop(3000, 7, START)
    assert made != shop(3000, 8, START)
    assert [order.order_id for order in made.orders] == list(range(1, 3001))
    assert [order.ordered_at for order in made.orders] == sorted(order.ordered_at for order in made.orders)
    assert set(MISTAKES) < {order.mistake for order in made.orders}
    assert made.mistakes == 6
    cards = Counter(order.payment.card for order in made.orders)
    assert cards["stolen-1"] == 5
    of_company = sum(order.customer_id == COMPANY for order in made.orders)
    assert 0.3 < of_company / 3000 < 0.4, "one key is hot"


def test_every_customer_but_the_unknown_one_is_in_the_reference() -> None:
    made = shop(500, 1, START)
    known = {int(line.split(",")[0]) for line in customers_csv(made.customers).splitlines()[1:]}
    strangers = [order.mistake for order in made.orders if order.customer_id not in known]
    assert set(strangers) == {MISTAKES[1]}


def test_a_folder_that_no_demo_made_is_left_as_it_is(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("years of work")
    with pytest.raises(DemoFailed, match="no demo has made"), demo_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(DemoFailed, match="is no folder"), demo_folder(precious):
        pass
    assert precious.read_text() == "years of work"


def test_an_earlier_demo_is_replaced_and_what_a_link_leads_to_is_not(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    with demo_folder(tmp_path / "demo") as folder:
        (folder / "data").mkdir()
        (folder / "data" / "log").touch()
        (folder / "link").symlink_to(elsewhere)
    with demo_folder(tmp_path / "demo") as folder:
        assert [path.name for path in folder.iterdir()] == [MARK]
    assert (elsewhere / "kept").exists()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        demo_folder(tmp_path / "demo") as folder,
        pytest.raises(DemoFailed, match="a demo runs in"),
        demo_folder(folder),
    ):
        pass


def test_a_command_that_fails_ends_the_demo_with_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    out, err = tmp_path / "out", tmp_path / "err"
    interruption = Interruption()
    with serving(tmp_path, interruption) as broker:
        describe = ["topic", "describe", "nowhere", "--bootstrap", broker.bootstrap]
        with pytest.raises(DemoFailed, match=r"exit code [1-9](.|\n)*nowhere"):
            steps.run(describe, out, err, broker, interruption)


def test_a_report_that_does_not_say_what_was_sent_is_a_failure(tmp_path: Path) -> None:
    made = shop(200, 1, START)
    archive, _, detect, _, audit = steps.pipelines(tmp_path, made)
    with pytest.raises(DemoFailed, match="399 in the report, and 400 expected"):
        archive.told({"rows": 399, "files": 8, "bytes": 1})
    with pytest.raises(DemoFailed, match="alerts"):
        detect.told({"alerts": {"many-payments": 1}, "rows": 200})
    with pytest.raises(DemoFailed, match="violations"):
        audit.told({"violations": [{"kind": "lost"}]})


class Demo:
    """In a process of its own, as `make demo` runs it. Whatever it starts can be told by its environment."""

    def __init__(self, folder: Path) -> None:
        self.telltale = f"{TELLTALE}={uuid.uuid4().hex}"
        name, _, value = self.telltale.partition("=")
        self._said = folder.with_suffix(".out")
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo", "--orders", "300", "--folder", str(folder)],
                cwd=ROOT,
                env={**os.environ, name: value},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def running(self) -> dict[int, str]:
        """Its processes that live, and what was typed to start each."""
        found = {}
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and self.telltale.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it ended meanwhile, or is a stranger's
                continue
        return found

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(END_SECONDS_MAX)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    one = Demo(tmp_path / "demo")
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        for pid in one.running():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
@pytest.mark.parametrize("moment", ["the stream", "Spark"])
def test_after_ctrl_c_nothing_runs_any_more(demo: Demo, moment: str) -> None:
    def has_come() -> bool:
        assert demo.process.poll() is None, demo.said
        running = demo.running().values()
        if moment == "the stream":
            return "behind" in demo.said
        return any("pyspark.daemon" in command for command in running)

    eventually(has_come, seconds_max=STEP_SECONDS_MAX, every=0.2)
    began = time.monotonic()
    assert demo.interrupt() == 130, demo.said
    assert time.monotonic() - began < END_SECONDS_MAX
    assert demo.said.endswith("stopped; nothing runs any more\n")
    # Workers of Spark end when they see that their JVM is gone.
    eventually(lambda: not demo.running(), seconds_max=5.0)
