"""Rules over a stream of payments: what was planted is found and nothing else; nothing is lost."""

import json
import runpy
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from penstock.errors import CommandFailed
from penstock.protocol.compression import Codec
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.pipelines.detect.detect import DetectReport, DetectSettings, check, run_detect
from penstock.spark.pipelines.detect.rule_evaluation import Alert, alert_id
from penstock.spark.pipelines.detect.rules import DetectRule, DetectRules, RuleKind, StreamSpec, read_rules
from penstock.spark.records.encode import encode
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.integration.broker_process import penstock
from tests.spark.topics import BATCH_BYTES_MAX, client_of, committed, create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "detect"
START = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = StreamSpec("json", "card string, amount double, at timestamp", time="at", lateness_ms=60_000)
FAST = DetectRule("fast", RuleKind.COUNT, 3, 60_000, key="card")
RULES = DetectRules(
    COLUMNS, (FAST, DetectRule("much", RuleKind.SUM, 1_000.0, 60_000, key="card", field="amount"))
)


def payment(card: str | None, second: float, amount: float = 1.0) -> bytes:
    at = START + timedelta(seconds=second)
    return json.dumps({"card": card, "amount": amount, "at": at.isoformat()}).encode()


def write(running: Broker, topic: str, values: list[bytes], *, partition: int = 0) -> None:
    """Written a day after the payments: times of records are not those that rules are about."""
    modified_ms = int((START + timedelta(days=1)).timestamp() * 1000)
    column = pa.array(values, pa.binary())
    batches = encode(
        None,
        column,
        None,
        pa.array([modified_ms] * len(values), pa.int64()),
        codec=Codec.NONE,
        batch_bytes_max=BATCH_BYTES_MAX,
    )
    with client_of(running) as client:
        client.produce(TopicPartition(topic, partition), batches)


def settings(running: Broker, topic: str, folder: Path, **more: Any) -> DetectSettings:
    access = {"kafka.bootstrap.servers": running.bootstrap}
    return DetectSettings(topic, f"{topic}-alerts", RULES, access, folder / "checkpoint", once=True)._replace(
        **more
    )


def detected(spark: "SparkSession", wanted: DetectSettings) -> DetectReport:
    return run_detect(spark, wanted, StopRequest(), lambda line: None)


class Found(NamedTuple):
    value: bytes
    headers: dict[str, str]


def records(spark: "SparkSession", running: Broker, topic: str) -> list[Found]:
    rows = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", running.bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .collect()
    )
    return [
        Found(bytes(row.value), {each.key: bytes(each.value).decode() for each in row.headers})
        for row in rows
    ]


def alerts(spark: "SparkSession", running: Broker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(found.value) for found in records(spark, running, f"{topic}-alerts")]


def test_what_the_example_plants_is_found_and_nothing_else(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    module = runpy.run_path(str(EXAMPLE / "payments.py"))
    made, planted = module["payments"](cards=60, hours=3.0, seed=7, start=START)
    create(running, "detect-example", 2)
    for partition in range(2):
        mine = [each.value() for each in made if (each.merchant == "shop-tested") == bool(partition)]
        write(running, "detect-example", mine, partition=partition)
    rules = read_rules(EXAMPLE / "payments.toml")
    # A batch reads as large a part of one partition as of the other, and times of the two run apart.
    rules = rules._replace(stream=rules.stream._replace(lateness_ms=4 * 3_600_000))
    wanted = settings(running, "detect-example", tmp_path, rules=rules, rows_per_batch=300)
    write(running, "detect-example", [made[-1]._replace(at=made[-1].at + timedelta(hours=9)).value()])
    report = detected(spark, wanted)
    assert (report.rows, report.lag, sum(report.rejected.values())) == (len(made) + 1, 0, 0)
    assert report.batches > 1
    found = alerts(spark, running, "detect-example")
    assert Counter((each["rule"], each["key"], each["count"]) for each in found) == Counter(
        tuple(each) for each in planted
    )
    assert report.alerts == Counter(each.rule for each in planted)
    assert committed(running, "detect-detect-example", "detect-example") == [len(made) - 9 + 1]


def test_what_is_remembered_survives_a_restart(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "detect-restart")
    wanted = settings(running, "detect-restart", tmp_path)
    write(running, "detect-restart", [payment("a", 0), payment("b", 1), payment("a", 2)])
    first = detected(spark, wanted)
    assert (first.rows, sum(first.alerts.values())) == (3, 0)
    write(running, "detect-restart", [payment("a", 3)])
    second = detected(spark, wanted)
    assert (second.rows, second.alerts, second.lag) == (1, {"fast": 1, "much": 0}, 0)
    (alert,) = alerts(spark, running, "detect-restart")
    assert (alert["rule"], alert["key"]) == ("fast", "a")
    assert [each["offset"] for each in alert["evidence"]] == [0, 2, 3]
    assert alert["id"] == id_of(alert, "detect-restart", running)
    forget_after(wanted.checkpoint, last=1)
    again = detected(spark, wanted)
    assert (again.rows, again.alerts, again.lag) == (1, {"fast": 1, "much": 0}, 0)
    ids = [found.headers["penstock-alert-id"] for found in records(spark, running, "detect-restart-alerts")]
    assert ids == [alert["id"]] * 2, "written again, and known by its id"


def id_of(alert: dict[str, Any], topic: str, running: Broker) -> str:
    """The id that an alert of this topic must have, whatever other topics give alerts to the same one."""
    with client_of(running) as client:
        topic_id = client.topic(topic).id
    evidence = tuple(
        (int(datetime.fromisoformat(each["time"]).timestamp() * 1000), each["partition"], each["offset"])
        for each in alert["evidence"]
    )
    within = alert_id(alert["rule"], alert["key"], evidence, alert["count"])
    made = Alert(within, alert["rule"], "count", alert["key"], 0, 0, alert["count"], 0.0, evidence)
    return made.with_topic_id(topic, topic_id).id


def forget_after(checkpoint: Path, *, last: int) -> None:
    """As if Spark had died in the batch after the last one, before it noted that it was done."""
    batches = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    for number in batches:
        for folder in ("offsets", "commits"):
            # What the next batch has is noted before it runs.
            if number > last + (folder == "offsets"):
                (checkpoint / folder / str(number)).unlink(missing_ok=True)
                (checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)


def test_late_rows_and_those_nobody_can_look_at_are_counted_and_kept(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "detect-late")
    wanted = settings(running, "detect-late", tmp_path)
    write(running, "detect-late", [payment("a", 0), payment("a", 1), payment("z", 1_000)])
    assert sum(detected(spark, wanted).rejected.values()) == 0
    late = payment("a", 2)  # the watermark is a minute before second 1,000
    just_in_time = payment("a", 941)
    ahead = json.dumps({"card": "a", "at": "2099-01-01T00:00:00Z"}).encode()
    no_time = json.dumps({"card": "a"}).encode()
    write(running, "detect-late", [late, b"not json", just_in_time, ahead, no_time, payment(None, 950)])
    report = detected(spark, wanted)
    assert report.rejected == {
        "late": 1,
        "unreadable": 1,
        "without time": 1,
        "ahead of time": 1,
        "too large": 0,
    }
    assert sum(report.alerts.values()) == 0
    found = {record.value: record.headers for record in records(spark, running, "detect-late.rejected")}
    assert set(found) == {late, b"not json", ahead, no_time}
    assert found[late]["penstock-error"].startswith("late: 2026-03-01T00:00:02.000+00:00 is before")
    assert found[late]["penstock-source-offset"] == "3"
    assert found[b"not json"]["penstock-error"].startswith("unreadable: ")
    assert found[ahead]["penstock-error"] == "ahead of time"
    assert report.watermark == "2026-03-01T00:15:40.000Z", "a time in 2099 has not moved it"


def test_no_record_can_stop_the_pipeline(spark: "SparkSession", running: Broker, tmp_path: Path) -> None:
    """Each of these once failed its batch, and so every run to come."""
    create(running, "detect-poison", 2)
    stream = StreamSpec("json", "card string, amount double, at bigint", time="at", lateness_ms=60_000)
    rules = DetectRules(stream, (RULES.rules[1], FAST._replace(key="key")))
    at = int(START.timestamp() * 1000)

    def made(amount: str, time_ms: int, card: str = "a") -> bytes:
        return b'{"card": "%s", "amount": %s, "at": %d}' % (card.encode(), amount.encode(), time_ms)

    huge, low, infinite = made("1e305", at), made("-1e305", at), made("1e999", at)
    never, before = made("1", 2**63 - 1), made("1", -(2**63))
    half = made("1", at, "\\ud800")
    much = [made("600", at)] * 2
    write(running, "detect-poison", [huge, low, infinite, never, before, half, *much])
    sound = made("1", at)
    # Keys that are no text, and then a time that no calendar has.
    for keys, modified_ms in (([b"\xff\xfe"] * 3, at + 1), ([None], -(10**16))):
        batches = encode(
            pa.array(keys, pa.binary()),
            pa.array([sound] * len(keys), pa.binary()),
            None,
            pa.array([modified_ms] * len(keys), pa.int64()),
            codec=Codec.NONE,
            batch_bytes_max=BATCH_BYTES_MAX,
        )
        with client_of(running) as client:
            client.produce(TopicPartition("detect-poison", 1), batches)
    report = detected(spark, settings(running, "detect-poison", tmp_path, rules=rules))
    assert (report.rows, report.lag, report.alerts) == (12, 0, {"much": 1, "fast": 1})
    found = records(spark, running, "detect-poison.rejected")
    reasons = Counter((each.value, each.headers["penstock-error"].partition(":")[0]) for each in found)
    assert reasons == Counter(
        {
            (huge, "too large"): 1,
            (low, "too large"): 1,
            (infinite, "unreadable"): 1,
            (never, "without time"): 1,
            (before, "without time"): 1,
            (half, "unreadable"): 1,
            (sound, "without time"): 1,
        }
    )
    assert {each["key"] for each in alerts(spark, running, "detect-poison")} == {"a", "0xfffe"}


def test_a_row_that_is_too_large_to_be_rejected_whole_is_cut(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    """A topic takes 1,048,588 bytes, and a rejected row has headers more than it came with."""
    create(running, "detect-large")
    large = b"no json" + bytes(1_048_000)
    values = pa.array([large], pa.binary())
    with client_of(running) as client:
        batches = encode(None, values, None, None, codec=Codec.NONE, batch_bytes_max=1_048_588)
        client.produce(TopicPartition("detect-large", 0), batches)
    write(running, "detect-large", [payment("a", 0)])
    wanted = settings(running, "detect-large", tmp_path)
    report = detected(spark, wanted)
    assert (report.rows, report.lag, report.rejected["unreadable"]) == (2, 0, 1)
    (found,) = records(spark, running, "detect-large.rejected")
    assert found.value == large[:65_536]
    assert found.headers["penstock-error"].startswith("unreadable: ")
    assert found.headers["penstock-source-offset"] == "0"
    assert found.headers["penstock-cut"] == f"key 0 bytes, value {len(large)} bytes"
    with (
        run_lock(wanted.checkpoint, "detection", ""),
        pytest.raises(CommandFailed, match="another run of this detection is under way"),
    ):
        detected(spark, wanted)


def test_sessions_end_when_the_watermark_has_passed_them(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "detect-session")
    rules = DetectRules(
        COLUMNS,
        (
            DetectRule(
                "trying", RuleKind.SESSION, 3, 30_000, key="card", where="amount < 2", lasting_ms=40_000
            ),
        ),
    )
    wanted = settings(running, "detect-session", tmp_path, rules=rules)
    long = [payment("a", second) for second in (0, 20, 45)]
    others = [payment("b", 0), payment("b", 40), payment("b", 80), payment("c", 1, 50.0), payment("c", 45, 1)]
    write(running, "detect-session", [*long, *others])
    assert sum(detected(spark, wanted).alerts.values()) == 0
    write(running, "detect-session", [payment("z", 500)])
    report = detected(spark, wanted)
    assert report.alerts == {"trying": 1}
    (alert,) = alerts(spark, running, "detect-session")
    assert (alert["kind"], alert["key"], alert["count"]) == ("session", "a", 3)
    assert [each["offset"] for each in alert["evidence"]] == [0, 1, 2]


def test_rules_without_a_schema_are_about_records(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "detect-raw")
    keys = pa.array([b"a", b"b", b"a", b"a", None], pa.binary())
    times = pa.array([1_000, 2_000, 3_000, 4_000, 4_500], pa.int64())
    batches = encode(keys, keys, None, times, codec=Codec.NONE, batch_bytes_max=BATCH_BYTES_MAX)
    with client_of(running) as client:
        client.produce(TopicPartition("detect-raw", 0), batches)
    rules = DetectRules(StreamSpec(), (FAST._replace(key="key"),))
    report = detected(spark, settings(running, "detect-raw", tmp_path, rules=rules))
    assert report.alerts == {"fast": 1}


def test_what_is_wrong_with_a_condition_is_told_with_the_name_of_its_rule(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "detect-condition")
    for where, sentence in (
        ("amuont > 1", "rule fast: where: .*amuont"),
        ("amount >", "rule fast: where: .*[Ss]yntax error"),
        ("amount + 1", "rule fast: where is double; give a condition"),
    ):
        rules = DetectRules(COLUMNS, (FAST._replace(where=where),))
        with pytest.raises(CommandFailed, match=sentence):
            detected(spark, settings(running, "detect-condition", tmp_path, rules=rules))
    rules = DetectRules(COLUMNS._replace(time="card"), (FAST,))
    with pytest.raises(CommandFailed, match="column card is string; it must be a timestamp, or a bigint"):
        detected(spark, settings(running, "detect-condition", tmp_path, rules=rules))


def test_what_is_wrong_is_said_before_spark_starts(running: Broker, tmp_path: Path) -> None:
    create(running, "detect-wrong")
    create(running, "detect-other")
    wanted = settings(running, "detect-wrong", tmp_path)
    with pytest.raises(CommandFailed, match="there is no topic nowhere"):
        check(wanted._replace(topic="nowhere"))
    with pytest.raises(CommandFailed, match="name three topics"):
        check(wanted._replace(alerts="detect-wrong"))
    with pytest.raises(CommandFailed, match="rule fast, key: there is no column cart: did you mean card"):
        check(wanted._replace(rules=DetectRules(COLUMNS, (FAST._replace(key="cart"),))))
    check(wanted)
    with pytest.raises(CommandFailed, match="was made for topic detect-wrong, not for topic detect-other"):
        check(wanted._replace(topic="detect-other"))


def test_the_command_says_what_is_wrong_in_one_sentence(running: Broker, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        words = ("pipeline", "detect", "--bootstrap", running.bootstrap, "--to", "detect-alerts")
        done = penstock(*words, "--checkpoint", str(tmp_path / "checkpoint"), *arguments)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "Traceback" not in done.stderr
        return done.stderr

    example = str(EXAMPLE / "payments.toml")
    assert "there is no topic nowhere" in run("--topic", "nowhere", "--rules", example)
    (tmp_path / "rules.toml").write_text("[[rule]]\nname = 'a'\nkind = 'count'\nwithin = '1m'\n")
    assert "rule a: at_least is None" in run("--topic", "nowhere", "--rules", str(tmp_path / "rules.toml"))
