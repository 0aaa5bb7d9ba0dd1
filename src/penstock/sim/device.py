"""The state of a simulated file system, and what a power failure leaves of it.

Everything has two views: the one that processes see (the page cache) and the one on the platter. The
operations since the last sync lie between them, in order.

    files      a power failure keeps the first operations, as many as chance decides, and of the writes after
               them, up to the next truncation, any subset of 512-byte sectors; the size may be kept
               without the data, which then reads as zeros
    folders    a power failure keeps the first changes of each folder, as many as chance decides: journals
               keep the order of changes within one folder, but not between two folders

A failed sync drops the pending writes, and processes still see them as written, as on Linux.
"""

from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512


class Write(NamedTuple):
    position: int
    data: bytes


class Truncate(NamedTuple):
    size: int


class FileNode:
    def __init__(self) -> None:
        self.seen = bytearray()
        self.stored = bytearray()
        """The content on the platter."""
        self._pending: list[Write | Truncate] = []
        self.has_bit_rot = False
        """Whether a bit has flipped, so that every read has to read from the device."""

    def flip(self, position: int, bit: int) -> int:
        """Flip a bit of synced content. Returns the value of its byte."""
        assert position < len(self.stored)
        self.has_bit_rot = True
        self.seen[position] = self.stored[position] = self.stored[position] ^ 1 << bit
        return self.seen[position]

    @property
    def is_dirty(self) -> bool:
        return bool(self._pending)

    def write(self, position: int, data: bytes) -> None:
        _write(self.seen, position, data)
        self._pending.append(Write(position, data))

    def truncate(self, size: int) -> None:
        _truncate(self.seen, size)
        self._pending.append(Truncate(size))

    def sync(self) -> None:
        for operation in self._pending:
            _apply(self.stored, operation)
        self._pending.clear()

    def fail_sync(self) -> None:
        """Drop the pending writes: no later sync will write them."""
        self._pending.clear()

    def lose_power(self, random: Random) -> None:
        kept = random.randint(0, len(self._pending))
        for operation in self._pending[:kept]:
            _apply(self.stored, operation)
        # Writes after the kept operations may be torn. A truncation ends them: later writes depend on its
        # size.
        for operation in self._pending[kept:]:
            if isinstance(operation, Truncate):
                break
            self._tear(operation, random)
        self.seen = bytearray(self.stored)
        self._pending.clear()

    def _tear(self, write: Write, random: Random) -> None:
        end = write.position + len(write.data)
        if end > len(self.stored) and random.random() < 0.5:
            _truncate(self.stored, end)
        at = write.position
        while at < end:
            sector_end = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
            if random.random() < 0.5:
                _write(self.stored, at, write.data[at - write.position : sector_end - write.position])
            at = sector_end


class FolderNode:
    def __init__(self) -> None:
        self.seen: dict[str, Node] = {}
        self.stored: dict[str, Node] = {}
        self._pending: list[dict[str, Node | None]] = []

    def change(self, changes: "dict[str, Node | None]") -> None:
        """Change several names at once, as a rename does. None removes a name."""
        _change(self.seen, changes)
        self._pending.append(changes)

    def sync(self) -> None:
        for changes in self._pending:
            _change(self.stored, changes)
        self._pending.clear()

    def fail_sync(self) -> None:
        self._pending.clear()

    @property
    def changes_unsynced(self) -> int:
        return len(self._pending)

    def keep_changes(self, kept: int) -> None:
        """Keep the changes whose bits are set in `kept`, in any mixture, as a file system without a journal
        may.

        A rename is one change. The caller then lets the power fail, which has no changes left to choose
        from.
        """
        for number, changes in enumerate(self._pending):
            if kept >> number & 1:
                _change(self.stored, changes)
        self._pending.clear()

    def lose_power(self, random: Random) -> None:
        kept = random.randint(0, len(self._pending))
        for changes in self._pending[:kept]:
            _change(self.stored, changes)
        self._pending.clear()
        self.seen = dict(self.stored)
        for name in sorted(self.seen):
            self.seen[name].lose_power(random)


Node = FileNode | FolderNode


def _apply(content: bytearray, operation: Write | Truncate) -> None:
    if isinstance(operation, Truncate):
        _truncate(content, operation.size)
    else:
        _write(content, operation.position, operation.data)


def _write(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        _truncate(content, position)
    content[position : position + len(data)] = data


def _truncate(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _change(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
