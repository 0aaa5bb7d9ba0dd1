"""Registry of `LeaderRole` objects: the latest one of each log, which lives as long as its leader epoch.

A leader may have proposed an ISR whose outcome it does not know. Until the outcome is known, both sets count
(replication/leading.py). The leader must remember such a proposal for its whole leader epoch, even if it
stops and resumes leading meanwhile: the pause does not change the partition in the metadata store, so the
store may still commit the proposal late.

`Partition` objects do not live that long. When other brokers depose this broker by mistake
(broker/cluster/peer_lease_check.py) and it is reinstated, it makes new `Partition` objects under the same
leader epoch. So this registry keeps the `LeaderRole` beside the log, and every `Partition` that leads this
log in this epoch uses the same one.

Rule: at most one `LeaderRole` is made for a log and leader epoch (`begin` asserts it).
"""

from penstock.log.partition_log import PartitionLog
from penstock.replication.leading import CommittedPartitionState, LeaderRole


class Leaderships:
    """The latest `LeaderRole` of each log."""

    def __init__(self) -> None:
        self._latest: dict[PartitionLog, tuple[int, LeaderRole]] = {}

    def find(self, log: PartitionLog, leader_epoch: int) -> LeaderRole | None:
        epoch, leading = self._latest.get(log, (leader_epoch, None))
        return leading if epoch == leader_epoch else None

    def begin(self, log: PartitionLog, leader_epoch: int, leading: LeaderRole) -> LeaderRole:
        """Register the first `LeaderRole` of this leader epoch."""
        assert self.find(log, leader_epoch) is None, f"{log} is led in leader epoch {leader_epoch} already"
        self._latest[log] = (leader_epoch, leading)
        return leading

    def resume(
        self, log: PartitionLog, leader_epoch: int, state: CommittedPartitionState, now: float
    ) -> LeaderRole | None:
        """Resume the role with which this process led in the same epoch before; None: there is none."""
        leading = self.find(log, leader_epoch)
        if leading is not None:
            # No other broker leads in this epoch, so nothing can have truncated the log.
            assert leading.high_watermark <= log.log_end_offset, f"{log} lost records of its own leadership"
            leading.resumed(state, now)
        return leading

    def end(self, log: PartitionLog) -> None:
        """Drop the role: the leader epoch is over, or the replica was removed."""
        self._latest.pop(log, None)
