"""Child process for work that would keep the interpreter from the event loop.

The child runs a Python module, reads requests from its standard input and writes replies to its standard
output, one request at a time: four bytes of length, then the message. The first request starts the child.

Rule 1: the child ends when its input ends (`serve_requests`), so it never outlives its parent, not even one
        that was killed.
Rule 2: a message beyond the agreed size is rejected on both sides.
"""

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

from penstock.limits import CLEANER_MESSAGE_BYTES_MAX

_LENGTH = struct.Struct(">I")


class ChildProcessEnded(Exception):
    """No reply will come: the child was killed or ran out of memory, or was not started for a request that
    had been cancelled.
    """


class RequestHandle:
    """Handle of one request, with which the caller cancels it."""

    def __init__(self) -> None:
        self.is_cancelled = False
        """The reply is no longer needed. Set before `kill`: then either this flag prevents the start, or
        `kill` finds the process."""


class ChildProcess:
    """Parent's side. One worker thread calls `send_request` and `stop`, which block; any thread may call
    `kill`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._start_lock = threading.Lock()
        """Held while a process is started, so that no process is started after `kill`."""

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return None if self._process is None else self._process.pid

    def send_request(self, request: bytes, handle: RequestHandle | None = None) -> bytes:
        """Send a request and wait for the reply; raises ChildProcessEnded.

        A cancelled request starts no process.
        """
        with self._start_lock:
            if handle is not None and handle.is_cancelled:
                raise ChildProcessEnded(f"no caller waits for the process of {self._module} any more")
            process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, request)
            answer = _receive(process.stdout)
        except OSError as error:
            answer, reason = None, str(error)
        else:
            reason = "it closed its output"
        if answer is None:
            self.stop()
            raise ChildProcessEnded(f"the process of {self._module} ended without an answer: {reason}")
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: signals from the parent's terminal are not meant for the child.
        self._process = subprocess.Popen(  # noqa: S603 (both words are ours)
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return self._process

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # buffered requests are no longer needed
                pipe.close()
        process.wait()

    def kill(self) -> None:
        """Kill the process, so that `send_request` raises ChildProcessEnded.

        Waits for a process that is being started.
        """
        with self._start_lock:
            if (process := self._process) is not None:
                process.kill()


def serve_requests(answer: Callable[[bytes], bytes], *, niceness: int) -> None:
    """Child's side. Never returns: the process ends when its input ends."""
    os.nice(niceness)
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        _send(sys.stdout.buffer, answer(requests.get()))


def _read_requests(requests: "SimpleQueue[bytes]") -> None:
    """Read requests in a separate thread, which notices the end of the input during a computation."""
    while (request := _receive(sys.stdin.buffer)) is not None:
        requests.put(request)
    # sys.exit would end only this thread, not a computation in the main thread.
    os._exit(0)


def _send(pipe: IO[bytes], message: bytes) -> None:
    assert len(message) <= CLEANER_MESSAGE_BYTES_MAX
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > CLEANER_MESSAGE_BYTES_MAX:
        return None
    message = pipe.read(length)
    return message if len(message) == length else None
