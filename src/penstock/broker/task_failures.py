"""Handlers of unexpected failures: of one client's request, or of a task that the whole broker needs."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from penstock.errors import CorruptData
from penstock.observability.logs import Log


class Failing(Protocol):
    """A broker that is no longer ready once a failure is set."""

    failure: str | None


class Leaving(Failing, Protocol):
    def end_membership(self) -> None: ...


def report_failure(log: Log) -> Callable[[str, BaseException], None]:
    """Handler for a failed request, which affects one client only: it is logged once, as an error."""

    def report(name: str, failure: BaseException) -> None:
        log.error("task.failed", task=name, reason=repr(failure), traceback=_traceback(failure))

    return report


def stop_on_failure(broker: Failing, log: Log) -> Callable[[str, BaseException], None]:
    """Handler for the failure of a task without which the broker would only seem to work: it is no longer
    ready.
    """

    def failed(name: str, failure: BaseException) -> None:
        log.error("task.failed", task=name, reason=repr(failure), traceback=_traceback(failure))
        why = str(failure) if isinstance(failure, CorruptData) else repr(failure)
        broker.failure = f"the task {name!r} ended: {why}"

    return failed


def leave_on_failure(broker: Leaving, log: Log) -> Callable[[str, BaseException], None]:
    """Handler for the failure of a task without which the broker cannot be a member of its cluster.

    A broker that kept its session would continue to be elected leader and controller without doing either
    job.
    """
    stop = stop_on_failure(broker, log)

    def failed(name: str, failure: BaseException) -> None:
        # The reason first: ending the membership may stop the broker at once.
        stop(name, failure)
        broker.end_membership()

    return failed


def loop_exception_handler(
    broker: Failing, log: Log
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Handler of exceptions in event loop callbacks. The callback may have left state half changed, so the
    broker is no longer ready.
    """

    def notice(_: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        failure = details.get("exception")
        message = str(details.get("message"))
        if isinstance(failure, OSError):  # a client's connection, not the broker's state
            log.warning("connection.broken", reason=f"{message}: {failure}")
            return
        where = _traceback(failure) if failure is not None else ""
        log.error("callback.failed", reason=message, traceback=where)
        broker.failure = f"an internal error: {message} {failure!r}"

    return notice


def _traceback(failure: BaseException) -> str:
    return "".join(traceback.format_exception(failure))
