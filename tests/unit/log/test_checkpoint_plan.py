"""A checkpoint covers the log as it was planned, although the log grows meanwhile."""

from penstock.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from tests.unit.log.log_support import NOW_MS, append, flush, new_disk, new_log


def test_entries_that_came_after_the_plan_are_left_to_the_next() -> None:
    """They point to records that may not be on disk yet."""
    log = new_log(new_disk())
    for number in range(12):
        append(log, [bytes(90)], [NOW_MS + number])
    before = {
        INDEX_SUFFIX: log.active.index.to_bytes(),
        TIME_INDEX_SUFFIX: log.active.time_index.to_bytes(),
    }
    plan = log.begin_checkpoint()
    for number in range(12, 40):
        append(log, [bytes(90)], [NOW_MS + number])
    assert len(log.active.index.to_bytes()) > len(before[INDEX_SUFFIX]) > 0
    assert {write.path: write.render() for write in plan.indexes.writes} == {
        log.active.path(suffix): content for suffix, content in before.items()
    }
    flush(log)
    log.end_checkpoint(plan)
    following = {write.path: write for write in log.begin_checkpoint().indexes.writes}
    for suffix, content in before.items():
        write = following[log.active.path(suffix)]
        assert write.position == len(content)
        whole = log.active.index if suffix == INDEX_SUFFIX else log.active.time_index
        assert content + write.render() == whole.to_bytes()
