"""The broker under test: `penstock serve` in a process of its own, with a plain and a TLS listener.

Rule 1: one broker for each run, on free ports, with a data directory that is removed afterwards.
Rule 2: the broker is stopped by its process handle, however the run ends.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tools.differential.broker import LOOPBACK, BrokerFailed, child_process, tail

_READY = re.compile(r"^penstock ready kafka=(?P<kafka>\S+),(?P<tls>\S+) http=", re.MULTILINE)
_START_S_MAX = 20
_START_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunningBroker:
    kafka: str
    """host:port of the plain listener."""
    tls: str
    certificates: Path
    """Folder with ca.crt of the certificate authority, and client.crt and client.key signed by it."""
    output: Path
    process: subprocess.Popen[bytes]

    def is_running(self) -> bool:
        return self.process.poll() is None


@contextmanager
def running_broker(home: Path, settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    """Run a broker and yield when it is ready. `home` is an empty folder for all its files."""
    certificates = home / "certificates"
    # Advertised as well, though nothing differs: suites ask where that setting comes from.
    listeners = f"PLAINTEXT://{LOOPBACK}:0,SSL://{LOOPBACK}:0"
    all_settings = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "auto.create.topics.enable": "true",
        **_write_certificates(certificates),
        **settings,
    }
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(home / "data")]
    command += ["--http", f"{LOOPBACK}:0"]
    for key, value in all_settings.items():
        command += ["--set", f"{key}={value}"]
    output = home / "broker.log"
    with child_process(command, output) as process:
        deadline = time.monotonic() + _START_S_MAX
        while (ready := _READY.search(output.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BrokerFailed(f"Penstock did not start\n{tail(output)}")
            time.sleep(_START_POLL_S)
        yield RunningBroker(ready["kafka"], ready["tls"], certificates, output, process)


def _write_certificates(folder: Path) -> dict[str, str]:
    """Create certificates for one run. Returns the broker settings that use them."""
    folder.mkdir(parents=True)
    authority = trustme.CA()
    # Each project has a name of its own for the same file.
    for name in ("ca.crt", "ca-cert"):
        authority.cert_pem.write_to_path(str(folder / name))
    broker = authority.issue_cert(LOOPBACK, "localhost")
    broker.private_key_and_cert_chain_pem.write_to_path(str(folder / "broker.pem"))
    client = authority.issue_cert("client.example.org")
    client.private_key_pem.write_to_path(str(folder / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(folder / "client.crt"))
    return {
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.location": str(folder / "ca.crt"),
        "ssl.client.auth": "requested",
    }
