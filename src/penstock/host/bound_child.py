"""Launcher of a child process that ends with its parent, even if the parent is killed.

    python -m penstock.host.bound_child PARENT COMMAND...

becomes COMMAND, and the kernel kills it when process PARENT, which started it, has ended. Only Linux does
that; on other systems COMMAND runs all the same, and only its parent can end it.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command_of(arguments: list[str]) -> list[str]:
    """Command line that starts `arguments` bound to this process."""
    return [sys.executable, "-m", "penstock.host.bound_child", str(os.getpid()), *arguments]


def main(arguments: list[str]) -> None:
    parent, *command = arguments
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError("the kernel does not end processes with their parent")
        if os.getppid() != int(parent):  # the parent ended before prctl took effect
            return
    os.execv(command[0], command)  # noqa: S606 (the command comes from the process that started this one)


if __name__ == "__main__":
    main(sys.argv[1:])
