"""Uses of a log's files that take longer than one callback of the event loop, and which of them may overlap.

    begins \\ during    checkpoint   start file   swap   truncation
    checkpoint         never        may          may    never
    start file         may          may          may    never
    swap               may          may          never  never
    truncation         never        never        never  never

A truncation replaces all files, so every other writer would bring truncated data back. A swap replaces
segments that are on disk completely, and neither a checkpoint nor the start file touches those. Appends and
flushes need no use: they go on during all of them, except during a truncation.

After `close` no use begins. The uses that are under way end, without effect on the log.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class FileUse(Enum):
    CHECKPOINT = auto()
    """A checkpoint was planned, and neither ended nor abandoned: its snapshot may appear at any time."""
    START_FILE = auto()
    """The start file is being written, or about to be (broker/storage/log_start_writer.py)."""
    SWAP = auto()
    """A cleaned segment was committed; the segments it replaces must stay until it is in place."""
    TRUNCATION = auto()
    """A worker truncates the files (log/truncation.py): nothing is appended or made durable meanwhile."""


_EXCLUDED: Final[Mapping[FileUse, frozenset[FileUse]]] = {
    FileUse.CHECKPOINT: frozenset({FileUse.CHECKPOINT, FileUse.TRUNCATION}),
    FileUse.START_FILE: frozenset({FileUse.TRUNCATION}),
    FileUse.SWAP: frozenset({FileUse.SWAP, FileUse.TRUNCATION}),
    FileUse.TRUNCATION: frozenset(FileUse),
}


class FileUses:
    """Uses of the files of one log that are under way."""

    __slots__ = ("_under_way", "is_closed")

    def __init__(self) -> None:
        self._under_way: set[FileUse] = set()
        self.is_closed = False

    def __contains__(self, use: FileUse) -> bool:
        return use in self._under_way

    def may_begin(self, use: FileUse) -> bool:
        return not self.is_closed and self._under_way.isdisjoint(_EXCLUDED[use])

    def begin(self, use: FileUse) -> None:
        assert self.may_begin(use), f"{use.name} cannot begin: {self}"
        self._under_way.add(use)

    def end(self, use: FileUse) -> None:
        """End a use. Two writers of the start file count as one use, which the first of them ends."""
        self._under_way.discard(use)

    def close(self) -> None:
        self.is_closed = True

    def __repr__(self) -> str:
        names = sorted(use.name for use in self._under_way)
        return f"<FileUses {', '.join(names) or 'none'}{' closed' if self.is_closed else ''}>"
