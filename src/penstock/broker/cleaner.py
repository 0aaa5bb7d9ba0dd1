"""Cleaning in a process of its own: parsing a million records would hold the loop for seconds.

Neither the process nor the thread that waits for it exists before there is something to clean, and
both go again when there has been nothing for a while.
"""

import asyncio

import msgspec

from penstock.host.child_process import ChildProcess
from penstock.host.worker import Worker
from penstock.log.cleaning_job import FAILURES, Answer, Cleaned, Job

MODULE = "penstock.broker.cleaner_main"


class ProcessCleaner:
    def __init__(self) -> None:
        self.child = ChildProcess(MODULE)
        self._worker: Worker | None = None

    async def clean(self, job: Job) -> Cleaned:
        """Raises what the cleaning met, or ChildDied. Being cancelled ends the process."""
        if self._worker is None:
            self._worker = Worker("cleaner", asyncio.get_running_loop())
        question = msgspec.msgpack.encode(job)
        try:
            answered = await self._worker.run(lambda: self.child.ask(question))
        except asyncio.CancelledError:
            self.child.kill()
            raise
        answer = msgspec.msgpack.decode(answered, type=Answer)
        if answer.failure is not None:
            kind, sentence = answer.failure
            raise FAILURES[kind](sentence)
        assert answer.cleaned is not None, "an answer is one or the other"
        return answer.cleaned

    def give_up(self) -> None:
        self.child.kill()

    async def rest(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.run(self.child.stop)
            worker.stop()
