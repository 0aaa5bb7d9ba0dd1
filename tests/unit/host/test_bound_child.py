"""A process that ends with the one that started it."""

import os
import subprocess
import sys

import pytest

from penstock.host.bound_child import command_of

# Starts a process that sleeps, tells its id, and waits to be killed.
PARENT = """
import subprocess, sys
from penstock.host.bound_child import command_of

sleeper = "import time; print('here', flush=True); time.sleep(60)"
child = subprocess.Popen(command_of([sys.executable, "-c", sleeper]))
print(child.pid, flush=True)
child.wait()
"""


def test_the_process_becomes_the_command() -> None:
    done = subprocess.run(
        command_of([sys.executable, "-c", "import os; print(os.getpid(), os.getppid())"]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    pid, parent = map(int, done.stdout.split())
    assert pid != parent == os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does it, on Linux")
def test_it_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        lines.remove("here")
        parent.kill()
        assert parent.stdout.read() == ""  # both have ended: nobody holds the other end


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does it, on Linux")
def test_it_does_nothing_for_a_parent_that_is_gone_already() -> None:
    program, *words = command_of([sys.executable, "-c", "print('here')"])
    words[2] = "1"
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == ""
