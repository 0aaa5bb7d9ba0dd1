"""Produce requests that wait for the high watermark."""

from penstock.errors import ErrorCode
from penstock.replication.produce_waits import ProduceWait, ProduceWaits
from penstock.types import Offset


def test_a_wait_is_over_when_every_partition_is_safe() -> None:
    done: list[ProduceWait] = []
    first, second = ProduceWaits(), ProduceWaits()
    wait = ProduceWait(1.0, done.append)
    first.add(Offset(5), wait, 0)
    second.add(Offset(9), wait, 1)
    first.release(Offset(5))
    second.release(Offset(8))
    assert done == []
    second.release(Offset(9))
    assert done == [wait]
    assert wait.errors == {}


def test_an_expired_wait_is_told_once_and_no_longer_kept() -> None:
    done: list[ProduceWait] = []
    waits = ProduceWaits()
    for deadline in (1.0, 3.0):
        waits.add(Offset(5), ProduceWait(deadline, done.append), 0)
    waits.expire(2.0)
    assert [wait.errors for wait in done] == [{0: ErrorCode.REQUEST_TIMED_OUT}]
    assert len(waits) == 1
    waits.expire(2.0)
    waits.release(Offset(5))
    assert len(done) == 2


def test_a_failure_ends_every_wait() -> None:
    done: list[ProduceWait] = []
    waits = ProduceWaits()
    for offset in (5, 6):
        waits.add(Offset(offset), ProduceWait(1.0, done.append), 0)
    waits.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [wait.errors for wait in done] == [{0: ErrorCode.KAFKA_STORAGE_ERROR}] * 2
    assert len(waits) == 0
