"""The pipelines of the demo, as commands that a user would type, and the expected lines of their reports.

Rule: a step fails if its command fails, or if its report does not match what was sent. Then the demo ends
      with the output of the command.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from examples.demo.broker import Broker
from examples.demo.orders import Shop, customers_csv
from examples.demo.processes import TURN_S, DemoFailed, Interruption, running, typed

HERE = Path(__file__).parent
RULES = HERE.parent / "detect" / "payments.toml"
STEP_SECONDS_MAX = 300.0
FEW_ROWS = ("--set", "spark.sql.shuffle.partitions=2")

Report = dict[str, Any]


class Step(NamedTuple):
    name: str
    says: str
    arguments: tuple[str, ...]
    told: Callable[[Report], list[str]]
    """Returns lines of the report to show. DemoFailed: the report is wrong."""


class Done(NamedTuple):
    name: str
    seconds: float
    report: Report


def pipelines(folder: Path, shop: Shop) -> list[Step]:
    """The steps in the order in which they run."""
    orders = len(shop.orders)
    lake, checkpoints = folder / "lake", folder / "checkpoints"
    return [
        Step(
            "archive",
            "Every record of both topics goes to a lake of Parquet files, exactly once.",
            ("archive", "--topic", "orders", "--topic", "payments", "--to", str(lake), "--once"),
            lambda report: _archived(report, orders),
        ),
        Step(
            "etl",
            "Orders are cleaned, given their customer's city and loaded into a table; mistakes set aside.",
            ("etl", "--spec", str(folder / "etl" / "etl.toml"), "--once"),
            lambda report: _loaded(report, shop),
        ),
        Step(
            "detect",
            "Rules with a memory look for fraud in the payments; alerts go to a topic.",
            (
                *("detect", "--topic", "payments", "--rules", _shown(RULES), "--to", "alerts"),
                *("--checkpoint", str(checkpoints / "detect"), "--once", *FEW_ROWS),
            ),
            lambda report: _detected(report, shop),
        ),
        Step(
            "insights",
            "Where does the load lie, how long do messages take, and what should be done?",
            (
                *("insights", "--topic", "orders", "--made", "header:made-at", "--group", "billing"),
                *("--group", "shipping", "--to", str(folder / "insights.html"), *FEW_ROWS),
            ),
            _seen,
        ),
        Step(
            "audit",
            "Is every record in the lake, once, as it was sent, and in order?",
            (
                "audit",
                "--topic",
                "orders",
                "--topic",
                "payments",
                "--lake",
                str(lake),
                "--complete",
                *FEW_ROWS,
            ),
            _audited,
        ),
    ]


def prepare(folder: Path, shop: Shop) -> None:
    for name in ("logs", "reports", "etl"):
        (folder / name).mkdir()
    shutil.copy(HERE / "etl.toml", folder / "etl")
    (folder / "etl" / "customers.csv").write_text(customers_csv(shop.customers), encoding="utf-8")


def run_pipeline(step: Step, folder: Path, broker: Broker, interruption: Interruption) -> Done:
    report = folder / "reports" / f"{step.name}.json"
    arguments = ["pipeline", *step.arguments, "--bootstrap", broker.bootstrap, "--json"]
    print(f"\n{step.name}: {step.says}\n  $ {typed(arguments)} > {report}", flush=True)
    seconds = run(arguments, report, folder / "logs" / f"{step.name}.err", broker, interruption)
    document = json.loads(report.read_text())
    print("\n".join(f"  {line}" for line in [*step.told(document), f"{seconds:.1f} s"]), flush=True)
    return Done(step.name, seconds, document)


def run(
    arguments: Sequence[str], stdout: Path, stderr: Path, broker: Broker, interruption: Interruption
) -> float:
    """Wait until the command ends. Returns the seconds that it took."""
    started = time.monotonic()
    with running(arguments, stdout, stderr) as program:
        while (exit_code := program.exit_code) is None:
            interruption.wait(TURN_S)
            broker.check()
            if time.monotonic() - started > STEP_SECONDS_MAX:
                raise DemoFailed(f"not done after {STEP_SECONDS_MAX:.0f} s:\n{program.output()}")
        if exit_code:
            raise DemoFailed(f"it ended with exit code {exit_code}:\n{program.output()}")
    return time.monotonic() - started


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise DemoFailed(f"{what}: {found} in the report, and {wanted} expected")


def _archived(report: Report, orders: int) -> list[str]:
    _expect("records archived", report["rows"], 2 * orders)
    return [f"{report['rows']:,} records in {report['files']} files, {report['bytes'] / 1e6:.1f} MB"]


def _loaded(report: Report, shop: Shop) -> list[str]:
    loaded, dead = report["stages"]["load"]["rows"], report["dead_letters"]
    _expect("orders set aside", dead, shop.mistakes)
    _expect("orders loaded", loaded, len(shop.orders) - shop.mistakes)
    stages = " -> ".join(f"{name} {stage['rows']:,}" for name, stage in report["stages"].items())
    return [f"rows: {stages}", f"{dead} orders with mistakes are in the topic {report['dead_letter_topic']}"]


def _detected(report: Report, shop: Shop) -> list[str]:
    planted = {each.rule: 1 for each in shop.fraud}
    found = {rule: count for rule, count in report["alerts"].items() if count}
    _expect("alerts", found, planted)
    keys = ", ".join(f"{each.rule} ({each.key})" for each in shop.fraud)
    return [
        f"{len(planted)} frauds were planted in {report['rows']:,} payments, {sum(found.values())} found:",
        keys,
    ]


def _seen(report: Report) -> list[str]:
    latency = report["latency"]
    return [
        f"{report['rows']:,} records of {report['distinct_keys']:,} keys; the fullest partition has "
        f"{report['skew']:.2f} times the mean",
        f"from producer to topic: half in {latency['p50_ms']:.0f} ms, 99 % in {latency['p99_ms']:.0f} ms",
        *(f"advice, {each['about']}: {each['advice']}" for each in report["advice"][:2]),
    ]


def _audited(report: Report) -> list[str]:
    _expect("violations", report["violations"], [])
    counts = ", ".join(f"{report[kind]} {kind}" for kind in ("lost", "duplicated", "different"))
    checked = ", ".join(f"{name} {count:,}" for name, count in report["checked"].items())
    return [f"checked: {checked}", f"{counts}, {report['order']} out of order"]


def _shown(path: Path) -> str:
    """The path, relative if possible, so that commands stay short."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
