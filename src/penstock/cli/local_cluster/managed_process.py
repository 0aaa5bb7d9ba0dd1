"""Child process of a local cluster: start, supervision, stop.

Rule 1: the pid file holds the process id for as long as the process runs.
Rule 2: the output goes to a log file that is never truncated, so the last output before a crash is kept.
Rule 3: each process has its own session. Ctrl-C in the terminal reaches only this command, which stops the
        other processes in order.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from penstock.host.bound_child import command_of

LOG_LINES_SHOWN = 5
LOG_BYTES_SHOWN_MAX = 4096


class ManagedProcess:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: str,
        pid_path: str,
        *,
        captures_stdout: bool = False,
    ) -> None:
        """Create the process; with `captures_stdout`, its stdout is read by `line` instead of logged."""
        self.name = name
        self._speaks = captures_stdout
        self.log_path = log_path
        self._command = command_of(list(command))
        self._pid_path = pid_path
        self._process: Process | None = None
        self._log_start = 0

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        assert not self.is_running
        with self._opened_log() as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=DEVNULL,
                stdout=PIPE if self._speaks else log,
                stderr=log,
                start_new_session=True,
            )
        self._keep_pid()

    def _opened_log(self) -> IO[bytes]:
        os.makedirs(os.path.dirname(self.log_path), exist_ok=True)
        return open(self.log_path, "ab")

    def _keep_pid(self) -> None:
        # Renamed into place, so that a reader never finds a partial pid file.
        with open(f"{self._pid_path}.tmp", "w") as file:
            file.write(f"{self.pid}\n")
        os.replace(f"{self._pid_path}.tmp", self._pid_path)

    async def line(self) -> str:
        """Return the next line of the process's stdout; empty at its end."""
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode(errors="replace").strip()

    async def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        with suppress(FileNotFoundError):  # the folder may be deleted as well
            os.remove(self._pid_path)
        return code

    def signal(self, *numbers: signal.Signals) -> None:
        """Send the signals; does nothing if the process has ended."""
        for number in numbers:
            if self.is_running:
                # Not `send_signal`, which polls the process and could take the exit code from the task that
                # waits for it.
                with suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def log_tail(self) -> str:
        """Return the last log lines since this start, indented; empty without lines."""
        with suppress(FileNotFoundError), open(self.log_path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - LOG_BYTES_SHOWN_MAX))
            lines = log.read().decode(errors="replace").splitlines()
            return "\n".join(f"  {line}" for line in lines[-LOG_LINES_SHOWN:])
        return ""


def exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
