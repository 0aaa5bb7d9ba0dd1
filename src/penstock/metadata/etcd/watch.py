"""Parses the stream of an etcd watch into whole transactions. Nothing here waits.

etcd may put several transactions into one message, and splits a message that is too long into fragments,
anywhere. All changes of one revision are in one message or in the fragments of one message. So the changes
are returned, grouped by revision, when the last fragment has arrived.

Rule: a progress notification (nothing more has happened up to some revision) only proves that the connection
      is alive: some versions of etcd send it before the events up to that revision.
"""

from collections.abc import Iterator
from itertools import groupby

from penstock.host.metadata_store import (
    Delete,
    Event,
    HistoryCompacted,
    Put,
    SessionId,
    StoreRejected,
    StoreUnavailable,
)
from penstock.metadata.etcd.messages import (
    WatchedEvent,
    WatchLine,
    WatchResponse,
    decode,
    is_permanent_rejection,
    rejection_text,
)


class WatchParser:
    """Parses the lines of one stream. `root` is removed from the keys."""

    def __init__(self, root: str) -> None:
        self._root_length = len(root)
        self._fragments: list[WatchedEvent] = []

    def take(self, line: bytes) -> Iterator[Event]:
        """The transactions that this line completes. HistoryCompacted, StoreUnavailable or StoreRejected: the
        watch is over.
        """
        said = decode(WatchLine, line)
        if said.result is None:
            raise StoreUnavailable(f"etcd ended the watch: {said.error}")
        answer = said.result
        if answer.canceled:
            raise _end_of(answer)
        self._fragments += answer.events
        # A transaction may continue in the next fragment, so nothing is returned yet.
        if answer.fragment:
            return
        events, self._fragments = self._fragments, []
        for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
            yield Event(revision, tuple(map(self._change, group)))

    def _change(self, event: WatchedEvent) -> Put | Delete:
        key = event.kv.key[self._root_length :].decode("ascii")
        if event.type == "DELETE":
            return Delete(key)
        return Put(key, event.kv.value, SessionId(event.kv.lease) if event.kv.lease else None)


def _end_of(answer: WatchResponse) -> Exception:
    if answer.compact_revision:
        return HistoryCompacted(f"etcd has compacted its history up to revision {answer.compact_revision}")
    reason = answer.cancel_reason or "it does not say why"
    if is_permanent_rejection(reason):
        return StoreRejected(rejection_text(reason))
    return StoreUnavailable(f"etcd cancelled the watch: {reason}")
