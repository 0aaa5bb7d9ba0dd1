"""A process that ends with the one that started it, also if that is killed.

    python -m penstock.host.bound_child PARENT COMMAND...

becomes COMMAND, and the kernel kills it when process PARENT, which started it, is gone. That is Linux's
to do; elsewhere COMMAND is run all the same, and only whoever started it can end it.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command_of(arguments: list[str]) -> list[str]:
    """What to start for `arguments` to be bound to this process."""
    return [sys.executable, "-m", "penstock.host.bound_child", str(os.getpid()), *arguments]


def main(arguments: list[str]) -> None:
    parent, *command = arguments
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError("the kernel does not end processes with their parent")
        if os.getppid() != int(parent):  # it ended before the kernel knew
            return
    os.execv(command[0], command)  # noqa: S606 (of whoever started us)


if __name__ == "__main__":
    main(sys.argv[1:])
