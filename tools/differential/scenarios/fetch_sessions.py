"""Fetch sessions: created, continued, reduced, forgotten, closed."""

from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tools.differential.batches import batch
from tools.differential.scenarios.asking import data_topic, fetch_partition, fetch_request, produce
from tools.differential.steps import RequestStep, Scenario, ScenarioState

_TOPIC = "session"
_UNKNOWN_SESSION = 12345
_CURRENT = -1
"""Placeholder for the session id of the latest response."""


def _request(topic: str, partitions: tuple[FetchPartition, ...]) -> FetchRequest:
    return fetch_request([FetchTopic(topic, partitions=list(partitions))] if partitions else [])


def _in(
    name: str, session: int, epoch: int, *partitions: FetchPartition, forget: tuple[int, ...] = ()
) -> RequestStep:
    def message(memory: ScenarioState) -> FetchRequest:
        asked = _request(_TOPIC, partitions)
        asked.session_id = memory.saved["session_id"] if session == _CURRENT else session
        asked.session_epoch = epoch
        asked.forgotten_topics_data = [ForgottenTopic(_TOPIC, partitions=list(forget))] if forget else []
        return asked

    return RequestStep(name, FETCH, 12, message)


def _made(name: str, *partitions: FetchPartition, version: int = 12, topic: str = _TOPIC) -> RequestStep:
    asked = _request(topic, partitions)
    asked.session_epoch = 0
    return RequestStep(name, FETCH, version, asked, saves="session_id")


_AT = fetch_partition

SCENARIOS = (
    Scenario(
        "fetch-sessions",
        (
            produce("a batch", _TOPIC, batch(b"a", b"b", b"c")),
            _made("made", _AT(0, 3), _AT(1, 0)),
            _in("nothing new", _CURRENT, 1),
            produce("another batch", _TOPIC, batch()),
            _in("something new", _CURRENT, 2),
            _in("not advanced", _CURRENT, 3),
            _in("advanced", _CURRENT, 4, _AT(0, 4)),
            _in("nothing new again", _CURRENT, 5),
            _in("wrong epoch", _CURRENT, 9),
            _in("right epoch after a wrong one", _CURRENT, 6),
            _in("the same epoch again", _CURRENT, 6),
            _in("forgotten", _CURRENT, 7, forget=(0,)),
            produce("a batch for nobody", _TOPIC, batch()),
            _in("nothing of what was forgotten", _CURRENT, 8),
            _in("a missing partition", _CURRENT, 9, _AT(7, 0)),
            _in("still missing", _CURRENT, 10),
            _in("forgotten and never known", _CURRENT, 11, forget=(7, 99)),
            _in("out of range", _CURRENT, 12, _AT(0, 999)),
            _in("still out of range", _CURRENT, 13),
            _in("in range", _CURRENT, 14, _AT(0, 0)),
            _in("both partitions", _CURRENT, 15, _AT(1, 0), _AT(0, 3)),
            _in("closed", _CURRENT, -1, _AT(0, 4)),
            _in("after it was closed", _CURRENT, 15),
        ),
        (data_topic(_TOPIC, 2),),
    ),
    Scenario(
        "fetch-sessions-odd",
        (
            _made("without partitions"),
            *(_made(f"v{v}", _AT(0, 0), version=v, topic="session-odd") for v in range(7, 13)),
            _in("unknown session", _UNKNOWN_SESSION, 1),
            _in("unknown session, epoch 0", _UNKNOWN_SESSION, 0),
            _in("unknown session, epoch -1", _UNKNOWN_SESSION, -1),
            _in("no session, epoch 5", 0, 5),
            _in("no session, epoch -2", 0, -2),
            _in("no session, epoch -1", 0, -1),
            _made("made again", _AT(0, 0), topic="session-odd"),
            _in("made anew under its id", _CURRENT, 0),
            _in("the old one", _CURRENT, 1),
        ),
        (data_topic("session-odd"),),
    ),
)
