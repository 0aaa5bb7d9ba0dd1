"""The size of a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    repeats: int = 3
    share: float = 1.0
    """Share of the records of a full run."""
    partition_counts: tuple[int, ...] = (1, 100, 1000)
    restart_bytes: int = 1_000_000_000

    def scaled(self, records: int) -> int:
        return max(1, int(records * self.share))


FULL = Settings()
QUICK = Settings(repeats=1, share=0.1, restart_bytes=100_000_000)


def partitions_text(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"
