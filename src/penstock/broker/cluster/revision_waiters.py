"""The metadata revision that this broker has applied, and the tasks that wait for a revision."""

import asyncio
from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.limits import METADATA_REVISION_WAIT_MS_MAX


class _RevisionWaiter(NamedTuple):
    revision: int
    seen: "asyncio.Future[None]"


class RevisionWaiters:
    def __init__(self, revision: int) -> None:
        self.revision = revision
        """Every subscriber has applied the image of this revision."""
        self._waiting: list[_RevisionWaiter] = []

    def advance(self, revision: int) -> None:
        """Set the applied revision and wake the tasks that wait for it or for an earlier one."""
        self.revision = revision
        still: list[_RevisionWaiter] = []
        for waiting in self._waiting:
            if waiting.revision > revision:
                still.append(waiting)
            elif not waiting.seen.done():
                waiting.seen.set_result(None)
        self._waiting = still

    async def wait_for(self, revision: int) -> None:
        """Wait until this revision is applied.

        ApiError REQUEST_TIMED_OUT: not within METADATA_REVISION_WAIT_MS_MAX.
        """
        if self.revision >= revision:
            return
        waiting = _RevisionWaiter(revision, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(METADATA_REVISION_WAIT_MS_MAX / 1000):
                await waiting.seen
        except TimeoutError:
            detail = f"this broker has not yet seen revision {revision} of the metadata; try again"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, detail) from None
        finally:
            # Still in the list after a timeout or a cancellation; `advance` has removed it otherwise.
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def end(self) -> None:
        """Cancel all waits: no further revision will be applied."""
        for waiting in self._waiting:
            waiting.seen.cancel()
