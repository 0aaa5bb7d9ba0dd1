"""TCP sockets of this host and the processes that own them, from Linux's /proc."""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LISTENS: Final = "0A"
INODE: Final = re.compile(r"socket:\[(\d+)\]")


class Address(NamedTuple):
    host: str
    port: int


class _Row(NamedTuple):
    local: str
    remote: str
    state: str
    inode: str


def listening() -> set[Address]:
    return {_address(row.local) for row in _rows() if row.state == LISTENS}


def owner(local: Address, remote: Address, processes: Mapping[int, str]) -> str | None:
    """The name of the process that owns the `local` end of a connection; None: none of `processes`."""
    ends = _as_in_proc(local), _as_in_proc(remote)
    inodes = {row.inode for row in _rows() if (row.local, row.remote) == ends}
    for pid, name in processes.items():
        if inodes & set(_inodes(pid)):
            return name
    return None


def _rows() -> Iterator[_Row]:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        yield _Row(words[1], words[2], words[3], words[9])


def _inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):  # the process has ended
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # the file was closed meanwhile
                if found := INODE.fullmatch(os.readlink(entry.path)):
                    yield found[1]


def _address(text: str) -> Address:
    host, port = text.split(":")
    return Address(socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16))


def _as_in_proc(address: Address) -> str:
    return f"{socket.inet_aton(address.host)[::-1].hex().upper()}:{address.port:04X}"
