"""What a file system remembers, and what of it a power failure leaves.

Two views of everything: the one that processes see (the page cache) and the one on the platter.
What was done since the last sync lies between them, in order.

    files      a power failure keeps the first so many operations, and of the writes after them, up
               to the next truncation, any subset of 512-byte sectors; the size may be kept
               without the data, which then reads as zeros
    folders    it keeps the first so many changes of each folder: journals keep the order of
               what happens in one folder, and nothing of the order between two

A failed sync drops what was to be written and shows it as written all the same, as Linux does.
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
        """What is on the platter."""
        self._pending: list[Write | Truncate] = []
        self.has_bit_rot = False
        """A bit has flipped, and whoever reads it reads it from the device."""

    def flip(self, position: int, bit: int) -> int:
        """A bit that was synced. Returns the byte that is there now."""
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
        """What was to be written is gone, and nothing will ever try to write it again."""
        self._pending.clear()

    def lose_power(self, random: Random) -> None:
        kept = random.randint(0, len(self._pending))
        for operation in self._pending[:kept]:
            _apply(self.stored, operation)
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
        """Several names at once, as in a rename. None takes a name away."""
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
        """What a file system without a journal may leave: the changes whose bits are set, in any mixture.

        A rename is one change. To be followed by a power failure, which finds nothing left to decide.
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
