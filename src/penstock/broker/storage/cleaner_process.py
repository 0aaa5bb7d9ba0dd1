"""Runs the cleaner in a child process: parsing a million records would block the event loop for seconds.

The process and the thread that waits for it are started with the first cleaning. Both end after an idle time.

Rule 1: a task that stops waiting in the middle of a cleaning kills the process and continues when it has
        ended. From then on nothing is written any more, and what was written can be removed.
"""

import asyncio

import msgspec

from penstock.host.child_process import ChildProcess, RequestHandle
from penstock.host.worker import Worker
from penstock.log.compaction.cleaning_job import (
    FAILURES,
    CleaningJob,
    CleaningReply,
    CleaningRequest,
    CleaningStep,
)

MODULE = "penstock.broker.storage.cleaner_worker"


class ProcessCleaner:
    def __init__(self) -> None:
        self.child = ChildProcess(MODULE)
        self._worker: Worker | None = None
        self._asking: RequestHandle | None = None

    async def begin(self, job: CleaningJob) -> CleaningStep:
        """Start a cleaning. Raises the failure of the cleaning, or ChildProcessEnded."""
        return await self._ask(CleaningRequest(job))

    async def go_on(self) -> CleaningStep:
        return await self._ask(CleaningRequest(None))

    async def _ask(self, question: CleaningRequest) -> CleaningStep:
        worker = self._worker = self._worker or Worker("cleaner", asyncio.get_running_loop())
        asking = self._asking = RequestHandle()
        message = msgspec.msgpack.encode(question)
        try:
            return step_in(await worker.run(lambda: self.child.send_request(message, asking)))
        except asyncio.CancelledError:
            asking.is_cancelled = True
            # Rule 1: without the kill the process would go on writing `.cleaned` files after this task has
            # ended.
            await self.abandon()
            raise
        finally:
            self._asking = None

    async def abandon(self) -> None:
        """Kill the process. The worker thread is free once its pending request has failed, so the call waits
        for it.
        """
        self.child.kill()
        if self._worker is not None:
            await self._worker.run(self.child.stop)

    def interrupt(self) -> None:
        if self._asking is not None:
            self._asking.is_cancelled = True
        self.child.kill()

    async def shut_down(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self.child.kill()
            await worker.run(self.child.stop)
            worker.stop()


def step_in(answered: bytes) -> CleaningStep:
    """The step in a reply. Raises the failure that the reply reports."""
    answer = msgspec.msgpack.decode(answered, type=CleaningReply)
    if answer.failure is not None:
        kind, sentence = answer.failure
        raise FAILURES[kind](sentence)
    step = answer.cleaned or answer.replacement
    assert step is not None, "an answer is one of the three"
    return step
