"""A process of a cluster on this machine: started, watched, stopped.

Rule 1: its id is in its pid file for as long as it runs.
Rule 2: what it says goes to its log, which is never cut: what it said before it died is still there.
Rule 3: a session of its own. Ctrl-C in the terminal is for us, and we end the others in order.
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
        """`captures_stdout`: what it writes to its stdout is for us (`line`), and not for its log."""
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
        with open(f"{self._pid_path}.tmp", "w") as file:
            file.write(f"{self.pid}\n")
        os.replace(f"{self._pid_path}.tmp", self._pid_path)

    async def line(self) -> str:
        """The next that it writes to its stdout; empty at the end."""
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode(errors="replace").strip()

    async def end(self) -> int:
        """Its exit code, when it has ended."""
        assert self._process is not None
        code = await self._process.wait()
        with suppress(FileNotFoundError):  # its folder may be gone as well
            os.remove(self._pid_path)
        return code

    def signal(self, *numbers: signal.Signals) -> None:
        """Nothing if it has ended."""
        for number in numbers:
            if self.is_running:
                # Not `send_signal`: it looks whether the process has ended, and may take the exit code
                # from whoever waits for it.
                with suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def log_tail(self) -> str:
        """Of this start, indented; empty if there were none."""
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
