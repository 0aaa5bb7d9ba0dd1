"""Which sockets there are on this host, and whose they are. Linux, from /proc."""

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
    return {_place(row.local) for row in _rows() if row.state == LISTENS}


def owner(local: Address, remote: Address, processes: Mapping[int, str]) -> str | None:
    """Of these processes, the one that has this end of a connection. None: none of them."""
    ends = _as_written(local), _as_written(remote)
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
    with suppress(OSError):  # it has ended
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # this file was closed meanwhile
                if found := INODE.fullmatch(os.readlink(entry.path)):
                    yield found[1]


def _place(text: str) -> Address:
    host, port = text.split(":")
    return Address(socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16))


def _as_written(place: Address) -> str:
    return f"{socket.inet_aton(place.host)[::-1].hex().upper()}:{place.port:04X}"
