"""The shell around the decisions of retrying.py: it asks, waits, looks again who leads, and gives up.

One call of the cluster client has one deadline (`Patience`), however many brokers it takes. Failures
that stand for the time used up say how often it was tried and what the last attempt ran into.

Rule 1: questions to several brokers are all sent before the first answer is waited for.
Rule 2: an answer is taken for those partitions it succeeded for; only the others are asked again.
Rule 3: a call ends within its time: no attempt begins after it, and each is given no more than is left.
Rule 4: one broker's word is not enough to lack a topic. In each attempt _OTHERS_MAX others are asked about a
        topic that the first does not know, or has under another id than is wanted; and each attempt begins
        with another broker. TopicUnknown and TopicReplaced mean that all who could be asked agreed for as
        long as retrying.py says.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from penstock.config.listeners import Address
from penstock.errors import ErrorCode
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.protocol.schema import Api, Request, Response
from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.wire.blocking import Pending
from penstock.wire.brokers import Broker, Brokers, Failed, Network
from penstock.wire.errors import RecordsTooLarge, Refused, TopicReplaced, TopicUnknown, Unreachable, WireError
from penstock.wire.retrying import (
    Remedy,
    Trouble,
    is_gone,
    is_other_topic,
    is_unknown_topic,
    may_try_again,
    pause_s,
    trouble_of,
)
from penstock.wire.view import ClusterView, Leader

_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_MANY_COORDINATORS: Final = 4
"""The first version of FindCoordinator that takes several keys."""
_OTHERS_MAX: Final = 2
_OTHER_S_MAX: Final = 5.0
"""How many more brokers are asked about a topic that the first one lacks, and for how long each."""

Work = TypeVar("Work")
Found = TypeVar("Found")
Work_contra = TypeVar("Work_contra", contravariant=True)
Found_co = TypeVar("Found_co", covariant=True)
Outcome = tuple[TopicPartition, Trouble | None, Found]


class Question(Protocol[Work_contra, Found_co]):
    """Something that is asked of the leaders of partitions."""

    def send(self, broker: Broker, work: Mapping[TopicPartition, Work_contra]) -> Pending[Any]: ...

    def outcomes(self, answer: Any) -> Iterable[tuple[TopicPartition, Trouble | None, Found_co]]: ...


class Patience:
    """One call: how long it may still take, and the pauses between its attempts."""

    def __init__(self, network: Network, what: str, timeout_s: float) -> None:
        self._network = network
        self.what = what
        self._timeout_s = timeout_s
        self.wanted: dict[str, TopicId] = {}
        """Topics that the call is about only if they have these ids."""
        self._found_at: dict[TopicPartition | None, float] = {}
        self.restart()

    def restart(self) -> None:
        """It got somewhere; what is left to do has the whole time again."""
        self._begun = self._attempt_begun = self._network.monotonic()
        self._failures = 0
        self._absent: tuple[TopicPartition | None, float] | None = None

    def expect(self, topic: str, topic_id: TopicId) -> None:
        """From now on the call is about the topic with this id, unless brokers have no topic ids."""
        if topic_id != NO_TOPIC_ID:
            self.wanted[topic] = topic_id

    def found(self, partition: TopicPartition) -> None:
        """A broker has named the leader of the partition, so that its name is not misspelt."""
        self._found_at[partition] = self._network.monotonic()

    def left_s(self) -> float:
        return self._begun + self._timeout_s - self._network.monotonic()

    def after(self, trouble: Trouble) -> None:
        """Returns when it is time for the next attempt. WireError if there is to be none."""
        self._failures += 1
        now = self._network.monotonic()
        pause = pause_s(self._failures)
        gone = self._is_gone(trouble, now + pause)
        spent_s = now - self._begun
        if gone or not may_try_again(trouble, spent_s=spent_s + pause, timeout_s=self._timeout_s):
            raise self._error(trouble, spent_s, is_gone=gone)
        self._network.sleep(pause)
        self._attempt_begun = self._network.monotonic()

    def _is_gone(self, trouble: Trouble, then: float) -> bool:
        if is_unknown_topic(trouble) or is_other_topic(trouble):
            if self._absent is None or self._absent[0] != trouble.about:
                self._absent = (trouble.about, self._attempt_begun)
        elif trouble.code != ErrorCode.NONE:
            self._absent = None
        # A broker that cannot be reached says nothing about a topic.
        if self._absent is None:
            return False
        about, since = self._absent
        was_there = about in self._found_at or (about is not None and about.topic in self.wanted)
        if is_other_topic(trouble):
            # A broker that had it under the id that is wanted disagrees with those before it.
            since = max(since, self._found_at.get(about, since))
        return is_gone(trouble, was_there=was_there, absent_s=then - since, timeout_s=self._timeout_s)

    def _error(self, trouble: Trouble, spent_s: float, *, is_gone: bool) -> WireError:
        tried = f" (tried {self._failures} times in {spent_s:.1f} s)" if self._failures > 1 else ""
        advice = f" {trouble.advice}" if trouble.advice else ""
        kind = _kind_of_absence(trouble) if is_gone else _kind(trouble)
        return kind(f"{self.what} failed: {trouble.what}{tried}.{advice}")


def _kind_of_absence(trouble: Trouble) -> type[WireError]:
    return TopicReplaced if is_other_topic(trouble) else TopicUnknown


def _kind(trouble: Trouble) -> type[WireError]:
    if trouble.code in _TOO_LARGE:
        return RecordsTooLarge
    if trouble.code == ErrorCode.NONE:
        return Unreachable
    return Refused if trouble.remedy is Remedy.GIVE_UP else WireError


class Session:
    def __init__(self, network: Network, brokers: Brokers, timeout_s: float) -> None:
        self._network = network
        self._brokers = brokers
        self.timeout_s = timeout_s
        self.view = ClusterView()
        self._coordinators: dict[str, Address] = {}
        self._told_by: Address | None = None
        """The broker whose word about leaders was taken last."""

    def patience(self, what: str) -> Patience:
        return Patience(self._network, what, self.timeout_s)

    # One attempt each: these raise Failed

    def exchange(self, broker: Broker, api: Api[Request, Response], message: Request) -> Response:
        with self._brokers.using(broker):
            return broker.ask(api, message)

    def wait(self, broker: Broker, pending: Pending[Response]) -> Response:
        with self._brokers.using(broker):
            return broker.wait(pending)

    def broker_at(self, address: Address, patience: Patience) -> Broker:
        return self._brokers.at(address, max(patience.left_s(), 0.001))

    def any_broker(self, patience: Patience) -> Broker:
        return self._brokers.any(self.view.addresses.values(), patience.left_s)

    def sending(self, broker: Broker, send: Callable[[], Pending[Response]]) -> Pending[Response]:
        with self._brokers.using(broker):
            return send()

    def refresh(self, names: Iterable[str] | None, patience: Patience) -> Address:
        """Ask who the brokers are and who leads these topics; None: all there are. Which broker answered."""
        broker = self.any_broker(patience)
        answer = self._metadata(broker, names)
        if names is None:
            self.view = ClusterView()
        self.view.learn(answer)
        self._told_by = broker.address
        return broker.address

    def look_up(self, wanted: Mapping[str, TopicId], patience: Patience) -> None:
        """Ask one broker who leads these topics, and others about those that it lacks: it may be behind."""
        asked = self.refresh(wanted, patience)
        known = self._brokers.candidates(self.view.addresses.values())
        for address in [each for each in known if each != asked][:_OTHERS_MAX]:
            if not (lacking := self.view.lacking(wanted)):
                return
            self._brokers.distrust(asked)  # the next look begins with another, and so reaches all
            asked = address
            try:
                broker = self._brokers.at(address, min(max(patience.left_s(), 0.001), _OTHER_S_MAX))
                answer = self._metadata(broker, lacking)
            except Failed:
                continue  # one broker has answered; this was a second opinion, and others may give it
            if self.view.improve(answer, lacking):
                self._told_by = address

    def _metadata(self, broker: Broker, names: Iterable[str] | None) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = self.exchange(broker, METADATA, request)
        if answer.error_code != ErrorCode.NONE:
            raise Failed(trouble_of(answer.error_code))
        return answer

    def leaders_of(
        self, partitions: Iterable[TopicPartition], patience: Patience
    ) -> dict[TopicPartition, Leader | Trouble]:
        """The leader of each, in the topic that the call is about; or why none is known."""
        partitions = list(partitions)
        wanted = {each.topic: patience.wanted.get(each.topic, NO_TOPIC_ID) for each in partitions}
        if lacking := self.view.lacking(wanted):
            self.look_up(lacking, patience)
        leaders = {each: self.view.leader_of(each, wanted[each.topic]) for each in partitions}
        for partition, leader in leaders.items():
            if isinstance(leader, Leader):
                patience.found(partition)
        return leaders

    def leader_of(self, partition: TopicPartition, patience: Patience) -> Leader:
        found = self.leaders_of([partition], patience)[partition]
        if isinstance(found, Trouble):
            raise Failed(found)
        return found

    # As often as it takes: these raise WireError

    def insist(self, patience: Patience, attempt: Callable[[], Found], names: Iterable[str] = ()) -> Found:
        """What an attempt returns that does not raise Failed. `names`: topics to look up again."""
        while True:
            try:
                return attempt()
            except Failed as failed:
                self.recover(patience, failed.trouble, names)

    def recover(self, patience: Patience, trouble: Trouble, names: Iterable[str]) -> None:
        """Do what the trouble asks for before the next attempt. WireError if there is to be none."""
        patience.after(trouble)
        if trouble.remedy is Remedy.FIND_LEADER:
            self.view.forget(names)
            if self._told_by is not None:
                self._brokers.distrust(self._told_by)
        elif trouble.remedy is Remedy.FIND_COORDINATOR:
            self._coordinators.clear()

    def ask_leaders(
        self, patience: Patience, question: Question[Work, Found], work: Mapping[TopicPartition, Work]
    ) -> dict[TopicPartition, Found]:
        """What the leaders answer, for every partition."""
        left = dict(work)
        found: dict[TopicPartition, Found] = {}
        while left:
            troubles: dict[TopicPartition, Trouble] = {}
            for partition, trouble, result in self._ask_once(patience, question, left):
                if trouble is None and result is not None:
                    found[partition] = result
                    left.pop(partition, None)
                elif trouble is not None:
                    troubles[partition] = trouble
            if left:
                partition, trouble = _worst(left, troubles)
                named = trouble._replace(what=f"{partition}: {trouble.what}", about=partition)
                self.recover(patience, named, {each.topic for each in left})
        return found

    def _ask_once(
        self, patience: Patience, question: Question[Work, Found], work: Mapping[TopicPartition, Work]
    ) -> Iterator[Outcome[Found | None]]:
        try:
            leaders = self.leaders_of(work, patience)
        except Failed as failed:
            yield from ((partition, failed.trouble, None) for partition in work)
            return
        led: dict[Address, dict[TopicPartition, Work]] = {}
        for partition, leader in leaders.items():
            if isinstance(leader, Trouble):
                yield partition, leader, None
            else:
                led.setdefault(leader.address, {})[partition] = work[partition]
        sent: list[tuple[Broker, Pending[Any], dict[TopicPartition, Work]]] = []
        for address, part in led.items():
            try:
                broker = self.broker_at(address, patience)
                sent.append((broker, self._send(question, broker, part), part))
            except Failed as failed:
                yield from ((partition, failed.trouble, None) for partition in part)
        for broker, pending, part in sent:
            try:
                yield from question.outcomes(self.wait(broker, pending))
            except Failed as failed:
                yield from ((partition, failed.trouble, None) for partition in part)

    def _send(
        self, question: Question[Work, Found], broker: Broker, part: Mapping[TopicPartition, Work]
    ) -> Pending[Any]:
        return self.sending(broker, lambda: question.send(broker, part))

    def ask_coordinator(
        self, patience: Patience, group: str, ask: Callable[[Broker], Iterable[Trouble | None]]
    ) -> None:
        """`ask` exchanges something with the coordinator and tells what went wrong, if anything did."""

        def attempt() -> None:
            address = self._coordinator(group, patience)
            try:
                broker = self.broker_at(address, patience)
                troubles = [trouble for trouble in ask(broker) if trouble is not None]
            except Failed as failed:
                # The coordinator is out of reach: another may have taken its place.
                self._coordinators.pop(group, None)
                raise failed
            if troubles:
                raise Failed(troubles[0])

        self.insist(patience, attempt)

    def _coordinator(self, group: str, patience: Patience) -> Address:
        if group not in self._coordinators:
            broker = self.any_broker(patience)
            self._coordinators[group] = self._find_coordinator(broker, group)
        return self._coordinators[group]

    def _find_coordinator(self, broker: Broker, group: str) -> Address:
        answer = self.exchange(
            broker, FIND_COORDINATOR, FindCoordinatorRequest(key=group, coordinator_keys=[group])
        )
        if broker.version_of(FIND_COORDINATOR) >= _MANY_COORDINATORS:
            if not answer.coordinators:
                raise Failed(trouble_of(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            found = answer.coordinators[0]
            code, detail, address = found.error_code, found.error_message, Address(found.host, found.port)
        else:
            code, detail, address = answer.error_code, answer.error_message, Address(answer.host, answer.port)
        if code != ErrorCode.NONE:
            raise Failed(trouble_of(code, detail))
        return address

    def close(self) -> None:
        self._brokers.close()


def _worst(
    left: Iterable[TopicPartition], troubles: Mapping[TopicPartition, Trouble]
) -> tuple[TopicPartition, Trouble]:
    """What decides about the next attempt: first what gives no hope, then what needs a new look."""
    order = [Remedy.GIVE_UP, Remedy.FIND_LEADER, Remedy.FIND_COORDINATOR, Remedy.TRY_AGAIN]
    silent = Trouble("the broker said nothing about it", Remedy.FIND_LEADER)
    named = ((partition, troubles.get(partition, silent)) for partition in left)
    return min(named, key=lambda each: order.index(each[1].remedy))
