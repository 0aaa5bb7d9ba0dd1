"""What deploy/ holds can be read, and starts brokers with settings that are right."""

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def check_config(arguments: list[str], folder: Path, settings: str) -> None:
    """As the broker would see them, but for the places of its data and of its settings."""
    assert arguments[0] == "serve"
    where = arguments.index("--data-dir") + 1
    arguments[where] = str(folder / Path(arguments[where]).name)
    if "--config" in arguments:
        file = folder / "settings.toml"
        file.write_text(settings)
        arguments[arguments.index("--config") + 1] = str(file)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "check-config", *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_of_systemd_starts_a_broker(path: Path, tmp_path: Path) -> None:
    service = unit(path)["Service"]
    program, *arguments = service["ExecStart"].replace("%i", "1").split()
    assert program == "/opt/penstock/bin/penstock"
    check_config(arguments, tmp_path, (DEPLOY / "systemd" / "broker.toml.example").read_text())
    assert int(service["TimeoutStopSec"]) >= 45, "brokers hand over what they lead first"
    assert unit(path)["Install"]["WantedBy"] == "multi-user.target"


def test_what_may_hold_a_password_is_in_a_file_that_others_cannot_read() -> None:
    """Everybody on a machine can read the command lines of all its processes."""
    (name,) = [path.name for path in (DEPLOY / "systemd").glob("*.example")]
    assert "metadata.store" in (DEPLOY / "systemd" / name).read_text()
    assert (
        f"install -m 0640 -g penstock deploy/systemd/{name} /etc/penstock/"
        in (DEPLOY / "README.md").read_text()
    )
    for path in (*UNITS, DEPLOY / "kubernetes" / "penstock.yaml"):
        assert "--metadata" not in path.read_text()


def test_the_manifest_of_kubernetes_starts_brokers(tmp_path: Path) -> None:
    documents = {found["kind"]: found for found in map(read_yaml, manifest())}
    service, stateful = documents["Service"]["spec"], documents["StatefulSet"]["spec"]
    assert service["clusterIP"] == "None"
    assert stateful["serviceName"] == documents["Service"]["metadata"]["name"]
    template = stateful["template"]
    for spec in (service["selector"], stateful["selector"]["matchLabels"]):
        assert spec == template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    probe = container["readinessProbe"]["httpGet"]
    assert (probe["path"], probe["port"]) == ("/health/ready", "http")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (claim,) = stateful["volumeClaimTemplates"]
    (volume,) = template["spec"]["volumes"]
    assert {claim["metadata"]["name"], volume["name"]} == mounts.keys()
    secret = documents["Secret"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (settings,) = secret["stringData"]

    shell, option, script = container["command"]
    values = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    values |= {"POD_NAME": "penstock-2", "POD_NAMESPACE": "orders", "NODE_NAME": "worker-7"}
    shim = tmp_path / "penstock"
    shim.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    shim.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, option, script], env={**values, "PATH": path}, capture_output=True, text=True, check=True
    )
    arguments = done.stdout.splitlines()
    said = dict(zip(arguments[1:-1:2], arguments[2::2], strict=True))
    assert said["--node-id"] == "2"
    assert said["--advertised"] == f"penstock-2.penstock.orders.svc:{ports['kafka']}"
    assert said["--http"].endswith(f":{ports['http']}")
    assert said["--data-dir"].startswith(mounts[claim["metadata"]["name"]])
    assert said["--config"] == f"{mounts[volume['name']]}/{settings}"
    check_config(arguments, tmp_path, secret["stringData"][settings])


# YAML, as far as the manifest goes: nested maps and lists of plain or quoted words.


def manifest() -> list[list[str]]:
    text = (DEPLOY / "kubernetes" / "penstock.yaml").read_text()
    documents = re.split(r"^---$", text, flags=re.MULTILINE)
    return [
        [line for line in document.splitlines() if line.strip() and not line.strip().startswith("#")]
        for document in documents
    ]


def read_yaml(lines: list[str]) -> Any:
    """Consumes the lines of one value."""
    depth = indent(lines[0])
    if lines[0].strip().startswith("- "):
        items = []
        while lines and indent(lines[0]) == depth and lines[0].strip().startswith("- "):
            rest = lines[0].strip().removeprefix("- ")
            if re.match(r"\w+:( |$)", rest):
                lines[0] = " " * (depth + 2) + rest
                items.append(read_yaml(lines))
            else:
                items.append(scalar(rest))
                lines.pop(0)
        return items
    found: dict[str, Any] = {}
    while lines and indent(lines[0]) == depth:
        key, colon, rest = lines.pop(0).strip().partition(":")
        assert colon, f"{key!r} is no YAML that can be read here"
        assert key not in found
        found[key] = scalar(rest.strip()) if rest.strip() else read_yaml(lines)
    assert not lines or indent(lines[0]) < depth, lines[0]
    return found


def indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def scalar(text: str) -> Any:
    if text.isdigit():
        return int(text)
    if text in ("true", "false"):
        return text == "true"
    if text[0] in "'\"":
        (word,) = shlex.split(text) if text[0] == '"' else [text[1:-1].replace("''", "'")]
        return word
    assert not re.search(r": | #|[\[\]{}&*!|>%@`]", text), f"{text!r} is no plain word"
    return text
