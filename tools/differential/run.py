"""Runs all scenarios on both brokers in step, and collects the differences.

Kafka's responses come from a running Kafka or from a recording of one. A request marked `eventually` is
repeated on the running brokers until the responses agree or the time limit is reached.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tools.differential.broker import Broker
from tools.differential.compare import ABSENT, Difference, Plain, differences
from tools.differential.gaps import Gap, covering
from tools.differential.session import Session
from tools.differential.steps import RequestStep, Scenario, Step, Topic

_AGREE_S_MAX = 5.0
_AGREE_POLL_S = 0.05


class ReplySource(Protocol):
    """Source of the responses of one scenario: a broker or a recording."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def prepare(self, topics: tuple[Topic, ...]) -> None: ...
    def answer(self, step: Step) -> Plain: ...


class RecordedReplies:
    """Responses of an earlier run, by the name of the case."""

    def __init__(self, answers: Mapping[str, Plain], scenario: str) -> None:
        self._answers = answers
        self._scenario = scenario

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def prepare(self, topics: tuple[Topic, ...]) -> None:
        pass

    def answer(self, step: Step) -> Plain:
        return self._answers.get(case_name(self._scenario, step.name), ABSENT)


Kafka = Broker | Mapping[str, Plain]


@dataclass(frozen=True)
class Case:
    """One request: Kafka's response, and the fields in which Penstock's differs."""

    name: str
    kafka: Plain
    intended: tuple[tuple[Gap, Difference], ...]
    unexpected: tuple[Difference, ...]


def case_name(scenario: str, step: str) -> str:
    return f"{scenario}/{step}"


def compare_case(name: str, kafka: Plain, penstock: Plain, gaps: Sequence[Gap]) -> Case:
    """Split the differences of one case into intended and unexpected ones."""
    intended: list[tuple[Gap, Difference]] = []
    unexpected: list[Difference] = []
    for difference in differences(kafka, penstock):
        gap = covering(gaps, name, difference)
        if gap is None:
            unexpected.append(difference)
        else:
            intended.append((gap, difference))
    return Case(name, kafka, tuple(intended), tuple(unexpected))


def run(scenarios: Iterable[Scenario], kafka: Kafka, penstock: Broker, gaps: Sequence[Gap]) -> Iterator[Case]:
    for scenario in scenarios:
        with ExitStack() as stack:
            first = stack.enter_context(_kafka_source(kafka, scenario))
            second = stack.enter_context(Session(penstock))
            first.prepare(scenario.topics)
            second.prepare(scenario.topics)
            for step in scenario.steps:
                yield _compare_step(first, second, step, case_name(scenario.name, step.name), gaps)


def _kafka_source(kafka: Kafka, scenario: Scenario) -> AbstractContextManager[ReplySource]:
    return Session(kafka) if isinstance(kafka, Broker) else RecordedReplies(kafka, scenario.name)


def _compare_step(
    first: ReplySource, second: ReplySource, step: Step, name: str, gaps: Sequence[Gap]
) -> Case:
    case = compare_case(name, first.answer(step), second.answer(step), gaps)
    may_differ_for_a_moment = isinstance(step, RequestStep) and step.eventually
    deadline = time.monotonic() + (_AGREE_S_MAX if may_differ_for_a_moment else 0.0)
    while case.unexpected and time.monotonic() < deadline:
        time.sleep(_AGREE_POLL_S)
        case = compare_case(name, first.answer(step), second.answer(step), gaps)
    return case
