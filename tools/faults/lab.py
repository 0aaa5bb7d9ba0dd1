"""What a cluster under faults stands on: machines with a disk each, and what can be done to them.

Two kinds of lab do the same things: namespaces of the kernel (`machines`), and proxies between the processes
where namespaces are not to be had (`proxies`). What one of them cannot do it names, with the reason, and then
that is reported as not tried.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

PR_SET_PDEATHSIG: Final = 1
SLOW_LATENCY_S: Final = 0.15
"""In each direction."""
SLOW_BYTES_PER_S: Final = 1_000_000


class UnsupportedHost(Exception):
    """This host does not let us. The message says what is missing."""


class Ability(StrEnum):
    DISK_FULL = "disk full"
    POWER_LOSS = "power loss"
    SLOW_LINK = "slow link"
    RESET = "connections reset"


class Disk(Protocol):
    path: Path

    def fill(self) -> None: ...

    def free(self) -> None: ...

    def lose_power(self) -> None:
        """Whoever wrote to it is dead already. What was not synced is gone."""

    def restore_power(self) -> None: ...

    def remove(self) -> None: ...


class Machine(Protocol):
    number: int
    name: str

    @property
    def disk(self) -> Disk: ...

    @property
    def address(self) -> str:
        """Where its processes listen."""

    @property
    def known_as(self) -> str:
        """Where others find it."""

    def command(self, *words: str) -> list[str]:
        """What runs a program on this machine."""

    def start(self, *words: str, log: Path) -> "subprocess.Popen[bytes]": ...


class Lab(Protocol):
    folder: Path
    cannot: dict[Ability, str]
    """With the reason."""

    def __getitem__(self, name: str) -> Machine: ...

    def cut(self, name: str, others: Sequence[str] | None = None, *, one_way: bool = False) -> None:
        """Between a machine and others, or all and clients. One way: nothing that it sends arrives."""

    def slow(self, name: str) -> None:
        """Everything to and from this machine takes its time."""

    def reset(self, name: str) -> None:
        """Every connection of this machine breaks, and both ends are told."""

    def heal(self) -> None:
        """Everybody hears everybody."""

    def close(self) -> None: ...


def start_process(words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_parent
        )


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def is_root() -> bool:
    return os.geteuid() == 0
