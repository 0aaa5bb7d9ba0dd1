"""Several replies become one, and one that cannot be encoded is rejected as a whole."""

from functools import partial

from penstock.broker.groups.group_coordinator import CombinedReply, GroupReply
from penstock.broker.groups.offset_fetch_reply import GroupOffsetsFound, TopicOffsets, reply_in_chunks
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.errors import ErrorCode, ProtocolError
from penstock.limits import OFFSETS_PER_CHUNK
from penstock.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from penstock.types import NO_TOPIC_ID
from tests.unit.coordinator.test_shard import Client, active, look, put
from tests.unit.log.log_support import new_disk
from tests.unit.replication.test_partition import partition_on, sync


class Connection:
    """Cannot tell some replies."""

    def __init__(self, *untellable: object) -> None:
        self.untellable = untellable
        self.told: list[object] = []

    def tell(self, reply: object) -> None:
        if any(each in self.untellable for each in (reply if isinstance(reply, list) else [reply])):
            raise OverflowError("too large")
        self.told.append(reply)


def refused(name: str, code: ErrorCode, detail: str) -> str:
    return f"{name} {code.name}"


def combined(*names: str) -> CombinedReply:
    return CombinedReply([partial(refused, name) for name in names], list)


def test_answers_come_in_the_order_asked_whenever_they_are_given() -> None:
    both = combined("a", "b")
    connection = Connection()
    both.later.then(connection.tell)
    first, second = both.pending_requests()
    second.complete(2)
    assert connection.told == []
    first.complete(1)
    assert connection.told == [[1, 2]]


def test_nothing_asked_is_answered_at_once() -> None:
    connection = Connection()
    combined().later.then(connection.tell)
    assert connection.told == [[]]


def test_if_one_of_them_cannot_be_told_all_are_refused_whoever_was_last() -> None:
    partition = partition_on(new_disk())
    shard, shell = active(partition)
    both, connection, writer = combined("a", "b"), Connection({b"k": b"1"}), Client()
    both.later.then(connection.tell)
    first, second = Client(), Client()
    first.pending, second.pending = both.pending_requests()
    put(shard, b"k", b"1", writer)
    look(shard, first)
    look(shard, second)
    sync(partition)
    assert connection.told == [["a UNKNOWN_SERVER_ERROR", "b UNKNOWN_SERVER_ERROR"]]
    assert len(shell.unanswered_because) == 1


def test_a_client_to_whom_nothing_can_be_told_is_disconnected() -> None:
    partition = partition_on(new_disk())
    shard, shell = active(partition)
    one, writer = combined("a"), Client()
    connection = Connection({b"k": b"1"}, f"a {ErrorCode.UNKNOWN_SERVER_ERROR.name}")
    one.later.then(connection.tell)
    harness = Client()
    (harness.pending,) = one.pending_requests()
    put(shard, b"k", b"1", writer)
    look(shard, harness)
    sync(partition)
    (ending,) = connection.told
    assert isinstance(ending, ProtocolError)
    assert len(shell.unanswered_because) == 2


def test_an_answer_that_did_not_arrive_can_be_followed_by_another() -> None:
    complete, connection = GroupReply(), Connection("too much")
    complete.then(connection.tell)
    try:
        complete.finish("too much")
    except OverflowError:
        complete.finish("less")
    assert connection.told == ["less"]


def test_a_long_answer_about_offsets_is_made_in_turns_with_others() -> None:
    places = [(index, None, ErrorCode.NONE) for index in range(2 * OFFSETS_PER_CHUNK + 1)]
    found = GroupOffsetsFound(
        OffsetFetchRequestGroup("g"), ErrorCode.NONE, [TopicOffsets("t", NO_TOPIC_ID, places)]
    )
    *chunks, answer = reply_in_chunks(found, ReplyBudget(), 9)
    assert chunks == [None, None]
    assert answer is not None
    assert len(answer.topics[0].partitions) == len(places)
