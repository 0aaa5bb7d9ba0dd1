"""How far this broker has followed the metadata, and who waits until it has come to a revision."""

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
        """Every subscriber has followed the image of it."""
        self._waiting: list[_RevisionWaiter] = []

    def advance(self, revision: int) -> None:
        """Wakes everybody who waited for it."""
        self.revision = revision
        still: list[_RevisionWaiter] = []
        for waiting in self._waiting:
            if waiting.revision > revision:
                still.append(waiting)
            elif not waiting.seen.done():
                waiting.seen.set_result(None)
        self._waiting = still

    async def wait_for(self, revision: int) -> None:
        """ApiError REQUEST_TIMED_OUT: it takes too long."""
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
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def end(self) -> None:
        """Nothing more will be seen."""
        for waiting in self._waiting:
            waiting.seen.cancel()
