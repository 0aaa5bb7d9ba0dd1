"""When a connection that repeats rejected requests has to wait."""

from penstock.broker.network.rejection_throttle import RejectionThrottle
from penstock.errors import ErrorCode
from penstock.limits import REJECTION_PAUSE_MS_MAX, REJECTIONS_BEFORE_PAUSE, REJECTIONS_PER_SECOND
from penstock.protocol.messages.heartbeat import HEARTBEAT, HeartbeatResponse
from penstock.protocol.messages.sync_group import SYNC_GROUP, SyncGroupResponse

REJECTED = HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


def frame(api_key: int, body: bytes = b"body", correlation_id: int = 0) -> memoryview:
    return memoryview(api_key.to_bytes(2) + bytes(2) + correlation_id.to_bytes(4) + body)


BEATING, SYNCING = frame(HEARTBEAT.key), frame(SYNC_GROUP.key)


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def after_rejections(count: int) -> tuple[RejectionThrottle, Time]:
    time = Time()
    pauses = RejectionThrottle(time)
    for number in range(count):
        pauses.wait_s(frame(HEARTBEAT.key, correlation_id=number))
        pauses.note(HEARTBEAT.key, REJECTED)
    return pauses, time


def test_requests_that_differ_do_not_wait_though_each_is_rejected() -> None:
    pauses, _ = after_rejections(1000)
    for number in range(1000):
        assert pauses.wait_s(frame(HEARTBEAT.key, b"%d" % number)) == 0
        pauses.note(HEARTBEAT.key, REJECTED)
    assert pauses.wait_s(frame(HEARTBEAT.key, b"999")) == 0


def test_many_rejections_in_a_second_wait_though_the_requests_differ() -> None:
    pauses, time = after_rejections(0)
    for number in range(3 * REJECTIONS_PER_SECOND):
        wait_s = pauses.wait_s(frame(HEARTBEAT.key, b"%d" % (number % 2)))
        assert wait_s <= REJECTION_PAUSE_MS_MAX / 1000
        time.now += wait_s
        pauses.note(HEARTBEAT.key, REJECTED)
    assert time.now - 100.0 >= 1.9, "two seconds' worth had to wait"
    time.now += 1
    assert pauses.wait_s(frame(HEARTBEAT.key, b"another")) == 0


def test_long_requests_that_differ_in_length_differ() -> None:
    pauses, _ = after_rejections(0)
    for number in range(1000):
        assert pauses.wait_s(frame(HEARTBEAT.key, bytes(100_000 + number))) == 0
        pauses.note(HEARTBEAT.key, REJECTED)


def test_a_few_rejections_in_a_row_cost_no_wait() -> None:
    pauses, _ = after_rejections(REJECTIONS_BEFORE_PAUSE)
    assert pauses.wait_s(BEATING) == 0


def test_the_wait_grows_with_each_rejection_up_to_a_bound() -> None:
    waits = [after_rejections(REJECTIONS_BEFORE_PAUSE + count)[0].wait_s(BEATING) for count in range(1, 9)]
    assert waits == sorted(waits)
    assert waits[0] > 0
    assert waits[-1] == after_rejections(100_000)[0].wait_s(BEATING)
    assert round(waits[-1] * 1000) == REJECTION_PAUSE_MS_MAX


def test_a_client_that_pauses_by_itself_does_not_wait_again() -> None:
    pauses, time = after_rejections(1000)
    time.now += REJECTION_PAUSE_MS_MAX / 1000
    assert pauses.wait_s(BEATING) == 0


def test_other_requests_of_the_connection_do_not_wait() -> None:
    pauses, _ = after_rejections(1000)
    assert pauses.wait_s(SYNCING) == 0
    pauses.note(SYNC_GROUP.key, SyncGroupResponse())
    assert pauses.wait_s(BEATING) > 0, "another request that was granted says nothing about this one"


def test_one_request_that_is_granted_ends_the_count() -> None:
    pauses, _ = after_rejections(1000)
    pauses.note(HEARTBEAT.key, HeartbeatResponse())
    assert pauses.wait_s(BEATING) == 0
    pauses.note(HEARTBEAT.key, REJECTED)
    assert pauses.wait_s(BEATING) == 0
