"""Worker jobs that are interrupted at their disk calls, so that other code runs between two of them.

A job runs in its own thread, but never at the same time as anything else: the event loop hands control to
the thread and waits until it returns. The thread returns control when the job has ended, or during a disk
call if the seed decides so. Then the loop runs what is due and resumes the job some time later. So other
code can see half of a truncation or of a checkpoint, and one seed still gives one history.

Rule 1: Only one thread runs at a time. Nothing here needs a lock except the two semaphores that hand
        control over.
Rule 2: A job of a killed process ends at its next disk call, which raises PowerLost. The kill waits for that
        end, and a timer that was to resume the job later has no effect.
Rule 3: A job has a thread to itself from its beginning to its end, and ends once.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.sim.disk import PowerLost
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.worker import DoneCallback, SimWorker

ExpectedFailure = StorageFull | StorageFailed | CorruptData | PowerLost


class SteppedJob:
    """One job, and its thread for as long as it runs."""

    def __init__(self, function: Callable[[], Any], hands: "JobThreads") -> None:
        self.function = function
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self._hands = hands
        self._thread = hands.idle.pop() if hands.idle else _Thread()

    def resume(self) -> bool:
        """Run the job until it returns control. True if it has ended."""
        # After its end the thread may run another job: both would wait for one semaphore, and one would run
        # in place of the other.
        assert not self.has_ended, "a job that has ended would run again, in the thread of another job"
        hands, thread = self._hands, self._thread
        hands.running = self
        thread.job = self
        thread.may_run.release()
        thread.has_yielded.acquire()
        hands.running = None
        if self.has_ended:
            hands.idle.append(thread)
        return self.has_ended

    def yield_control(self) -> None:
        """Return control to the event loop. The job calls this in its thread."""
        self._thread.has_yielded.release()
        self._thread.may_run.acquire()


class JobThreads:
    """The running job, and the threads that wait for a job."""

    def __init__(self, random: Random, share: float) -> None:
        """`share`: the probability that a job is interrupted at a disk call."""
        self.running: SteppedJob | None = None
        self.idle: list[_Thread] = []
        self._random = random
        self._share = share

    def before_disk_call(self) -> None:
        """Called before each disk call of any thread."""
        if self.running is not None and self._random.random() < self._share:
            self.running.yield_control()

    def close(self) -> None:
        """Stop the threads, after all jobs have ended."""
        for thread in self.idle:
            thread.stop()
        self.idle.clear()


class _Thread:
    def __init__(self) -> None:
        self.job: SteppedJob | None = None
        self.may_run = threading.Semaphore(0)
        self.has_yielded = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="a job", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.may_run.acquire()
            job = self.job
            if job is None:
                return
            try:
                job.result = job.function()
            except BaseException as problem:  # reported to the caller that waits for the job
                job.error = problem
            job.has_ended = True
            self.has_yielded.release()

    def stop(self) -> None:
        self.job = None
        self.may_run.release()
        self._thread.join()


class SteppingWorker(SimWorker):
    """A SimWorker whose jobs may take effect in several steps."""

    def __init__(self, loop: VirtualTimeLoop, delay: Callable[[], float], hands: JobThreads) -> None:
        super().__init__(loop, delay)
        self._hands = hands
        self._job: SteppedJob | None = None

    def _begin(self) -> None:
        function, done = self._waiting.popleft()
        self._job = SteppedJob(function, self._hands)
        self._resume(self._job, done)

    def _resume(self, job: SteppedJob, done: DoneCallback) -> None:
        if job is not self._job:
            return  # its process was killed and `abandon` ended the job; a pause had delayed this timer
        if job.resume():
            self._job = None
            if job.error is not None and not isinstance(job.error, ExpectedFailure):
                raise job.error
            self._loop.call_later(self._delay(), self._end, done, job.result, job.error)
        else:
            self._loop.call_later(self._delay(), self._resume, job, done)

    def abandon(self) -> None:
        """Finish the job of a dead process: its next disk call raises PowerLost."""
        job, self._job = self._job, None
        while job is not None and not job.resume():
            pass
