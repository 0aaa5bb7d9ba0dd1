"""`make demo`: a broker, an order stream, two consumer groups, then the pipelines and their results.

    python -m examples.demo
    python -m examples.demo --orders 2000 --folder /tmp/penstock-demo

Exit codes: 0 success, 1 failure, 2 wrong options, 130 after Ctrl-C.
"""

import argparse
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

from examples.demo import broker as brokers
from examples.demo import live, steps
from examples.demo.folder import demo_folder
from examples.demo.orders import HOURS, ORDERS_MIN, Shop, shop
from examples.demo.processes import JAVA_OPTIONS, DemoFailed, Interrupted, Interruption, typed

FOLDER = Path("penstock-demo")
ORDERS = 20_000
SEED = 1
TOPICS = {"orders": ["--set", "message.timestamp.type=LogAppendTime"], "payments": []}
INTERRUPTED = 130


def main() -> int:
    given = _arguments()
    interruption = Interruption()
    interruption.hear_signals()
    try:
        with demo_folder(given.folder) as folder:
            show(folder, given.orders, given.seed, interruption)
    except DemoFailed as problem:
        print(f"\nthe demo failed: {problem}", file=sys.stderr)
        return 1
    except Interrupted:
        print("\nstopped; nothing runs any more", file=sys.stderr)
        return INTERRUPTED
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m examples.demo", description="Penstock from end to end.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where everything is kept ({FOLDER})")
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"how many are sent ({ORDERS:,})")
    parser.add_argument("--seed", type=int, default=SEED, help="the same seed makes the same orders")
    given = parser.parse_args()
    if given.orders < ORDERS_MIN:
        parser.error(f"--orders must be {ORDERS_MIN} at least: fraud and mistakes are planted among them")
    return given


def show(folder: Path, orders: int, seed: int, interruption: Interruption) -> None:
    if find_spec("pyspark") is None:
        raise DemoFailed("pipelines run on Spark, which is not installed: pip install 'penstock[spark]'")
    started = time.monotonic()
    made = shop(orders, seed, datetime.now(UTC) - timedelta(hours=HOURS))
    steps.prepare(folder, made)
    _say(f"broker: one process, its data in {folder / 'data'}.", brokers.arguments(folder))
    with brokers.serving(folder, interruption) as broker:
        print(f"  ready: kafka={broker.bootstrap} http={broker.http}", flush=True)
        begun = time.monotonic()
        most_behind = _stream(folder, made, broker, interruption)
        done = [steps.Done("stream", time.monotonic() - begun, {})]
        done += [
            steps.run_pipeline(step, folder, broker, interruption) for step in steps.pipelines(folder, made)
        ]
    print("\n".join(_summary(folder, made, most_behind, done)))
    print(f"\n{time.monotonic() - started:.0f} s in all")


def _say(sentence: str, *commands: list[str]) -> None:
    print("\n".join([sentence, *(f"  $ {typed(command)}" for command in commands)]), flush=True)


def _stream(folder: Path, made: Shop, broker: brokers.Broker, interruption: Interruption) -> int:
    """The largest lag of the slow group."""
    more = ["--partitions", str(live.PARTITIONS), "--bootstrap", broker.bootstrap]
    creating = [["topic", "create", topic, *settings, *more] for topic, settings in TOPICS.items()]
    _say(
        f"\nstream: {len(made.orders):,} orders and their payments, {live.ORDERS_PER_S:,} a second."
        "\n  Two groups read the orders: billing keeps up, shipping is slow until more workers join.",
        *creating,
    )
    for command in creating:
        steps.run(command, folder / "logs/topic.out", folder / "logs/topic.err", broker, interruption)
    most_behind = live.stream(broker, made.orders, interruption)
    print(f"  shipping was {most_behind:,} orders behind at most, and has caught up")
    print(f"\npipelines: each starts a Spark of its own.\n  $ export JDK_JAVA_OPTIONS='{JAVA_OPTIONS}'")
    return most_behind


def _summary(folder: Path, made: Shop, most_behind: int, done: list[steps.Done]) -> list[str]:
    reports = {each.name: each.report for each in done}
    found = {
        "orders": f"{len(made.orders):,} sent, with as many payments",
        "lag": f"shipping was {most_behind:,} orders behind at most, and caught up",
        "archived": f"{reports['archive']['rows']:,} records",
        "loaded": f"{reports['etl']['stages']['load']['rows']:,} orders, "
        f"{reports['etl']['dead_letters']} set aside",
        "alerts": f"{sum(reports['detect']['alerts'].values())} of {len(made.fraud)} planted frauds",
        "violations": f"{len(reports['audit']['violations'])}",
        "seconds": ", ".join(f"{each.name} {each.seconds:.0f}" for each in done),
    }
    paths = {
        "insights": folder / "insights.html",
        "lake": folder / "lake",
        "table": folder / "etl" / "table",
        "audit": folder / "reports" / "audit.json",
        "data": f"{folder / 'data'}  (penstock serve --data-dir {folder / 'data'})",
    }
    return [
        "\nsummary",
        *(f"  {name:<10}  {text}" for name, text in found.items()),
        "to look at",
        *(f"  {name:<10}  {path}" for name, path in paths.items()),
    ]
