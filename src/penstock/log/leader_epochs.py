"""Leader epochs of a log, each with the first offset written under it.

A client or a replica finds from this short list where its log diverges: the end of an epoch is the start of
the next one. Stored in Kafka's `leader-epoch-checkpoint` text form.

Rule 1: epochs and start offsets both ascend.
Rule 2: an entry at or past the end of the log describes records that do not exist, and is removed.
"""

from bisect import bisect_right

from penstock.log.checkpoint_file import parse_rows, render_rows
from penstock.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

FILE_NAME = "leader-epoch-checkpoint"


class LeaderEpochs:
    """Ascending epochs with their start offsets."""

    __slots__ = ("_epochs", "_starts", "is_stored")

    def __init__(self) -> None:
        self.is_stored = True
        """Whether the file on disk holds these epochs, or a checkpoint that is under way writes them. No
        epochs need no file."""
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []

    @property
    def latest(self) -> LeaderEpoch:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Record that `epoch` begins at `start_offset`. False if it was known already."""
        if epoch <= self.latest:
            return False
        self.is_stored = False
        while self._starts and self._starts[-1] >= start_offset:  # an epoch that wrote nothing
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def end_of(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Largest known epoch not above `epoch`, and its end offset; (-1, -1) if there is none."""
        found = bisect_right(self._epochs, epoch) - 1
        if found < 0:
            return NO_EPOCH, NO_OFFSET
        ends_log = found + 1 == len(self._epochs)
        return self._epochs[found], log_end_offset if ends_log else self._starts[found + 1]

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        found = bisect_right(self._starts, offset) - 1
        return self._epochs[found] if found >= 0 else NO_EPOCH

    def truncate_end(self, log_end_offset: Offset) -> None:
        while self._starts and self._starts[-1] >= log_end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.is_stored = False

    def truncate_start(self, log_start_offset: Offset) -> None:
        """Start the epoch that covers the new log start there, and remove older ones."""
        found = bisect_right(self._starts, log_start_offset) - 1
        if found >= 0 and (found > 0 or self._starts[0] < log_start_offset):
            del self._epochs[:found]
            del self._starts[:found]
            self._starts[0] = log_start_offset
            self.is_stored = False

    def to_bytes(self) -> bytes:
        return render_rows(f"{e} {s}" for e, s in zip(self._epochs, self._starts, strict=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> "LeaderEpochs":
        epochs = cls()
        for epoch, start in parse_rows(data, FILE_NAME, columns=2):
            epochs.assign(LeaderEpoch(epoch), Offset(start))
        epochs.is_stored = True
        return epochs

    def __repr__(self) -> str:
        return f"<LeaderEpochs {list(zip(self._epochs, self._starts, strict=True))}>"
