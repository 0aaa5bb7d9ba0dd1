"""Stops a process with SIGSTOP, and waits until it has stopped.

The signal is delivered later: until all threads of the process have stopped, it may answer one more request.
"""

import os
import signal
import sys
import time
from pathlib import Path

STOPS_WITHIN_S = 5.0
STOPPED = frozenset("Tt")


def stop_process(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    if sys.platform != "linux":
        return  # without /proc the moment is not known
    deadline = time.monotonic() + STOPS_WITHIN_S
    while not all(_state(thread) in STOPPED for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"  # this thread has ended
