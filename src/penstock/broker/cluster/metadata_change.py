"""The changes of metadata that one request asks for.

Strategy: a request about many things is decided one by one, each on the image that the ones before it
leave behind, and committed in groups: one transaction for a group, not one for each. What is refused
leaves the others of its group alone.

Rule 1: the decisions of one call are about different keys. The handlers sort out duplicates.
Rule 2: what is refused, or left because it is so already, is so on an image that shows all that was committed
        before the request came (`cluster.py`, Rule 7). The store is asked once for a request.
Rule 3: between two controllers a request waits for the next one, for a few seconds in all: not every client
        asks again. Requests that are in the way of records do not wait (`waits`): their clients do ask again.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.broker.cluster.metadata_service import Cluster, Decide, Unconfirmed
from penstock.controller.decision import Decision, NoController, together
from penstock.errors import ApiError
from penstock.limits import METADATA_AWAY_PAUSE_MS, METADATA_CONTROLLER_MS_MAX
from penstock.metadata.facts import ClusterImage
from penstock.metadata.image import apply

# Enough that a commit costs little for each topic; few enough that other requests soon get a turn.
DECISIONS_PER_CHANGE = 50

Outcome = ClusterImage | ApiError
"""An image that shows a decision carried out, or why it was not."""


class Changing:
    """For one request."""

    def __init__(self, cluster: Cluster, *, waits: bool = True) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        wait_s = METADATA_CONTROLLER_MS_MAX / 1000 if waits else 0.0
        self._waits_until = self._loop.time() + wait_s
        self._is_current = False

    async def image(self) -> ClusterImage:
        """A current one. ApiError: the metadata store does not answer."""
        if not self._is_current:
            await self._cluster.be_current()
            self._is_current = True
        return self._cluster.image

    async def make(self, decide: Decide) -> ClusterImage:
        """As `Cluster.change` does it."""
        while True:
            try:
                return await self._cluster.change(decide, is_current=self._is_current)
            except Unconfirmed:
                await self.image()
            except NoController:
                if not await self._next_controller():
                    raise

    async def make_each(
        self, decides: Sequence[Decide], *, independent: bool = False, at_once: int = DECISIONS_PER_CHANGE
    ) -> list[Outcome]:
        """`independent`: no decision of these could turn out differently for another of them. That saves
        making an image for each. `at_once` of them share a transaction of the store.
        """
        outcomes: list[Outcome] = []
        for group in _groups(decides, at_once):
            outcomes += await self._make_group(group, independent=independent)
        return outcomes

    async def try_each(self, decides: Sequence[Decide]) -> list[Outcome]:
        """What would become of each. Nothing is changed."""
        if not decides:
            return []
        try:
            outcomes = await self._try_all(await self.image(), decides)
            while any(isinstance(outcome, NoController) for outcome in outcomes):
                if not await self._next_controller():
                    break
                outcomes = await self._try_all(self._cluster.image, decides)
        except ApiError as problem:
            return [problem] * len(decides)
        return outcomes

    async def _try_all(self, image: ClusterImage, decides: Sequence[Decide]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for group in _groups(decides, DECISIONS_PER_CHANGE):
            trial = _try_group(image, group, independent=False)
            image = trial.image
            outcomes += [trial.refusals.get(number, image) for number in range(len(group))]
            # Nothing is waited for here, so other requests have to be let in.
            await asyncio.sleep(0)
        return outcomes

    async def _make_group(self, group: Sequence[Decide], *, independent: bool) -> list[Outcome]:
        refusals: dict[int, ApiError] = {}

        def decide(image: ClusterImage) -> Decision:
            nonlocal refusals
            trial = _try_group(image, group, independent=independent)
            refusals = trial.refusals  # an earlier trial met a conflict, and all was decided again
            for refusal in refusals.values():
                if isinstance(refusal, NoController):
                    raise refusal  # whatever needs one is refused, and in a moment it may not be
            return trial.decision

        outcome: Outcome
        try:
            outcome = await self.make(decide)
        except NoController as problem:
            outcome = problem
        except ApiError as problem:
            # What the trial refused may not have been confirmed.
            return [problem] * len(group)
        return [refusals.get(number, outcome) for number in range(len(group))]

    async def _next_controller(self) -> bool:
        """False: it has been waited for long enough."""
        if self._loop.time() >= self._waits_until:
            return False
        if self._cluster.image.controller is not None:
            await asyncio.sleep(METADATA_AWAY_PAUSE_MS / 1000)  # it came meanwhile, or that is not the matter
            return True
        return await self._cluster.until_controlled(self._waits_until)


def refusal_of_all(outcomes: Sequence[Outcome]) -> ApiError | None:
    """That there is no controller: clients look for it where the whole request is refused."""
    if outcomes and all(isinstance(outcome, NoController) for outcome in outcomes):
        return NoController()
    return None


class _Trial(NamedTuple):
    decision: Decision
    image: ClusterImage
    """As it will be when the decision is committed, revisions aside. Not made for independent ones."""
    refusals: dict[int, ApiError]


def _groups(decides: Sequence[Decide], at_once: int) -> Iterator[Sequence[Decide]]:
    for first in range(0, len(decides), at_once):
        yield decides[first : first + at_once]


def _try_group(image: ClusterImage, group: Sequence[Decide], *, independent: bool) -> _Trial:
    decisions: list[Decision] = []
    refusals: dict[int, ApiError] = {}
    for number, decide in enumerate(group):
        try:
            decision = decide(image)
        except ApiError as refusal:
            refusals[number] = refusal
            continue
        decisions.append(decision)
        if not independent:
            image = apply(image, decision.everything, image.revision + 1)
    is_partial = bool(refusals) or not all(decision.everything for decision in decisions)
    return _Trial(together(decisions)._replace(is_partial=is_partial), image, refusals)
