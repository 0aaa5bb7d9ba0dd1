"""A simulated cleaner process: the production code of a cleaning, one step at a time in a simulated worker.

Now and then the process dies.
"""

from collections.abc import Callable, Iterator
from random import Random

from penstock.host.child_process import ChildProcessEnded
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import CleaningJob, CleaningStep
from penstock.sim.disk import Mount
from penstock.sim.worker import SimWorker

DEATH_SHARE = 0.02
"""The probability that the process dies in a step."""


class SimCleaner:
    def __init__(
        self,
        mount: Mount,
        worker: SimWorker,
        random: Random,
        before_swap: Callable[[], None],
        after_swap: Callable[[], None],
    ) -> None:
        """The callbacks run before and after cleaned segments replace others."""
        self._mount = mount
        self._worker = worker
        self._random = random
        self._before_swap = before_swap
        self._after_swap = after_swap
        self._steps: Iterator[CleaningStep] = iter(())

    async def begin(self, job: CleaningJob) -> CleaningStep:
        self._steps = clean(self._mount, job)
        return await self._step()

    async def go_on(self) -> CleaningStep:
        self._after_swap()
        return await self._step()

    async def _step(self) -> CleaningStep:
        if self._random.random() < DEATH_SHARE:
            raise ChildProcessEnded("it was killed")
        step = await self._worker.run(lambda: next(self._steps))
        self._before_swap()
        return step

    async def abandon(self) -> None:
        self._steps = iter(())

    def interrupt(self) -> None:
        """Do nothing: the next step finds that its partition is offline."""

    async def shut_down(self) -> None:
        """Do nothing: there is no process to end."""
