"""When a server is warm: what it does has settled.

A server in Java compiles what it does often, and does it faster then: the first second with a topic of 100
partitions may take ten times as long as the tenth. So work is repeated until it settles, and its last run
counts, for every contender.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

ALIKE: Final = 0.1
"""Two values are alike if they differ by less than this share."""

Result = TypeVar("Result")


def are_alike(values: Sequence[float], count: int) -> bool:
    """Whether there are at least so many values, and the latest of them are alike."""
    latest = values[-count:]
    return len(latest) == count and max(latest) - min(latest) < ALIKE * max(latest)


def settled(
    run: Callable[[], Result], *measures: Callable[[Result], float], runs_max: int, alike: int = 2
) -> Result:
    """Run until the latest runs are alike by every measure, or `runs_max` times. Returns the last run."""
    results: list[Result] = []
    while len(results) < runs_max:
        results.append(run())
        if all(are_alike([measure(each) for each in results], alike) for measure in measures):
            break
    return results[-1]
