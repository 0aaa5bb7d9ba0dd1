"""Log lines: one event a line, a name and its fields.

    2026-11-15T08:00:00.123Z INFO  partition.recovered partition=orders-3 scanned_bytes=1048576

Values that could break a line or imitate another one are quoted: clients choose some of the names.

Rule 1: a failure to write a log line has no other effect. Lines lost to a full disk are counted, and the
        count is the first line written when there is space again.
"""

import json
import sys
from datetime import UTC, datetime
from typing import Protocol, TextIO

from penstock.host.clock import Clock

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:/@+[]")


class Log(Protocol):
    """Writer of log lines."""

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...


class StreamLog:
    """Log on a text stream, by default standard error. `quiet` omits INFO lines."""

    def __init__(self, clock: Clock, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._clock = clock
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._lost = 0

    def info(self, event: str, **fields: object) -> None:
        if not self._quiet:
            self._write("INFO ", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("WARN ", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write("ERROR", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        stamp = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z"
        words = [stamp, level, event, *(f"{name}={_quoted(value)}" for name, value in fields.items())]
        try:
            if self._lost:
                print(stamp, "WARN ", "log.lost", f"lines={self._lost}", file=self._stream, flush=True)
                self._lost = 0
            print(" ".join(words), file=self._stream, flush=True)
        except OSError:
            self._lost += 1


class NullLog:
    """Log without output, for tests and tools."""

    def info(self, event: str, **fields: object) -> None:
        pass

    def warning(self, event: str, **fields: object) -> None:
        pass

    def error(self, event: str, **fields: object) -> None:
        pass


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and PLAIN.issuperset(text) else json.dumps(text)
