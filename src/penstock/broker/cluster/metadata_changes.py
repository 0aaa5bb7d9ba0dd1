"""The changes of metadata that one request asks for.

Strategy: a request about many things is decided one by one, each on the image that the ones before it
leave behind, and committed in groups: one transaction for a group, not one for each. What is refused
leaves the others of its group alone.

Rule 1: the decisions of one call are about different keys. The handlers sort out duplicates.
Rule 2: what is refused, or left because it is so already, is so on an image that shows all that was committed
        before the request came (`cluster.py`, Rule 7). The store is asked once for a request.
Rule 3: between two controllers a request waits for the next one, for a few seconds in all: not every client
        asks again. Requests that are in the way of records do not wait (`waits_for_controller`): their
        clients do ask again.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import Decide, MetadataService, Unconfirmed
from penstock.controller.decision import Decision, NoController, merged
from penstock.errors import ApiError
from penstock.limits import METADATA_CONTROLLER_MS_MAX, METADATA_UNAVAILABLE_PAUSE_MS
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.image_builder import apply

# Enough that a commit costs little for each topic; few enough that other requests soon get a turn.
DECISIONS_PER_CHANGE = 50

ChangeOutcome = ClusterImage | ApiError
"""An image that shows a decision carried out, or why it was not."""


class MetadataChange:
    """For one request."""

    def __init__(self, cluster: MetadataService, *, waits_for_controller: bool = True) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        wait_s = METADATA_CONTROLLER_MS_MAX / 1000 if waits_for_controller else 0.0
        self._waits_until = self._loop.time() + wait_s
        self._is_current = False

    async def image(self) -> ClusterImage:
        """A current one. ApiError: the metadata store does not answer."""
        if not self._is_current:
            await self._cluster.wait_until_current()
            self._is_current = True
        return self._cluster.image

    async def commit(self, decide: Decide) -> ClusterImage:
        """As `MetadataService.change` does it."""
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
        """`independent`: no decision of these could turn out differently for another of them. That saves
        making an image for each. `at_once` of them share a transaction of the store.
        """
        outcomes: list[ChangeOutcome] = []
        for group in _groups(decides, at_once):
            outcomes += await self._commit_group(group, independent=independent)
        return outcomes

    async def validate_each(self, decides: Sequence[Decide]) -> list[ChangeOutcome]:
        """What would become of each. Nothing is changed."""
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
        for group in _groups(decides, DECISIONS_PER_CHANGE):
            trial = _validate_group(image, group, independent=False)
            image = trial.image
            outcomes += [trial.rejections.get(number, image) for number in range(len(group))]
            # Nothing is waited for here, so other requests have to be let in.
            await asyncio.sleep(0)
        return outcomes

    async def _commit_group(self, group: Sequence[Decide], *, independent: bool) -> list[ChangeOutcome]:
        rejections: dict[int, ApiError] = {}

        def decide(image: ClusterImage) -> Decision:
            nonlocal rejections
            trial = _validate_group(image, group, independent=independent)
            rejections = trial.rejections  # an earlier trial met a conflict, and all was decided again
            for rejection in rejections.values():
                if isinstance(rejection, NoController):
                    raise rejection  # whatever needs one is refused, and in a moment it may not be
            return trial.decision

        outcome: ChangeOutcome
        try:
            outcome = await self.commit(decide)
        except NoController as problem:
            outcome = problem
        except ApiError as problem:
            # What the trial refused may not have been confirmed.
            return [problem] * len(group)
        return [rejections.get(number, outcome) for number in range(len(group))]

    async def _next_controller(self) -> bool:
        """False: it has been waited for long enough."""
        if self._loop.time() >= self._waits_until:
            return False
        if self._cluster.image.controller is not None:
            await asyncio.sleep(
                METADATA_UNAVAILABLE_PAUSE_MS / 1000
            )  # it came meanwhile, or that is not the matter
            return True
        return await self._cluster.wait_for_controller(self._waits_until)


def no_controller_error(outcomes: Sequence[ChangeOutcome]) -> ApiError | None:
    """That there is no controller: clients look for it where the whole request is refused."""
    if outcomes and all(isinstance(outcome, NoController) for outcome in outcomes):
        return NoController()
    return None


class _Trial(NamedTuple):
    decision: Decision
    image: ClusterImage
    """As it will be when the decision is committed, revisions aside. Not made for independent ones."""
    rejections: dict[int, ApiError]


def _groups(decides: Sequence[Decide], at_once: int) -> Iterator[Sequence[Decide]]:
    for first in range(0, len(decides), at_once):
        yield decides[first : first + at_once]


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
