"""Controller loop. Every broker runs it; only the broker that holds the controller key acts.

`controller/upkeep.py` decides what to do, from the image alone. The loop requests a decision after every
change of the image, and every UPKEEP_MS when nothing changes, and commits the work in bounded transactions.

Rule 1: the loop keeps no state except the partitions that may need work. A broker that becomes controller
        checks all partitions.
Rule 2: a transaction that meets a conflict is retried in halves (`commit_by_halves`). A decision that
        conflicts alone, or that was not tried after many conflicts, is decided again on a newer image.
Rule 3: every decision compares the controller's term. A former controller that has not applied the change
        of controller yet cannot change anything.
Rule 4: the loop retries a store that is unavailable, rejects a request, or has no room, with growing pauses.
        No error of the store ends this task.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.broker import ReplicationConfig
from penstock.controller.broker_lifecycle import become_controller
from penstock.controller.decision import Decision, batched, merged
from penstock.controller.partitions import TopicPartitionState
from penstock.controller.upkeep import UpkeepStep, deferrable_work, partitions_to_check, urgent_work
from penstock.errors import ApiError
from penstock.host.backoff import Backoff
from penstock.host.metadata_store import (
    CommittedTransaction,
    Conflict,
    SessionId,
    StoreRejected,
    StoreUnavailable,
)
from penstock.host.waiting import wait_for_event
from penstock.limits import (
    METADATA_UNAVAILABLE_PAUSE_MS,
    METADATA_UNAVAILABLE_PAUSE_MS_MAX,
    UPKEEP_CONFLICTS_MAX,
    UPKEEP_IDLE_MS,
    UPKEEP_MS,
)
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log
from penstock.types import TopicId

CommitOnce = Callable[[Decision], Awaitable[CommittedTransaction | Conflict]]


class ControllerLoop:
    def __init__(
        self,
        cluster: MetadataService,
        broker_id: int,
        session: Callable[[], SessionId | None],
        config: Callable[[], ReplicationConfig],
        changes_max: int,
        log: Log,
    ) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._session = session
        self._config = config
        self._changes_max = changes_max
        self._log = log
        self._wakeup = asyncio.Event()
        self._suspects: dict[tuple[TopicId, int], None] | None = None
        """Partitions to check; None: all of them."""
        self._term = 0
        self._idle_at = 0.0
        cluster.subscribe(self._follow)

    def is_controller(self, image: ClusterImage) -> bool:
        return image.controller is not None and image.controller.broker_id == self._broker_id

    async def run(self) -> None:
        """The controller task."""
        pauses = Backoff(METADATA_UNAVAILABLE_PAUSE_MS, METADATA_UNAVAILABLE_PAUSE_MS_MAX)
        while True:
            try:
                while await self.step():
                    pauses.reset()
            except (StoreUnavailable, StoreRejected, ApiError) as problem:
                # The outcome may be unknown, so nothing is assumed about it: check all partitions again on
                # the next image.
                self._log.warning("controller.postponed", reason=str(problem))
                await asyncio.sleep(pauses.next_delay_s())
                self._suspects = None
                continue
            await self._wait()

    async def _wait(self) -> None:
        await wait_for_event(self._wakeup, UPKEEP_MS / 1000)
        self._wakeup.clear()

    async def _follow(self, before: ClusterImage, after: ClusterImage) -> None:
        found = partitions_to_check(before, after) if self.is_controller(after) else None
        if found is None:
            self._suspects = None
        elif self._suspects is not None:
            self._suspects.update({(topic.id, state.index): None for topic, state in found})
        self._wakeup.set()

    async def step(self) -> bool:
        """Carry out the most urgent work. True: there may be more."""
        image = self._cluster.image
        if self._cluster.store_unavailable_since is not None:
            return False
        if image.controller is None:
            return await self._claim(image)
        # Without a session of this process, the controller in the image is another process with this node id.
        if not self.is_controller(image) or self._session() is None:
            return False
        if image.controller.term != self._term:
            self._term, self._suspects = image.controller.term, None
            self._log.info("controller.began", term=self._term)
        work = urgent_work(image, self._suspect_partitions(image)) or self._idle(image)
        if work is None:
            self._suspects = {}
            return False
        await self._carry_out(work, image)
        return True

    def _suspect_partitions(self, image: ClusterImage) -> list[TopicPartitionState] | None:
        if self._suspects is None:
            return None
        found: list[TopicPartitionState] = []
        for topic_id, index in self._suspects:
            topic = image.topics_by_id.get(topic_id)
            if topic is not None and index < len(topic.partitions):
                found.append((topic, topic.partitions[index]))
        return found

    def _idle(self, image: ClusterImage) -> UpkeepStep | None:
        now = asyncio.get_running_loop().time()
        if now - self._idle_at < UPKEEP_IDLE_MS / 1000:
            return None
        work = deferrable_work(image, self._config())
        if work is None:
            self._idle_at = now
        return work

    async def _claim(self, image: ClusterImage) -> bool:
        session = self._session()
        own = image.brokers.get(self._broker_id)
        if session is None or own is None or own.live is None or own.is_draining:
            return False
        outcome = await self._cluster.commit_once(become_controller(image, self._broker_id, session))
        if isinstance(outcome, Conflict):
            await self._cluster.wait_for_conflict(outcome, image)
        return True

    # Carrying out

    async def _carry_out(self, work: UpkeepStep, image: ClusterImage) -> None:
        self._log.info("controller.acts", task=work.task, decisions=len(work.decisions))
        for group in batched(work.decisions, self._changes_max):
            conflict = await commit_by_halves(self._cluster.commit_once, group)
            if conflict is not None:
                await self._cluster.wait_for_conflict(conflict, image)


async def commit_by_halves(
    commit_once: CommitOnce, group: Sequence[Decision], conflicts_max: int = UPKEEP_CONFLICTS_MAX
) -> Conflict | None:
    """Commit all decisions of a group together, and the halves of those that meet a conflict.

    Returns the last conflict. The number of attempts grows with the logarithm of the group's size for each
    decision that conflicts: with a slow store, an attempt for each decision would leave partitions without a
    leader for minutes. A conflict that all decisions share (the controller's term, a broker's session) would
    divide the group down to single decisions, so that after `conflicts_max` conflicts nothing more is
    tried.
    """
    conflict: Conflict | None = None
    conflicts, left = 0, [group]
    while left and conflicts < conflicts_max:
        part = left.pop()
        outcome = await commit_once(merged(part))
        if not isinstance(outcome, Conflict):
            continue
        conflict, conflicts = outcome, conflicts + 1
        if len(part) > 1:
            half = len(part) // 2
            left += [part[half:], part[:half]]
    return conflict
