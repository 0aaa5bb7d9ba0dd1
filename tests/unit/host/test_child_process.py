"""A process that answers questions, and ends when nobody can ask any more."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.child_process import ChildProcess, ChildProcessEnded

ECHO = """
import os, time
from penstock.host.child_process import serve_requests

def answer(question: bytes) -> bytes:
    if question == b"die":
        os._exit(3)
    if question == b"nice":
        return b"%d" % os.nice(0)
    if question == b"forever":
        while True:
            time.sleep(0.01)
    return question[::-1]

if __name__ == "__main__":
    serve_requests(answer, niceness=7)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    (tmp_path / "echo_child.py").write_text(ECHO)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    process = ChildProcess("echo_child")
    yield process
    process.stop()


def test_it_is_started_by_the_first_question_and_answers_every_one(child: ChildProcess) -> None:
    assert child.pid is None
    assert child.send_request(b"abc") == b"cba"
    pid = child.pid
    assert child.send_request(b"x" * 100_000) == b"x" * 100_000
    assert child.pid == pid


def test_it_lets_others_go_first(child: ChildProcess) -> None:
    assert int(child.send_request(b"nice")) >= os.nice(0) + 7 or int(child.send_request(b"nice")) == 19


def test_one_that_died_is_said_and_the_next_question_starts_another(child: ChildProcess) -> None:
    with pytest.raises(ChildProcessEnded, match="echo_child ended without an answer"):
        child.send_request(b"die")
    assert child.pid is None
    assert child.send_request(b"abc") == b"cba"


def test_killing_it_ends_the_wait_for_its_answer(child: ChildProcess) -> None:
    child.send_request(b"begin")
    threading.Timer(0.2, child.kill).start()
    with pytest.raises(ChildProcessEnded):
        child.send_request(b"forever")


def test_it_does_not_outlive_a_parent_that_is_killed_in_the_middle_of_an_answer(
    child: ChildProcess, tmp_path: Path
) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from penstock.host.child_process import ChildProcess\n"
            "child = ChildProcess('echo_child')\n"
            "child.send_request(b'begin')\n"
            "print(child.pid, flush=True)\n"
            "child.send_request(b'forever')\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.01)
