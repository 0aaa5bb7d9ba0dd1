"""The commands as a person runs them, against a real broker.

Rule: a bad case ends with a sentence on stderr and a code that is not 0, never with a traceback.
"""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from penstock.cli.main import main
from tests.integration.broker_process import BrokerProcess, eventually, serving

SECONDS_MAX = 30.0
FOR_EVER = ("--set", "retention.ms=-1")
"""For records that carry an old time: retention would remove them."""
QUICK = ("--acks", "1")
"""librdkafka takes half a second to get the id that --acks all asks for."""
HOST = "127.0.0.1"


# As from a terminal, also where the tests themselves run in the background with interrupts ignored.
WITH_INTERRUPT_HANDLER = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "runpy.run_module('penstock', run_name='__main__', alter_sys=True)"
)


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Cli:
    """Commands run in this process where they can: an interpreter of its own costs each of them more
    than the command does."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """In a process of its own, for signals and pipes."""
        return subprocess.Popen(
            [sys.executable, "-c", WITH_INTERRUPT_HANDLER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PENSTOCK_BOOTSTRAP": self._bootstrap},
        )

    def run(self, *arguments: str, given: str = "") -> Done:
        """Anything but a deliberate end would come out of here as the exception it is."""
        streams = [
            io.TextIOWrapper(io.BytesIO(given.encode())),
            *(io.TextIOWrapper(io.BytesIO()) for _ in "12"),
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_BOOTSTRAP", self._bootstrap)
            patch.setattr(sys, "argv", ["penstock", *arguments])
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as end:
                main()
        _, out, err = map(written, streams)
        code = end.value.code
        # What the interpreter does with a text: print it to stderr and exit with 1.
        return Done(1, out, f"{err}{code}\n") if isinstance(code, str) else Done(int(code or 0), out, err)

    def ok(self, *arguments: str, given: str = "") -> str:
        done = self.run(*arguments, given=given)
        assert done.code == 0, done.err
        return done.out

    def refused(self, *arguments: str, given: str = "") -> str:
        done = self.run(*arguments, given=given)
        assert done.code == 1, done
        assert done.err.splitlines()[-1].endswith("."), "it is a sentence"
        return done.err


def written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


@pytest.fixture
def cli(bootstrap: str) -> Cli:
    return Cli(bootstrap)


def test_a_topic_from_its_creation_to_its_end(cli: Cli, topic: str) -> None:
    created = json.loads(
        cli.ok("topic", "create", topic, "--partitions", "3", "--set", "retention.ms=86400000", "--json")
    )
    assert (created["partitions"], created["replication_factor"], created["created"]) == (3, 1, True)
    assert "exists already" in cli.refused("topic", "create", topic)
    assert "exists already" in cli.ok("topic", "create", topic, "--if-not-exists")

    cli.ok(
        "topic",
        "alter",
        topic,
        "--partitions",
        "4",
        "--set",
        "max.message.bytes=5000",
        "--unset",
        "retention.ms",
    )
    (described,) = json.loads(cli.ok("topic", "describe", topic, "--json"))
    assert described["id"] == created["id"]
    assert [entry["partition"] for entry in described["partitions"]] == [0, 1, 2, 3]
    assert described["partitions"][0] | {"leader_epoch": 0} == {
        "partition": 0, "leader": 1, "leader_epoch": 0, "replicas": [1], "in_sync": [1]
    }  # fmt: skip
    assert described["settings"] == {"max.message.bytes": {"value": "5000", "is_override": True}}
    assert "retention.ms=604800000  (default)" in cli.ok("topic", "describe", topic, "--all-settings")
    assert f"{topic} " in cli.ok("topic", "list")

    assert "give --yes" in cli.refused("topic", "delete", topic)
    assert cli.ok("topic", "delete", topic, "--yes") == f"deleted topic {topic}\n"
    assert topic not in [entry["name"] for entry in json.loads(cli.ok("topic", "list", "--json"))]


def test_what_the_broker_refuses_is_said_in_its_words(cli: Cli, topic: str) -> None:
    assert "retention.ms = 'soon'" in cli.refused("topic", "create", topic, "--set", "retention.ms=soon")
    unknown = cli.refused("topic", "create", topic, "--set", "retention=1")
    assert "unknown setting 'retention'" in unknown
    assert "`penstock topic describe NAME --all-settings` lists the settings of a topic." in unknown
    assert "A topic has at most 10000 partitions; 100000 were asked for." in cli.refused(
        "topic", "create", topic, "--partitions", "100000"
    )
    assert "Replication factor 3 needs 3 brokers; 1 is registered." in cli.refused(
        "topic", "create", topic, "--replication-factor", "3"
    )
    assert topic not in cli.ok("topic", "list")


def test_a_refused_alteration_changes_nothing_of_the_topic(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic, "--partitions", "2")

    refusal = cli.refused("topic", "alter", topic, "--set", "retention.ms=5000", "--partitions", "1")

    assert "not be an increase" in refusal
    assert "settings: none of its own" in cli.ok("topic", "describe", topic)


def test_unsetting_says_what_was_not_set_and_refuses_what_is_no_setting(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic, "--set", "retention.ms=5000000")

    refusal = cli.refused("topic", "alter", topic, "--unset", "retention.ms", "--unset", "retention.mss")
    assert "unknown setting 'retention.mss'; did you mean 'retention.ms'? `penstock topic" in refusal
    assert "retention.ms=5000000" in cli.ok("topic", "describe", topic)

    said = cli.ok("topic", "alter", topic, "--unset", "retention.ms", "--unset", "segment.bytes")
    assert said == f"segment.bytes was not set for topic {topic}\nchanged topic {topic}\n"
    assert (
        cli.ok("topic", "alter", topic, "--unset", "retention.ms")
        == f"retention.ms was not set for topic {topic}\n"
    )


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("topic offsets no-such", "Create it with"),
        ("topic alter no-such --partitions 2", "Create it with"),
        ("consume no-such", "Create it with"),
        ("topic describe no-such", "`penstock topic list` shows"),
        ("topic delete no-such --yes", "`penstock topic list` shows"),
        ("topic truncate no-such --yes", "`penstock topic list` shows"),
        ("log-dirs no-such", "`penstock topic list` shows"),
    ],
)
def test_a_topic_that_does_not_exist_is_named(cli: Cli, command: str, remedy: str) -> None:
    assert f"topic no-such does not exist. {remedy}" in cli.refused(*command.split())


def test_lines_become_records_and_records_lines(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic)
    written = cli.run("produce", topic, given="one\n\nthree, é\n")
    assert written.code == 0
    assert written.err.startswith("3 records, 12 bytes in ")
    assert written.out == ""

    assert cli.ok("consume", topic) == "one\n\nthree, é\n"
    assert (
        cli.ok("consume", topic, "--from", "1", "--max", "1", "--format", "%t %p %o %v") == f"{topic} 0 1 \n"
    )
    assert cli.ok("consume", topic, "--from", "2", "--value-format", "hex") == "74687265652c20c3a9\n"
    assert cli.ok("consume", topic, "--from", "latest", "--until-end") == ""


def test_a_record_has_key_headers_partition_and_time(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic, "--partitions", "2", *FOR_EVER)
    cli.ok("produce", topic, *QUICK, "--key", "k", "--value", "v", "--header", "a=1", "--partition", "1")
    line = {"key_base64": "/w==", "value": None, "headers": [["a", "1"], ["a", None]], "partition": 0}
    cli.ok(
        "produce", topic, *QUICK, "--json", given=json.dumps(line | {"timestamp": 1_700_000_000_000}) + "\n"
    )

    (tombstone,) = map(
        json.loads, cli.ok("consume", topic, "--partition", "0", "--format", "json").splitlines()
    )
    assert tombstone == line | {"topic": topic, "offset": 0, "timestamp": 1_700_000_000_000}
    shown = cli.ok("consume", topic, "--partition", "1", "--format", "%k=%v %h")
    assert shown == "k=v a=1\n"


def test_keys_go_where_java_puts_them(cli: Cli, topic: str) -> None:
    """Places worked out with Kafka's own murmur2 partitioner for seven partitions."""
    cli.ok("topic", "create", topic, "--partitions", "7")
    keys = ["customer-1", "customer-2", "a", "é"]

    cli.ok(
        "produce",
        topic,
        "--key-separator",
        ":",
        "--compression",
        "zstd",
        given="".join(f"{k}:v\n" for k in keys),
    )

    places = dict(line.split() for line in cli.ok("consume", topic, "--format", "%k %p").splitlines())
    assert places == {key: str(java_partition(key.encode(), 7)) for key in keys}


def java_partition(key: bytes, partitions: int) -> int:
    """From kafka-python, which carries the algorithm of Kafka's clients."""
    from kafka.partitioner.default import murmur2

    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


def test_a_topic_is_copied_through_a_pipe(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic)
    cli.ok("produce", topic, *QUICK, "--key", "k", "--header", "h=1", given="1\n2\n")

    records = cli.ok("consume", topic, "--format", "json")
    cli.ok("produce", f"{topic}-copy", *QUICK, "--json", given=records)

    assert cli.ok("consume", f"{topic}-copy", "--format", "json").replace("-copy", "") == records


def test_a_copy_keeps_partitions_or_is_told_how_to(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic, "--partitions", "3")
    cli.ok("produce", topic, *QUICK, "--partition", "2", "--key", "k", given="1\n2\n")
    records = cli.ok("consume", topic, "--format", "json")
    cli.ok("topic", "create", f"{topic}-copy")

    refusal = cli.refused("produce", f"{topic}-copy", *QUICK, "--json", given=records)
    assert f"a record is for partition 2, and topic {topic}-copy has 1 partition. Give it more" in refusal
    assert f"`penstock topic alter {topic}-copy --partitions 3`" in refusal
    assert cli.ok("consume", f"{topic}-copy") == ""

    cli.ok("produce", f"{topic}-copy", *QUICK, "--json", "--ignore-partitions", given=records)
    assert cli.ok("consume", f"{topic}-copy", "--format", "%p %v") == "0 1\n0 2\n"
    cli.ok("topic", "alter", f"{topic}-copy", "--partitions", "3")
    cli.ok("produce", f"{topic}-copy", *QUICK, "--json", given=records)
    assert cli.ok("consume", f"{topic}-copy", "--partition", "2") == "1\n2\n"


def test_a_file_that_cannot_be_read_makes_no_topic(cli: Cli, topic: str, tmp_path: Path) -> None:
    for file, problem in (("absent.txt", "No such file"), ("", "Is a directory")):
        done = cli.run("produce", topic, "--file", str(tmp_path / file))
        assert (done.code, f"cannot read {tmp_path / file}: {problem}" in done.err) == (2, True)
    assert topic not in cli.ok("topic", "list")


def test_a_topic_that_is_made_by_writing_is_told(cli: Cli, topic: str) -> None:
    told = f"created topic {topic} (1 partition, replication factor 1)\n"
    assert cli.run("produce", topic, *QUICK, "--value", "v").err.startswith(told + "1 record, ")
    assert cli.run("produce", topic, *QUICK, "--value", "v").err.startswith("1 record, ")
    assert cli.run("produce", f"{topic}-2", *QUICK, given="a\nb\n").err.startswith(f"created topic {topic}-2")
    assert cli.ok("consume", f"{topic}-2") == "a\nb\n"


def test_what_cannot_be_written_makes_no_topic(cli: Cli, topic: str) -> None:
    said = cli.refused("produce", topic, "--value", "v", "--partition", "5")
    assert f"topic {topic} does not exist, and would be created without partition 5. Create it" in said
    said = cli.refused("produce", topic, "--key-separator", ":", given="no key\n")
    assert said == "penstock: line 1 has no key: ':' does not occur in it.\n"
    assert "line 1 is not a record" in cli.refused("produce", topic, "--json", given="{}\n")
    assert topic not in cli.ok("topic", "list")


def test_a_record_that_cannot_be_stored_does_not_stop_the_others(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic, "--set", "max.message.bytes=1000")

    done = cli.run("produce", topic, given="small\n" + "x" * 5000 + "\nsmall too\n")

    assert done.code == 1
    assert f"1 record not stored: larger than max.message.bytes of topic {topic} allows; raise it" in done.err
    assert f"`penstock topic alter {topic} --set max.message.bytes=BYTES`." in done.err
    assert cli.ok("consume", topic) == "small\nsmall too\n"


def test_bad_lines_are_named_by_number(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic)

    assert "line 2 is not a record: it has no value" in cli.refused(
        "produce", topic, "--json", given='{"value":"1"}\n{"key":"k"}\n'
    )
    torn = '{"value":"1","headers":{"\\ud800":"x"}}\n'
    assert "half of a surrogate pair" in cli.refused("produce", topic, "--json", given=torn)
    assert "line 1 has no key" in cli.refused("produce", topic, "--key-separator", ":", given="x\n")
    assert f"topic {topic} has no partition 5: it has only partition 0." in cli.refused(
        "produce", topic, "--partition", "5", "--value", "x"
    )
    assert cli.ok("consume", topic) == "1\n"


def test_offsets_and_truncation(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic, "--partitions", "2", *FOR_EVER)
    lines = [json.dumps({"value": "v", "partition": 0, "timestamp": 1_700_000_000_000 + i}) for i in range(5)]
    cli.ok("produce", topic, *QUICK, "--json", given="\n".join(lines))

    found = json.loads(cli.ok("topic", "offsets", topic, "--time", "2023-11-14T22:13:20.003Z", "--json"))
    assert found["count"] == 5
    first = {"partition": 0, "start": 0, "end": 5, "count": 5}
    assert found["partitions"][0] == first | {"offset": 3, "timestamp": 1_700_000_000_003, "since": 2}
    assert found["partitions"][1]["offset"] is None
    assert cli.ok("consume", topic, "--from", "2023-11-14T22:13:20.004Z", "--format", "%o") == "4\n"

    cli.ok("topic", "truncate", topic, "--partition", "0", "--before", "2", "--yes")
    assert cli.ok("consume", topic, "--from", "0", "--format", "%o") == "2\n3\n4\n"
    assert "ends at offset 5, before 9" in cli.refused(
        "topic", "truncate", topic, "--partition", "0", "--before", "9", "--yes"
    )
    assert "give --yes" in cli.refused("topic", "truncate", topic)
    cli.ok("topic", "truncate", topic, "--yes")
    assert json.loads(cli.ok("topic", "offsets", topic, "--json"))["count"] == 0


def test_following_prints_what_comes_and_ends_with_ctrl_c(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic)
    cli.ok("produce", topic, *QUICK, "--value", "before")
    process = cli.start("consume", topic, "--follow")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        cli.ok("produce", topic, *QUICK, "--value", "after")
        assert process.stdout.readline() == "after\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, "", "")


def test_following_survives_the_loss_of_its_broker(own_broker: BrokerProcess, topic: str) -> None:
    cli = Cli(own_broker.bootstrap)
    cli.ok("produce", topic, *QUICK, "--value", "before")
    process = cli.start("consume", topic, "--follow")
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "before\n"
        own_broker.kill()
        assert "connection to the broker is lost; trying again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_the_command_quietly(cli: Cli, topic: str) -> None:
    cli.ok("topic", "create", topic)
    cli.ok("produce", topic, *QUICK, given="".join(f"{number}\n" for number in range(50_000)))
    process = cli.start("consume", topic)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr is not None
        with process.stderr:
            assert process.stderr.read() == ""
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()


def test_log_dirs_shows_what_is_on_disk(cli: Cli, shared_broker: BrokerProcess, topic: str) -> None:
    cli.ok("topic", "create", topic, "--partitions", "2")
    cli.ok("produce", topic, *QUICK, "--partition", "1", given="x" * 1000 + "\n")

    (directory,) = json.loads(cli.ok("log-dirs", topic, "--json"))

    assert directory["path"].startswith(str(shared_broker.data_dir))
    assert [(size["partition"], size["bytes"] > 1000) for size in directory["partitions"]] == [
        (1, True),
        (0, False),
    ]
    assert 0 < directory["usable_bytes"] < directory["total_bytes"]
    assert "on this disk are free" in cli.ok("log-dirs")


def test_the_files_of_a_running_broker_can_be_verified(
    cli: Cli, shared_broker: BrokerProcess, topic: str
) -> None:
    cli.ok("topic", "create", topic)
    cli.ok("produce", topic, *QUICK, "--key", "k", "--compression", "lz4", given="1\n2\n")
    folder = shared_broker.data_dir / "logs" / f"{topic}-0"
    eventually(lambda: list(folder.glob("*.snapshot")), seconds_max=15)

    assert "ok, 2 records" in cli.ok("dump-log", str(folder), "--verify")
    log = folder / "00000000000000000000.log"
    assert "value '2'" in cli.ok("dump-log", str(log), "--records")


def test_a_broker_that_is_not_there_is_told_at_once(cli: Cli, shared_broker: BrokerProcess) -> None:
    started = time.monotonic()
    refusal = cli.refused("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert (
        "cannot reach a broker at 127.0.0.1:1: nothing listens there. Start one with `penstock serve`"
        in refusal
    )
    assert time.monotonic() - started < 5
    assert "not the one for HTTP" in cli.refused("consume", "x", "--bootstrap", shared_broker.http)
    several = cli.refused("topic", "list", "--bootstrap", "127.0.0.1:1,no-such-host.invalid:2")
    assert "cannot reach a broker at 127.0.0.1:1: nothing listens there" in several
    assert "cannot reach a broker at no-such-host.invalid:2: no such host is known" in several
    alike = cli.refused("topic", "list", "--bootstrap", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    assert alike.count("nothing listens there.") == 3
    assert alike.count("Start one with `penstock serve`.") == 1
    # The first of several need not be there.
    cli.ok("topic", "list", "--bootstrap", f"127.0.0.1:1,{shared_broker.bootstrap}")


def test_a_broker_that_is_silent_is_given_up(cli: Cli) -> None:
    import socket

    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        refusal = cli.refused("topic", "list", "--bootstrap", address, "--timeout", "0.3")
    assert f"cannot reach a broker at {address}: no answer within 0.3 s" in refusal


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["topic", "list", "--bootstrap", "nowhere"], "'nowhere' is not host:port"),
        (["topic", "list", "--bootstrap", "h:70000"], "not host:port, with a port from 1 to 65535"),
        (["topic", "create", "x", "--set", "a"], "'a' is not key=value"),
        (["topic", "alter", "x"], "nothing to change"),
        (["topic", "truncate", "x", "--before", "noon"], "neither an offset nor latest"),
        (["produce", "x", "--value", "v", "--json"], "leave out --file, --json"),
        (["produce", "x", "--compression", "rar"], "rar"),
        (["consume", "x", "--from", "noon"], "is no place in a log"),
        (["consume", "x", "--format", "%q"], "%q means nothing"),
        (["consume", "x", "--protocol", "consumer"], "--protocol: only members of a group have one"),
        (["consume", "x", "--follow", "--until-end"], "choose --until-end or --follow"),
        (["topic", "list", "--tls-ca", "absent.pem"], "there is no file absent.pem"),
        (["topic", "list", "--tls-ca", "pyproject.toml"], "pyproject.toml is not a PEM file"),
        (["topic", "list", "--tls-cert", "pyproject.toml"], "pyproject.toml is not a PEM file"),
        (["topic", "list", "--timeout", "inf"], "'--timeout': it must be less than or equal to 86400"),
        (["topic", "list", "--timeout", "soon"], "'--timeout': it must be a number\n"),
        (["consume", "x", "--max", "many"], "'--max': it must be a whole number\n"),
        (["consume", "x", "--key-format", "octal"], "'octal' is not one of 'text', 'hex', 'base64'"),
        (["topic", "create", "not a name"], "'not a name' cannot be the name of a topic: use up to 249"),
        (["consume", ".."], "'..' cannot be the name of a topic"),
        (["produce", "x" * 250], "cannot be the name of a topic"),
        (["topic", "alter", "x", "--unset", ""], "'' is not the name of a setting"),
        (["topic", "offsets", "x", "--time", "noon"], "give milliseconds since 1970, a time"),
        (["dump-log", "no-such"], "there is no no-such"),
        (["topic", "create", "x", "--partitions", "100001"], "less than or equal to"),
        (["topic", "create", "x", "--replication-factor", "99999999999"], "less than or equal to"),
        (["topic", "alter", "x", "--partitions", "99999999999"], "less than or equal to"),
        (["topic", "create", ""], "cannot be empty"),
        (["topic", "create", "\udcff"], "it is not UTF-8"),
        (["log-dirs", "x", "\udcff"], "it is not UTF-8"),
        (["topic", "create", "x", "--set", "a\udcff=1"], "is not UTF-8"),
        (["topic", "create", "x", "--set", "retention.ms=\udcff"], "is not UTF-8"),
        (["produce", "x", "--value", "v", "--header", "a\udcff=1"], "is not UTF-8"),
        (["produce", "x", "--ignore-partitions"], "only lines of --json name partitions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_command_line_is_refused_before_anything_is_done(
    cli: Cli, command: list[str], problem: str
) -> None:
    done = cli.run(*command)

    assert done.code == 2
    assert problem in done.err
    assert "Input should" not in done.err
    assert "Value error" not in done.err


class TlsFiles(NamedTuple):
    authority: str
    other_authority: str
    broker: str
    client: str


@pytest.fixture
def tls_files(tmp_path: Path) -> TlsFiles:
    files = TlsFiles(*(str(tmp_path / f"{name}.pem") for name in TlsFiles._fields))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files.authority)
    trustme.CA().cert_pem.write_to_path(files.other_authority)
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(files.broker)
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(files.client)
    return files


@pytest.fixture
def tls_broker(tls_files: TlsFiles, tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "listeners": f"TLS://{HOST}:0",
        "ssl.keystore.location": tls_files.broker,
        "ssl.truststore.location": tls_files.authority,
        "ssl.client.auth": "required",
    }
    with serving(tmp_path / "data", settings=settings, addresses=("--http", f"{HOST}:0")) as broker:
        yield broker


def test_commands_connect_with_tls_and_a_certificate(tls_broker: BrokerProcess, tls_files: TlsFiles) -> None:
    cli = Cli(tls_broker.bootstrap)
    known = ("--tls-ca", tls_files.authority, "--tls-cert", tls_files.client, "--tls-key", tls_files.client)

    cli.ok("produce", "orders", *QUICK, "--value", "secret", *known)
    assert cli.ok("consume", "orders", *known) == "secret\n"

    strange = ("--tls-ca", tls_files.other_authority)
    assert "its certificate is not trusted" in cli.refused("topic", "list", *strange)
    assert "--tls-cert" in cli.refused("topic", "list", "--tls-ca", tls_files.authority)
    assert "--tls-ca" in cli.refused("topic", "list", "--timeout", "3")
