"""One `LeaderRole` for each leader epoch in which this process leads a partition.

A leader may have sent a change of its in-sync set whose outcome it does not know. Until it knows, both sets
count (replication/leading.py). It must not forget that within its leader epoch: the change compares the
state of the partition in the metadata store, and a leader that stops leading and leads on in the same epoch
does not alter that state, so a late change can still commit. `Partition` objects come and go within an epoch:
a broker that is deposed by its peers (broker/cluster/peer_lease_check.py) and reinstated gets new ones. So
the `LeaderRole` is kept here, beside the log, and is given to every object that leads this log in this epoch.

Rule: a second `LeaderRole` for the same log and leader epoch is never made (`begin` asserts it).
"""

from penstock.log.partition_log import PartitionLog
from penstock.replication.leading import CommittedPartitionState, LeaderRole


class Leaderships:
    def __init__(self) -> None:
        self._latest: dict[PartitionLog, tuple[int, LeaderRole]] = {}

    def find(self, log: PartitionLog, leader_epoch: int) -> LeaderRole | None:
        epoch, leading = self._latest.get(log, (leader_epoch, None))
        return leading if epoch == leader_epoch else None

    def begin(self, log: PartitionLog, leader_epoch: int, leading: LeaderRole) -> LeaderRole:
        """Keep what is the first `LeaderRole` of this leader epoch."""
        assert self.find(log, leader_epoch) is None, f"{log} is led in leader epoch {leader_epoch} already"
        self._latest[log] = (leader_epoch, leading)
        return leading

    def resume(
        self, log: PartitionLog, leader_epoch: int, state: CommittedPartitionState, now: float
    ) -> LeaderRole | None:
        """The `LeaderRole` with which this process led in the same leader epoch before; None: it did not."""
        leading = self.find(log, leader_epoch)
        if leading is not None:
            # Nobody else leads in this epoch, so nobody had a reason to truncate the log.
            assert leading.high_watermark <= log.log_end_offset, f"{log} lost records of its own leadership"
            leading.resumed(state, now)
        return leading

    def end(self, log: PartitionLog) -> None:
        """The leader epoch is over, or the replica is gone."""
        self._latest.pop(log, None)
