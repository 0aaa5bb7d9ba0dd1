"""A follower's half of a fetch session."""

from penstock.errors import ErrorCode
from penstock.limits import (
    LOG_START_FETCH_WAIT_MS,
    REPLICA_BUSY_ANSWERS,
    REPLICA_IDLE_MS,
    REPLICA_TOGETHER_MAX,
    REPLICA_WAIT_MS,
)
from penstock.log.file_uses import FileUse
from penstock.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.replication.fetch_session_handler import FetchSessionHandler, PartitionActivity, Replica
from penstock.replication.partition import Partition
from penstock.types import Offset, TopicId
from tests.unit.replication.replica_support import (
    FOLLOWER,
    LEADER,
    answer_to,
    follower_on,
    leader_on,
    new_log,
    produce,
    store_start,
    sync,
)

ID = TopicId(b"orders----------")
EPOCH = 70


class Plan:
    """A plan, and the partitions that it finds."""

    def __init__(self, count: int = 2) -> None:
        self.partitions: dict[Replica, Partition] = {}
        self.plan = FetchSessionHandler(
            LEADER, lambda topic_id, index: self.partitions.get(Replica(topic_id, index))
        )
        for index in range(count):
            self.partitions[Replica(ID, index)] = follower_on(new_log())
            self.plan.follow(Replica(ID, index))

    def request(self, now: float = 0.0) -> FetchRequest:
        request = self.plan.request(FOLLOWER, EPOCH, now)
        assert request is not None
        return request

    def answer(self, *answers: PartitionData, session: int = 5, code: int = 0) -> list[int]:
        """The partitions whose answers are of use."""
        topic = FetchableTopicResponse("", ID, list(answers))
        response = FetchResponse(error_code=code, session_id=session, responses=[topic])
        return [replica.partition for replica, _, _ in self.plan.handle_response(response)]


def named(request: FetchRequest) -> list[int]:
    return [params.partition for topic in request.topics for params in topic.partitions]


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def test_what_was_named_once_is_not_named_again() -> None:
    plan = Plan()
    first = plan.request()
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, [0, 1])
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (FOLLOWER, EPOCH)
    assert plan.answer() == []
    second = plan.request()
    assert (second.session_id, second.session_epoch, named(second)) == (5, 1, [])


def given_a_record(plan: Plan) -> Partition:
    """Partition 1, whose leader has answered with a record that is not flushed yet."""
    leader = leader_on(new_log())
    produce(leader, b"a")
    sync(leader)
    plan.request()
    follower = plan.partitions[Replica(ID, 1)]
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    answer = answer_to(leader, fetch_position)
    answer.partition_index = 1
    assert plan.answer(answer) == [1]
    follower.handle_fetch_response(fetch_position, answer)
    return follower


def test_only_what_has_more_since_is_named() -> None:
    plan = Plan()
    follower = given_a_record(plan)
    sync(follower)
    (params,) = plan.request().topics[0].partitions
    assert (params.partition, params.fetch_offset) == (1, 1)


def test_what_is_not_flushed_yet_leaves_the_session() -> None:
    plan = Plan()
    follower = given_a_record(plan)
    request = plan.request(now=1.0)
    assert (named(request), forgotten(request)) == ([], [1])
    sync(follower)
    plan.answer()
    assert plan.plan.next_delayed_at() is not None
    assert named(plan.request(now=2.0)) == [1]


def starts(request: FetchRequest) -> list[int]:
    return [params.log_start_offset for topic in request.topics for params in topic.partitions]


def test_a_start_that_moved_is_reported_when_it_is_stored() -> None:
    plan = Plan()
    partition = given_a_record(plan)
    sync(partition)
    plan.request()
    plan.answer(PartitionData(1))
    partition.log.advance_start(Offset(1))
    partition.log.file_uses.begin(FileUse.START_FILE)
    request = plan.request()
    assert (starts(request), request.max_wait_ms) == ([0], LOG_START_FETCH_WAIT_MS)
    plan.answer()
    partition.log.file_uses.end(FileUse.START_FILE)
    assert plan.request().max_wait_ms == REPLICA_WAIT_MS, "it found no room, and may find none for long"
    plan.answer()
    store_start(partition)
    request = plan.request()
    assert (starts(request), request.max_wait_ms) == ([1], REPLICA_WAIT_MS)
    plan.answer()
    assert named(plan.request()) == []


def test_a_refused_session_begins_with_everything() -> None:
    plan = Plan()
    plan.request()
    plan.answer()
    assert plan.answer(PartitionData(0), code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND) == []
    again = plan.request()
    assert (again.session_id, again.session_epoch, named(again)) == (0, 0, [0, 1])


def test_a_leader_without_room_for_a_session_is_asked_for_everything_each_time() -> None:
    plan = Plan()
    for _ in range(3):
        request = plan.request()
        assert (request.session_id, request.session_epoch, named(request)) == (0, 0, [0, 1])
        plan.answer(session=0)


def test_what_another_leads_now_is_forgotten() -> None:
    plan = Plan()
    plan.request()
    plan.answer()
    plan.plan.unfollow(Replica(ID, 0))
    request = plan.request()
    assert (named(request), forgotten(request)) == ([], [0])
    assert plan.answer(PartitionData(0)) == [], "an answer that comes too late"
    plan.plan.unfollow(Replica(ID, 1))
    assert plan.plan.request(FOLLOWER, EPOCH, 0.0) is None
    assert len(plan.plan) == 0


def test_what_is_put_off_is_asked_for_when_its_time_has_come() -> None:
    plan = Plan()
    plan.request()
    plan.answer()
    plan.plan.delay(Replica(ID, 0), until=5.0)
    request = plan.request(now=1.0)
    assert (named(request), forgotten(request)) == ([], [0])
    plan.answer()
    assert named(plan.request(now=5.0)) == [0]


def test_partitions_without_records_are_idle_where_there_are_many() -> None:
    activity, many = PartitionActivity(), REPLICA_TOGETHER_MAX + 1
    for index in range(many):
        activity.begin(Replica(ID, index), 0.0)
    later = 1 + REPLICA_IDLE_MS / 1000
    activity.note(Replica(ID, 0), later)
    assert activity.idle(later) == [Replica(ID, index) for index in range(1, many)]
    for index in range(1, many):
        activity.end(Replica(ID, index))
    assert activity.idle(10 * later) == [], "one costs nothing"


def test_a_partition_with_records_again_and_again_is_busy() -> None:
    activity = PartitionActivity()
    activity.begin(Replica(ID, 0), 0.0)
    for _ in range(REPLICA_BUSY_ANSWERS - 1):
        activity.note(Replica(ID, 0), 1.0)
        assert activity.busy() == []
    activity.note(Replica(ID, 1), 1.0)
    activity.note(Replica(ID, 0), 1.0)
    assert activity.busy() == [Replica(ID, 0)]
