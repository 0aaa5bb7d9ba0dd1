"""What a failure nobody expected means: for one client, or for the whole broker."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from penstock.errors import CorruptData
from penstock.observability.logs import Log


class Failing(Protocol):
    """Somebody who is no longer ready once a failure is noted."""

    failure: str | None


class Leaving(Failing, Protocol):
    def end_membership(self) -> None: ...


def report_failure(log: Log) -> Callable[[str, BaseException], None]:
    """A request that failed is one client's trouble; it is said once, loudly."""

    def report(name: str, failure: BaseException) -> None:
        log.error("task.failed", task=name, reason=repr(failure), traceback=_traceback(failure))

    return report


def stop_on_failure(broker: Failing, log: Log) -> Callable[[str, BaseException], None]:
    """Without one of these tasks the broker would only seem to work."""

    def failed(name: str, failure: BaseException) -> None:
        log.error("task.failed", task=name, reason=repr(failure), traceback=_traceback(failure))
        why = str(failure) if isinstance(failure, CorruptData) else repr(failure)
        broker.failure = f"the task {name!r} ended: {why}"

    return failed


def leave_on_failure(broker: Leaving, log: Log) -> Callable[[str, BaseException], None]:
    """Without one of these tasks the broker is no member of its cluster, and would only be in the way.

    A broker that kept its session would go on to lead, and to be controller, though it does neither.
    """
    stop = stop_on_failure(broker, log)

    def failed(name: str, failure: BaseException) -> None:
        stop(name, failure)
        broker.end_membership()

    return failed


def loop_exception_handler(
    broker: Failing, log: Log
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """A callback that raised may have left something half done: the broker is no longer ready."""

    def notice(_: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        failure = details.get("exception")
        message = str(details.get("message"))
        if isinstance(failure, OSError):  # a peer's connection, not our state
            log.warning("connection.broken", reason=f"{message}: {failure}")
            return
        where = _traceback(failure) if failure is not None else ""
        log.error("callback.failed", reason=message, traceback=where)
        broker.failure = f"an internal error: {message} {failure!r}"

    return notice


def _traceback(failure: BaseException) -> str:
    return "".join(traceback.format_exception(failure))
