"""Metadata changes of one client request.

Strategy: each item of a request is decided on the image that the items before it would produce. The items are
committed in groups, one store transaction per group. A rejected item does not affect the other items of its
group.

Rule 1: the decisions of one call change different keys. The API handlers reject duplicates.
Rule 2: a rejection, or "nothing to do", rests on an image that shows every change that was committed before
        the request (`change_queue.py`, Rule 3). A request reads the store for this at most once.
Rule 3: while the cluster has no controller, a request waits for one, for METADATA_CONTROLLER_MS_MAX in total,
        because not every client retries. Requests on the way to producing or fetching do not wait
        (`waits_for_controller`): their clients do retry.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.cluster.change_queue import Unconfirmed
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.chunks import chunks
from penstock.controller.decision import Decide, Decision, NoController, merged
from penstock.errors import ApiError
from penstock.limits import METADATA_CONTROLLER_MS_MAX, METADATA_UNAVAILABLE_PAUSE_MS
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.image_builder import apply

# Large enough that the cost of a commit per topic is small; small enough that other requests run soon.
DECISIONS_PER_CHANGE = 50

ChangeOutcome = ClusterImage | ApiError
"""An image that shows the decision carried out, or the error."""


class MetadataChange:
    """Metadata changes of one request: its confirmed image and its wait for a controller."""

    def __init__(self, cluster: MetadataService, *, waits_for_controller: bool = True) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        wait_s = METADATA_CONTROLLER_MS_MAX / 1000 if waits_for_controller else 0.0
        self._waits_until = self._loop.time() + wait_s
        self._is_current = False

    async def image(self) -> ClusterImage:
        """A current image (Rule 2). ApiError: the metadata store is unavailable."""
        if not self._is_current:
            await self._cluster.wait_until_current()
            self._is_current = True
        return self._cluster.image

    async def commit(self, decide: Decide) -> ClusterImage:
        """Carry out one decision like `MetadataService.change`, with the waits of Rules 2 and 3."""
        while True:
            try:
                return await self._cluster.change(decide, is_current=self._is_current)
            except Unconfirmed:
                await self.image()
            except NoController:
                if not await self._next_controller():
                    raise

    async def commit_each(
        self, decides: Sequence[Decide], *, independent: bool = False, at_once: int = DECISIONS_PER_CHANGE
    ) -> list[ChangeOutcome]:
        """Carry out decisions in groups of `at_once`, each group in one store transaction.

        `independent`: no decision depends on another one of them. This saves an image per decision.
        """
        outcomes: list[ChangeOutcome] = []
        for group in chunks(decides, at_once):
            outcomes += await self._commit_group(group, independent=independent)
        return outcomes

    async def validate_each(self, decides: Sequence[Decide]) -> list[ChangeOutcome]:
        """The outcome that each decision would have. Changes nothing."""
        if not decides:
            return []
        try:
            outcomes = await self._validate_all(await self.image(), decides)
            while any(isinstance(outcome, NoController) for outcome in outcomes):
                if not await self._next_controller():
                    break
                outcomes = await self._validate_all(self._cluster.image, decides)
        except ApiError as problem:
            return [problem] * len(decides)
        return outcomes

    async def _validate_all(self, image: ClusterImage, decides: Sequence[Decide]) -> list[ChangeOutcome]:
        outcomes: list[ChangeOutcome] = []
        for group in chunks(decides, DECISIONS_PER_CHANGE):
            trial = _validate_group(image, group, independent=False)
            image = trial.image
            outcomes += [trial.rejections.get(number, image) for number in range(len(group))]
            # Nothing else here awaits, so yield to other requests between groups.
            await asyncio.sleep(0)
        return outcomes

    async def _commit_group(self, group: Sequence[Decide], *, independent: bool) -> list[ChangeOutcome]:
        rejections: dict[int, ApiError] = {}

        def decide(image: ClusterImage) -> Decision:
            nonlocal rejections
            trial = _validate_group(image, group, independent=independent)
            rejections = trial.rejections  # the rejections of an earlier attempt that met a conflict are void
            for rejection in rejections.values():
                if isinstance(rejection, NoController):
                    raise rejection  # `commit` waits for a controller and decides the whole group again
            return trial.decision

        outcome: ChangeOutcome
        try:
            outcome = await self.commit(decide)
        except NoController as problem:
            outcome = problem
        except ApiError as problem:
            # The trial's rejections may rest on an old image (Rule 2), so the whole group gets this error.
            return [problem] * len(group)
        return [rejections.get(number, outcome) for number in range(len(group))]

    async def _next_controller(self) -> bool:
        """Wait for a controller; False if the request has waited for its total time."""
        if self._loop.time() >= self._waits_until:
            return False
        if self._cluster.image.controller is not None:
            await asyncio.sleep(
                METADATA_UNAVAILABLE_PAUSE_MS / 1000
            )  # a controller is elected already, or is not what was missing: a short pause, then retry
            return True
        return await self._cluster.wait_for_controller(self._waits_until)


def no_controller_error(outcomes: Sequence[ChangeOutcome]) -> ApiError | None:
    """The error for the whole request if every item lacked a controller, else None.

    Clients look for the controller only if the whole request is rejected.
    """
    if outcomes and all(isinstance(outcome, NoController) for outcome in outcomes):
        return NoController()
    return None


class _Trial(NamedTuple):
    decision: Decision
    image: ClusterImage
    """Image after the decision, except for revisions. The given image if the decisions are independent."""
    rejections: dict[int, ApiError]


def _validate_group(image: ClusterImage, group: Sequence[Decide], *, independent: bool) -> _Trial:
    decisions: list[Decision] = []
    rejections: dict[int, ApiError] = {}
    for number, decide in enumerate(group):
        try:
            decision = decide(image)
        except ApiError as rejection:
            rejections[number] = rejection
            continue
        decisions.append(decision)
        if not independent:
            image = apply(image, decision.all_changes, image.revision + 1)
    is_partial = bool(rejections) or not all(decision.all_changes for decision in decisions)
    return _Trial(merged(decisions)._replace(is_partial=is_partial), image, rejections)
