"""A process for work that would take the interpreter away from the event loop.

It runs a module of ours and is asked through its standard input and answers on its standard output, one
question at a time: four bytes of length, then the message. It is started by the first question.

Rule 1: it ends when its input does (`serve_requests`), so it never outlives whoever started it, not
        even one that was killed.
Rule 2: a message beyond the agreed size is refused on both sides.
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


class ChildDied(Exception):
    """The process ended without an answer: it was killed, or ran out of memory."""


class RequestHandle:
    """One question, as seen by whoever wants the answer."""

    def __init__(self) -> None:
        self.is_cancelled = False
        """Nobody wants it any more. Set before `kill`: one of the two meets the process."""


class ChildProcess:
    """`send_request` and `stop` block and belong to one worker thread; `kill` may be called from anywhere."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._start_lock = threading.Lock()
        """Held while a process is started, so that none comes to be after it was to be killed."""

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return None if self._process is None else self._process.pid

    def send_request(self, request: bytes, handle: RequestHandle | None = None) -> bytes:
        """Raises ChildDied. A question that is over before a process was started starts none."""
        with self._start_lock:
            if handle is not None and handle.is_cancelled:
                raise ChildDied(f"nobody waits for the process of {self._module} any more")
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
            raise ChildDied(f"the process of {self._module} ended without an answer: {reason}")
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: what a terminal sends to us is not meant for it.
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
            with suppress(BrokenPipeError):  # what was not sent to it is of no use to anybody
                pipe.close()
        process.wait()

    def kill(self) -> None:
        """Whoever waits for an answer is told that it died. Waits for a process that is being started."""
        with self._start_lock:
            if (process := self._process) is not None:
                process.kill()


def serve_requests(answer: Callable[[bytes], bytes], *, niceness: int) -> None:
    """The other side. Returns never: the process ends when its input does."""
    os.nice(niceness)
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    while True:
        _send(sys.stdout.buffer, answer(requests.get()))


def _read_requests(requests: "SimpleQueue[bytes]") -> None:
    """In a thread of its own, so that the end of the input is noticed in the middle of an answer."""
    while (request := _receive(sys.stdin.buffer)) is not None:
        requests.put(request)
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
