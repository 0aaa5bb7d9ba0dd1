"""`penstock serve` as an operator meets it: starting, refusing to start, stopping."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.config.broker_settings import find_setting
from penstock.protocol.messages.fetch import FETCH
from tests.integration.broker_process import BrokerProcess, Finished, eventually, penstock, serving
from tests.integration.raw_client import (
    FETCH_VERSION,
    batch_of,
    connected,
    fetch_request,
)

STOP_SECONDS_MAX = 2.0
FREE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


COULD_NOT, WRONG_USE = 1, 2


def assert_refused(done: Finished, *words: str, exit_code: int = COULD_NOT) -> None:
    """One sentence for a person, and nothing that looks like a crash."""
    assert done.exit_code == exit_code, done
    assert done.stdout == ""
    assert done.stderr.startswith("penstock: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in {done.stderr!r}"


def test_the_ready_line_names_addresses_that_answer(own_broker: BrokerProcess) -> None:
    assert own_broker.stdout.startswith("penstock ready kafka=127.0.0.1:")
    with connected(own_broker.bootstrap) as client:
        client.create_topic("answers")
    assert own_broker.get("/health/live") == (200, '{"status": "live"}')
    status, body = own_broker.get("/health/ready")
    assert (status, json.loads(body)) == (200, {"status": "ready"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_promptly_and_cleanly_when_asked(own_broker: BrokerProcess, number: signal.Signals) -> None:
    with connected(own_broker.bootstrap) as client, connected(own_broker.bootstrap) as waiting:
        client.create_topic("kept")
        assert client.produce("kept", batch_of(b"one")).error_code == 0
        waiting.send(FETCH, FETCH_VERSION, fetch_request("kept", 1, max_wait_ms=60_000, min_bytes=1))

        asked_at = time.monotonic()
        exit_code = own_broker.stop(number)

        assert time.monotonic() - asked_at < STOP_SECONDS_MAX
        assert exit_code == 0
        assert client.is_closed_by_broker()
    assert "Traceback" not in own_broker.stderr
    assert [path for path in own_broker.data_dir.rglob("*") if path.suffix == ".tmp"] == []


def test_it_stops_promptly_although_a_client_does_not_take_its_replies(own_broker: BrokerProcess) -> None:
    with connected(own_broker.bootstrap) as reader:
        reader.create_topic("large")
        for _ in range(8):
            assert reader.produce("large", batch_of(os.urandom(900_000))).error_code == 0
        for _ in range(8):
            reader.send(FETCH, FETCH_VERSION, fetch_request("large", 0))

        asked_at = time.monotonic()
        exit_code = own_broker.stop()

        assert time.monotonic() - asked_at < STOP_SECONDS_MAX
        assert exit_code == 0
    assert "Traceback" not in own_broker.stderr


def test_a_second_broker_on_the_same_data_directory_is_refused(own_broker: BrokerProcess) -> None:
    done = penstock("serve", "--data-dir", str(own_broker.data_dir), *FREE)

    in_use = (
        f"in use by process {own_broker.pid}. Stop that process, or choose another folder with --data-dir."
    )
    assert_refused(done, str(own_broker.data_dir), in_use)
    assert own_broker.get("/health/ready")[0] == 200


def test_a_port_in_use_is_refused(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        kafka = penstock("serve", "--data-dir", str(data_dir), "--kafka", address, "--http", "127.0.0.1:0")
        http = penstock("serve", "--data-dir", str(data_dir), "--kafka", "127.0.0.1:0", "--http", address)

    assert_refused(
        kafka, f"cannot listen on {address} for listener PLAINTEXT: address already in use. Choose"
    )
    assert_refused(http, f"cannot listen on {address} for HTTP: address already in use. Choose")
    assert not data_dir.exists(), "nothing is made for a broker that cannot start"


def test_bad_settings_are_all_named_with_what_is_allowed(data_dir: Path) -> None:
    done = penstock(
        *("serve", "--data-dir", str(data_dir), "--set", "num.partitions=many"),
        *("--set", "log.flush.policy=sometimes", "--set", "num.partition=3"),
    )

    many = ("num.partitions", "'many'", "an integer from 1 to 10000")
    sometimes = ("log.flush.policy", "'sometimes'", "before_ack", "interval", "os")
    assert_refused(done, *many, *sometimes, "did you mean 'num.partitions'", exit_code=WRONG_USE)
    assert not data_dir.exists(), "nothing is made for a broker that cannot start"


def test_a_config_file_is_read_and_its_mistakes_are_named(data_dir: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('"num.partitions" = 3\n"listeners" = "PLAINTEXT://127.0.0.1:0"\n')
    bad.write_text('"num.partitions" = "lots"\n')

    refused = penstock("serve", "--config", str(bad), *FREE)
    assert_refused(refused, "num.partitions", "lots", "config file", exit_code=WRONG_USE)
    missing = penstock("serve", "--config", str(tmp_path / "missing.toml"), *FREE)
    assert_refused(missing, "missing.toml", "--config", exit_code=WRONG_USE)
    flags = ("--config", str(good))
    with (
        serving(data_dir, *flags, addresses=("--http", "127.0.0.1:0")) as broker,
        connected(broker.bootstrap) as client,
    ):
        client.create_topic("wide")
        assert client.fetch("wide", 0, partition=2).responses[0].partitions[0].error_code == 0


# What the file that comes with Kafka says, beside places and addresses.
AS_KAFKA_COMES = {
    "process.roles": "broker,controller",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "num.network.threads": 3,
    "num.io.threads": 8,
    "socket.send.buffer.bytes": 102400,
    "socket.receive.buffer.bytes": 102400,
    "socket.request.max.bytes": 104857600,
    "num.partitions": 1,
    "num.recovery.threads.per.data.dir": 1,
    "offsets.topic.replication.factor": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "log.retention.hours": 168,
    "log.segment.bytes": 1073741824,
    "log.retention.check.interval.ms": 300000,
}


def test_a_configuration_of_kafka_starts_the_broker_with_warnings(data_dir: Path) -> None:
    settings = {**AS_KAFKA_COMES, "message.max.bytes": 200_000_000}
    with serving(data_dir, settings=settings) as broker:
        warned = [line for line in broker.stderr.splitlines() if "config.warning" in line]
    names = {name for name in settings if any(name in line for line in warned)}
    without_effect = {name for name in AS_KAFKA_COMES if find_setting(name) is None}
    assert names == {*without_effect, "message.max.bytes", "socket.request.max.bytes"}
    assert len(warned) == len(without_effect) + 1


def test_an_address_that_no_client_could_use_is_refused(data_dir: Path) -> None:
    done = penstock(
        *("serve", "--data-dir", str(data_dir), "--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0"),
        "--insecure",
    )

    assert_refused(done, "0.0.0.0", "--advertised", exit_code=WRONG_USE)


def test_listening_beyond_this_machine_must_be_said_aloud(data_dir: Path) -> None:
    flags = ("--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0", "--advertised", "127.0.0.1")

    refused = penstock("serve", "--data-dir", str(data_dir), *flags)
    assert_refused(refused, "--insecure", exit_code=WRONG_USE)
    with serving(data_dir, "--insecure", addresses=flags) as broker:
        port = broker.bootstrap.rpartition(":")[2]
        with connected(f"127.0.0.1:{port}") as client:
            client.create_topic("reachable")


@pytest.mark.parametrize("given", ["file", "file/below"])
def test_a_data_directory_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path, given: str) -> None:
    (tmp_path / "file").write_text("")

    done = penstock("serve", "--data-dir", str(tmp_path / given), *FREE)

    sentence = f"{tmp_path / 'file'} is not a folder; choose one for the data with --data-dir"
    assert_refused(done, sentence, exit_code=WRONG_USE)


def test_an_http_host_that_does_not_exist_is_refused_in_a_sentence(data_dir: Path) -> None:
    flags = ("--kafka", "127.0.0.1:0", "--http", "no-such-host.invalid:0", "--insecure")

    done = penstock("serve", "--data-dir", str(data_dir), *flags)

    assert_refused(done, "no-such-host.invalid:0 for HTTP: no such host. Choose another address with --http")


def test_a_kafka_host_that_does_not_exist_is_refused_in_a_sentence(data_dir: Path) -> None:
    flags = ("--kafka", "no-such-host.invalid:0", "--http", "127.0.0.1:0", "--insecure")

    done = penstock("serve", "--data-dir", str(data_dir), *flags)

    assert_refused(
        done, "no-such-host.invalid:0 for listener PLAINTEXT: no such host. Choose another address"
    )
    assert not data_dir.exists()


def test_metadata_that_is_damaged_is_refused_with_what_to_do(data_dir: Path) -> None:
    with serving(data_dir) as broker:
        assert broker.stop() == 0
    (data_dir / "metadata.sqlite").write_bytes(b"garbage" * 1000)

    done = penstock("serve", "--data-dir", str(data_dir), *FREE)

    assert_refused(done, "metadata.sqlite is not a sound metadata store", "Restore it from a backup")


def test_no_file_of_a_data_directory_is_open_to_everybody(own_broker: BrokerProcess) -> None:
    with connected(own_broker.bootstrap) as client:
        client.create_topic("private")
        assert client.produce("private", batch_of(b"one")).error_code == 0

    paths = [own_broker.data_dir, *own_broker.data_dir.rglob("*")]
    assert len(paths) > 5
    assert [path for path in paths if path.stat().st_mode & 0o007] == []


def test_asked_to_stop_while_it_starts_it_ends_cleanly(data_dir: Path, tmp_path: Path) -> None:
    """The settings come through a pipe, so that it is held in its start for as long as the test wants."""
    pipe = tmp_path / "settings.toml"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(data_dir), "--config", str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        with pipe.open("w"):  # returns when it reads
            process.terminate()
            out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not data_dir.exists()


@pytest.mark.parametrize("target", ["/dev/full", "a pipe"])
def test_a_ready_line_that_cannot_be_written_ends_the_broker_in_a_sentence(
    data_dir: Path, target: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    if target != "a pipe":
        os.close(writing)
        writing = os.open(target, os.O_WRONLY)
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(data_dir), *FREE]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
    os.close(writing)

    assert done.returncode == 1
    assert done.stderr.startswith("penstock: cannot write the ready line to stdout: ")
    assert done.stderr.count("\n") == 1
    assert (data_dir / "clean-shutdown").exists()


def test_it_serves_and_stops_cleanly_with_its_standard_streams_closed(data_dir: Path) -> None:
    command = (
        f'exec "{sys.executable}" -m penstock serve --data-dir "{data_dir}" {" ".join(FREE)} <&- >&- 2>&-'
    )
    process = subprocess.Popen(["/bin/sh", "-c", command])
    try:
        lock = data_dir / ".lock"
        eventually(lambda: lock.exists() and (data_dir / "metadata.sqlite-wal").exists())
        process.terminate()
        assert process.wait(STOP_SECONDS_MAX * 5) == 0
    finally:
        process.kill()
        process.wait()
    assert (data_dir / "clean-shutdown").exists()


def test_an_http_side_that_cannot_be_loaded_is_told_to_those_who_ask(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "aiohttp.py").write_text("raise ImportError('aiohttp is broken')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'shadow'}:{os.environ.get('PYTHONPATH', '')}")

    with serving(data_dir) as broker:
        status, body = broker.get("/health/ready")
        assert status == 503
        assert json.loads(body)["status"] == "not ready"
        assert "aiohttp is broken" in json.loads(body)["reason"]
        assert broker.get("/health/live") == (200, '{"status": "live"}')
        with socket.create_connection(broker.http.split(":")) as silent:  # type: ignore[arg-type]
            silent.sendall(b"GET " + b"x" * 20_000)
            assert broker.get("/metrics")[0] == 503
        assert broker.stop() == 0
        (line,) = (line for line in broker.stderr.splitlines() if "http.failed" in line)
        assert "aiohttp is broken" in line
        assert "Traceback" not in broker.stderr


def test_log_lines_are_one_event_each(own_broker: BrokerProcess) -> None:
    with connected(own_broker.bootstrap) as client:
        client.socket.sendall(b"\x7f\xff\xff\xff")
        assert client.is_closed_by_broker()
    assert own_broker.stop() == 0

    lines = own_broker.stderr.splitlines()
    assert any("connection.rejected" in line for line in lines), lines
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (INFO |WARN |ERROR) [a-z._]+( \w+=.*)?$", line), line
