"""Log lines, and a log that cannot be written."""

import io
from typing import Any

from penstock.host.clock import SystemClock
from penstock.observability.logs import StreamLog


class FullDisk(io.StringIO):
    is_full = False

    def flush(self) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().flush()

    def write(self, text: Any) -> int:
        return len(text) if self.is_full else super().write(text)


def test_a_value_cannot_imitate_another_line() -> None:
    stream = io.StringIO()
    StreamLog(SystemClock(), stream).info("topic.created", name="a\nERROR all.lost")
    assert stream.getvalue().count("\n") == 1


def test_a_log_that_cannot_be_written_harms_nobody_and_is_confessed_later() -> None:
    stream = FullDisk()
    log = StreamLog(SystemClock(), stream)
    log.info("first")
    stream.is_full = True
    log.error("second")
    log.error("third")
    stream.is_full = False
    log.info("fourth")
    lines = stream.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["first", "log.lost", "fourth"]
    assert lines[1].endswith("lines=2")
