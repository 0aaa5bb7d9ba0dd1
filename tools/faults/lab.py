"""The lab of a cluster under faults: machines with a network and a disk each, and the faults of both.

There are two labs: kernel namespaces (`machines.py`), and proxies between the processes on hosts that allow
no namespaces (`proxies.py`). A lab lists the faults that it cannot inject, with the reason, and the report
names them as not tried.
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
"""Latency of a slow link, in each direction."""
SLOW_BYTES_PER_S: Final = 1_000_000


class UnsupportedHost(Exception):
    """This host cannot run the lab. The message says what is missing."""


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
        """Lose all unsynced data. The processes that wrote to the disk have been killed before."""

    def restore_power(self) -> None: ...

    def remove(self) -> None: ...


class Machine(Protocol):
    number: int
    name: str

    @property
    def disk(self) -> Disk: ...

    @property
    def address(self) -> str:
        """Address at which its processes listen."""

    @property
    def known_as(self) -> str:
        """Address at which other machines and clients reach it."""

    def command(self, *words: str) -> list[str]:
        """The command line that runs a program on this machine."""

    def start(self, *words: str, log: Path) -> "subprocess.Popen[bytes]": ...


class Lab(Protocol):
    folder: Path
    cannot: dict[Ability, str]
    """Faults that this lab cannot inject, with the reasons."""

    def __getitem__(self, name: str) -> Machine: ...

    def cut(self, name: str, others: Sequence[str] | None = None, *, one_way: bool = False) -> None:
        """Cut the network between a machine and `others`; None: all machines and the clients.

        `one_way`: only what the machine sends is lost.
        """

    def slow(self, name: str) -> None:
        """Slow down everything to and from this machine."""

    def reset(self, name: str) -> None:
        """Reset every connection of this machine, for both of its ends."""

    def heal(self) -> None:
        """Remove all faults of the network."""

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
