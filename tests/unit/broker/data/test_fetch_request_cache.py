"""What is recalled of a fetch is what would have been decoded, and what is remembered is counted."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.data.fetch_request_cache import VERSION_MIN, FetchCacheBudget, FetchRequestCache
from penstock.broker.data.fetch_sessions import CachedFetchRequest, FetchSessions, ResolvedFetch
from penstock.errors import ProtocolError
from penstock.host.randomness import SystemRandomness
from penstock.limits import (
    FETCH_REPEATS_PARTITIONS_MAX,
    FETCH_REPEATS_PARTITIONS_MIN,
    FETCH_REPEATS_PER_CONNECTION_MAX,
    FETCH_REPEATS_TOPIC_PARTITIONS,
)
from penstock.protocol.frames import RequestHeader, decode_request, encode_request, parse_request_header
from penstock.protocol.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from penstock.types import NO_TOPIC_ID, TopicId
from tests.unit.broker.support import FixedClock

VERSIONS = tuple(range(VERSION_MIN, 18))
COUNT = 100
ENTRY_BYTES = 33
AFTER_THE_ROW = b"\x00" + b"\x01" + b"\x03r1" + b"\x00"
"""No tags of the topic, nothing forgotten, the rack, no tags of the request."""
Targets = list[tuple[Any, FetchPartition]]


def topic(
    offsets: dict[int, int], *, name: str = "orders", version: int = 16, first: int = 0, **more: Any
) -> FetchTopic:
    """These partitions at these offsets, beginning with another one, as librdkafka does."""
    numbers = list(offsets)[first:] + list(offsets)[:first]
    partitions = [FetchPartition(number, 0, offsets[number], -1, -1, 1 << 20, **more) for number in numbers]
    if version < 13:
        return FetchTopic(name, NO_TOPIC_ID, partitions)
    return FetchTopic("", TopicId(name.encode().ljust(16, b".")), partitions)


def frame_of(
    topics: Sequence[FetchTopic],
    *,
    version: int = 16,
    correlation_id: int = 1,
    client_id: str | None = "tests",
    **fields: Any,
) -> bytes:
    known: dict[str, Any] = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 25,
        "session_epoch": -1,
        "rack_id": "r1",
    }
    request = FetchRequest(topics=list(topics), **(known | fields))
    return b"".join(encode_request(FETCH, version, correlation_id, client_id, request))[4:]


def decoded(frame: bytes) -> tuple[RequestHeader, int, FetchRequest]:
    header, position = parse_request_header(memoryview(frame))
    return header, position, decode_request(FETCH, header.api_version, memoryview(frame), position)


def after(*frames: bytes, memory: FetchCacheBudget | None = None) -> FetchRequestCache:
    """The memory of a connection on which these came."""
    repeats = FetchRequestCache(memory or FetchCacheBudget())
    for frame in frames:
        taken(repeats, frame)
    return repeats


def taken(repeats: FetchRequestCache, frame: bytes) -> CachedFetchRequest | None:
    """As a connection does it."""
    recalled = repeats.recall(memoryview(frame))
    if recalled is not None:
        return recalled[1]
    header, position, request = decoded(frame)
    repeats.remember(memoryview(frame), header, position, request)
    return None


def resolved(request: FetchRequest, version: int) -> ResolvedFetch:
    fetching = FetchSessions(10, FixedClock(), SystemRandomness()).resolve(request, version)
    assert isinstance(fetching, ResolvedFetch)
    return fetching


def assert_recalled(repeats: FetchRequestCache, frame: bytes) -> None:
    found = repeats.recall(memoryview(frame))
    assert found is not None
    assert_same(found, frame)


def assert_same(found: tuple[RequestHeader, CachedFetchRequest], frame: bytes) -> None:
    """As the decoder and the sessions would have it."""
    header, _, request = decoded(frame)
    assert found[0] == header
    recalled, expected = (resolved(each, header.api_version) for each in (found[1], request))
    assert [(each.key, each.params) for each in recalled.targets] == [
        (each.key, each.params) for each in expected.targets
    ]
    assert recalled.runs is not None
    assert [tuple(run) for run in recalled.runs] == [
        (each.topic_id, len(each.partitions)) for each in request.topics
    ]
    bare = msgspec.structs.asdict(msgspec.structs.replace(request, topics=[]))
    same = {name: value for name, value in msgspec.structs.asdict(found[1]).items() if name in bare}
    assert same | {"topics": []} == bare


@pytest.mark.parametrize("version", VERSIONS)
def test_the_next_fetch_is_recalled_whatever_was_read_and_wherever_it_begins(version: int) -> None:
    offsets = dict.fromkeys(range(COUNT), 0)
    repeats = after(frame_of([topic(offsets, version=version)], version=version))
    for round_ in range(1, 30):
        offsets |= {(7 * round_ + number) % COUNT: round_ for number in range(round_)}
        frame = frame_of(
            [topic(offsets, version=version, first=round_)], version=version, correlation_id=round_
        )
        assert_recalled(repeats, frame)


def test_a_topic_that_is_there_in_two_parts_is_recalled() -> None:
    a, b = dict.fromkeys(range(40), 3), dict.fromkeys(range(30), 5)
    repeats = after(frame_of([topic(a), topic(b, name="bills")]))
    halves = [{number: a[number] for number in part} for part in (range(20, 40), range(20))]
    parts = [topic(halves[0]), topic(b, name="bills"), topic(halves[1])]
    assert_recalled(repeats, frame_of(parts))


def test_partitions_that_are_left_out_or_come_back_are_recalled() -> None:
    offsets = dict.fromkeys(range(COUNT), 0)
    repeats = after(frame_of([topic(offsets)]))
    assert_recalled(repeats, frame_of([topic({number: 0 for number in offsets if number % 3})]))
    assert_recalled(repeats, frame_of([topic(offsets | {COUNT: 8})]))


def test_what_names_a_partition_twice_is_decoded() -> None:
    """The last entry of a partition that is named twice counts."""
    known = topic(dict.fromkeys(range(COUNT), 0))
    repeated = known.partitions[5]
    for other in (
        repeated,
        msgspec.structs.replace(repeated, fetch_offset=9),
    ):
        for place in (0, 6, COUNT):
            partitions = [*known.partitions[:place], other, *known.partitions[place:]]
            frame = frame_of([msgspec.structs.replace(known, partitions=partitions)])
            repeats = after(frame_of([known]))
            assert repeats.recall(memoryview(frame)) is None
            assert after(frame).recall(memoryview(frame)) is None
    twice = [msgspec.structs.replace(repeated, fetch_offset=offset) for offset in (8, 9)]
    frame = frame_of([msgspec.structs.replace(known, partitions=[*known.partitions[6:], *twice])])
    assert after(frame_of([known])).recall(memoryview(frame)) is None
    repeats = after(frame_of([known]), frame_of([topic(dict.fromkeys(range(COUNT), 9))]))
    both = [msgspec.structs.replace(repeated, fetch_offset=offset) for offset in (0, 9)]
    frame = frame_of([msgspec.structs.replace(known, partitions=[*known.partitions[6:], *both])])
    assert repeats.recall(memoryview(frame)) is None


def test_a_request_that_differs_in_anything_else_is_decoded() -> None:
    offsets = dict.fromkeys(range(COUNT), 0)
    repeats = after(frame_of([topic(offsets)]))
    for other in (
        frame_of([topic(offsets)], version=15),
        frame_of([topic(offsets)], client_id="others"),
        frame_of([topic(offsets)], client_id=None),
        frame_of([topic(offsets)], max_wait_ms=100),
        frame_of([topic(offsets)], isolation_level=1),
        frame_of([topic(offsets)], rack_id="r2"),
        frame_of([topic(offsets)], session_id=3),
        frame_of([topic(offsets)], session_epoch=0),
        frame_of([topic(offsets)], cluster_id="c"),
        frame_of([topic(offsets)], replica_state=ReplicaState(3, 4)),
        frame_of([topic(offsets)], forgotten_topics_data=[ForgottenTopic("", NO_TOPIC_ID, [1])]),
        frame_of([topic(offsets), topic(offsets, name="bills")]),
        frame_of([]),
        frame_of([topic(offsets)]) + b"\x00",
    ):
        assert repeats.recall(memoryview(other)) is None


def test_tags_are_left_to_the_decoder() -> None:
    offsets = dict.fromkeys(range(COUNT), 0)
    tagged = frame_of([topic(offsets, version=17, replica_directory_id=bytes(range(16)))], version=17)
    assert after(tagged).recall(memoryview(tagged)) is None
    plain = frame_of([topic(offsets, version=17)], version=17)
    assert after(plain).recall(memoryview(tagged)) is None
    row_end = len(plain) - len(AFTER_THE_ROW)
    assert plain[row_end:] == AFTER_THE_ROW
    for tags_at in (row_end - 1, row_end - 1 - ENTRY_BYTES, row_end):
        changed = bytearray(plain)
        changed[tags_at] = 1
        assert after(plain).recall(memoryview(changed)) is None


def test_a_row_that_goes_on_after_its_end_is_left_to_the_decoder() -> None:
    plain = frame_of([topic(dict.fromkeys(range(COUNT), 0))])
    count_at = len(plain) - len(AFTER_THE_ROW) - COUNT * ENTRY_BYTES - 1
    assert plain[count_at] == COUNT + 1
    changed = bytearray(plain)
    changed[count_at] -= 1
    assert after(plain).recall(memoryview(changed)) is None


@pytest.mark.parametrize(
    "frame",
    [
        frame_of([topic(dict.fromkeys(range(COUNT), 0), version=11)], version=11),
        frame_of([topic(dict.fromkeys(range(COUNT), 0))], session_epoch=0),
        frame_of([topic(dict.fromkeys(range(COUNT), 0))], session_id=7),
        frame_of([topic(dict.fromkeys(range(COUNT), 0))], replica_state=ReplicaState(3, 4)),
        frame_of([topic(dict.fromkeys(range(COUNT), 0))], client_id="c" * 600),
        frame_of([topic(dict.fromkeys(range(COUNT), 0))], rack_id="r" * 200),
        frame_of([topic(dict.fromkeys(range(COUNT), 0), version=12)], version=12),
        frame_of([topic(dict.fromkeys(range(FETCH_REPEATS_PARTITIONS_MIN - 1), 0))]),
        frame_of([topic(dict.fromkeys(range(FETCH_REPEATS_PER_CONNECTION_MAX), 0))]),
    ],
    ids=("classic", "session", "ends session", "follower", "client", "rack", "names", "few", "many"),
)
def test_what_is_not_remembered_takes_no_memory(frame: bytes) -> None:
    memory = FetchCacheBudget()
    assert after(frame, memory=memory).recall(memoryview(frame)) is None
    assert memory.free == FETCH_REPEATS_PARTITIONS_MAX


def test_an_earlier_request_keeps_what_it_asked_for() -> None:
    """It may wait for records while the next one comes."""
    offsets = dict.fromkeys(range(COUNT), 0)
    repeats = after(frame_of([topic(offsets)]))
    earlier = taken(repeats, frame_of([topic(offsets)]))
    assert taken(repeats, frame_of([topic(dict.fromkeys(range(COUNT), 9))])) is not None
    assert earlier is not None
    assert {entry.params.fetch_offset for entry in earlier.targets} == {0}


# Memory


def test_each_partition_is_counted_once_and_given_back() -> None:
    memory = FetchCacheBudget()
    repeats = FetchRequestCache(memory)
    for offset in range(20):
        taken(repeats, frame_of([topic(dict.fromkeys(range(COUNT), offset))]))
        assert memory.free == FETCH_REPEATS_PARTITIONS_MAX - COUNT - FETCH_REPEATS_TOPIC_PARTITIONS
    repeats.forget()
    assert memory.free == FETCH_REPEATS_PARTITIONS_MAX


def test_who_finds_no_room_is_decoded_and_who_had_some_is_not_disturbed() -> None:
    memory = FetchCacheBudget(COUNT + 50)
    frame, larger = (frame_of([topic(dict.fromkeys(range(count), 0))]) for count in (COUNT, COUNT + 60))
    first, second = after(frame, memory=memory), after(frame, memory=memory)
    assert second.recall(memoryview(frame)) is None
    assert_recalled(first, frame)
    assert first.recall(memoryview(larger)) is None
    taken(first, larger)
    assert memory.free == COUNT + 50, "what does not fit is not kept in part"
    taken(second, frame)
    assert_recalled(second, frame)


def test_what_is_no_longer_fetched_is_forgotten() -> None:
    memory = FetchCacheBudget()
    repeats = after(frame_of([topic(dict.fromkeys(range(COUNT), 0))]), memory=memory)
    few = frame_of([topic(dict.fromkeys(range(20), 0))])
    for _ in range(2):
        taken(repeats, few)
    assert memory.free == FETCH_REPEATS_PARTITIONS_MAX - 20 - FETCH_REPEATS_TOPIC_PARTITIONS
    assert_recalled(repeats, few)


# Any bytes


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from(("orders", "bills", "carts")), max_size=4))
    topics = [
        topic(
            draw(st.dictionaries(st.integers(0, 30), st.integers(0, 3), min_size=0, max_size=30)), name=name
        )
        for name in names
    ]
    return frame_of(topics, correlation_id=draw(st.integers(0, 9)))


@given(st.lists(requests(), max_size=12))
def test_whatever_a_client_fetches_is_understood_as_if_it_were_decoded(frames: Iterable[bytes]) -> None:
    memory = FetchCacheBudget()
    repeats = FetchRequestCache(memory)
    for frame in frames:
        found = repeats.recall(memoryview(frame))
        if found is not None:
            assert_same(found, frame)
        else:
            taken(repeats, frame)
    repeats.forget()
    assert memory.free == FETCH_REPEATS_PARTITIONS_MAX


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_whatever_bytes_are_changed_it_is_what_would_be_decoded(data: st.DataObject, version: int) -> None:
    first = frame_of([topic(dict.fromkeys(range(20), 0), version=version)], version=version)
    following = bytearray(first)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, 90) | st.integers(len(first) - 9, len(first) - 1))
        following[at] = data.draw(st.integers(0, 255))
    following += bytes(data.draw(st.integers(0, 3)))
    del following[data.draw(st.integers(0, len(following)) | st.just(len(following))) :]
    frame = bytes(following)
    found = after(first).recall(memoryview(frame))
    try:
        decoded(frame)
    except ProtocolError:
        assert found is None
    else:
        if found is not None:
            assert_same(found, frame)
