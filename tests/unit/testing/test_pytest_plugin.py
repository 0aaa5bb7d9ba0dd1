"""The plugin in a pytest run of its own, as it is in the environments of others."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
    import socket

    def connect(broker):
        host, _, port = broker.bootstrap.rpartition(":")
        socket.create_connection((host, int(port))).close()

    def test_first(penstock_broker, penstock_session_broker):
        connect(penstock_broker)
        connect(penstock_session_broker)
        seen.update(own=penstock_broker.data_dir, shared=penstock_session_broker.data_dir)

    def test_second(penstock_broker, penstock_session_broker):
        assert penstock_broker.data_dir != seen["own"]
        assert penstock_session_broker.data_dir == seen["shared"]
        assert not seen["own"].exists()

    seen = {}
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_fixtures_are_there_and_no_warning_is_raised(tmp_path: Path) -> None:
    (tmp_path / "test_of_a_user.py").write_text("\n".join(line[4:] for line in TESTS.splitlines()))

    # pytest-asyncio warns by itself when it is not configured.
    done = run(tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("costly", ["penstock.broker", "penstock.protocol", "msgspec", "uvloop", "aiohttp"])
def test_loading_the_plugin_imports_nothing_costly(tmp_path: Path, costly: str) -> None:
    look = f"import sys, penstock.testing.plugin; sys.exit({costly!r} in sys.modules)"

    assert run(tmp_path, "-c", look).returncode == 0
