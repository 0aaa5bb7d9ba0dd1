"""The session of a cluster client: sends requests, waits, refreshes metadata, and retries or gives up.

It carries out the decisions of `retry_policy.py`. One call of the cluster client has one deadline
(`CallDeadline`), however many brokers it contacts. The error of a call that timed out names the number of
attempts and the last failure.

Rule 1: requests to several brokers are all sent before the first reply is awaited.
Rule 2: a reply counts for the partitions that succeeded; only the other partitions are retried.
Rule 3: a call ends within its time: no attempt begins after it, and each attempt gets at most the time that
        is left.
Rule 4: one broker is not enough to conclude that a topic does not exist. Each attempt checks
        _SECOND_OPINIONS_MAX other brokers for a topic that the first broker does not know, or has with
        another id; and each attempt begins with another broker. TopicUnknown and TopicReplaced mean that
        all reachable brokers agreed for as long as `retry_policy.py` requires.
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
from penstock.protocol.schema import VERSION_MAX, Api, Request, Response
from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.cluster_metadata import ClusterMetadata, Leader
from penstock.wire.connection_pool import AttemptFailed, BrokerConnection, ConnectionPool, Network
from penstock.wire.errors import (
    RecordsTooLarge,
    RequestRejected,
    TopicReplaced,
    TopicUnknown,
    Unreachable,
    WireError,
)
from penstock.wire.retry_policy import (
    Remedy,
    RequestFailure,
    backoff_s,
    failure_of,
    is_gone,
    is_other_topic,
    is_unknown_topic,
    may_retry,
)

_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_SECOND_OPINIONS_MAX: Final = 2
_SECOND_OPINION_S_MAX: Final = 5.0
"""Number of other brokers to check for a topic that the first one lacks, and the time limit for each."""

Input = TypeVar("Input")
Output = TypeVar("Output")
Input_contra = TypeVar("Input_contra", contravariant=True)
Output_co = TypeVar("Output_co", covariant=True)
PartitionOutcome = tuple[TopicPartition, RequestFailure | None, Output]


class LeaderOperation(Protocol[Input_contra, Output_co]):
    """A request that is sent to the leaders of partitions."""

    def send(
        self, broker: BrokerConnection, work: Mapping[TopicPartition, Input_contra]
    ) -> PendingResponse[Any]: ...

    def outcomes(self, answer: Any) -> Iterable[tuple[TopicPartition, RequestFailure | None, Output_co]]: ...


class CallDeadline:
    """The deadline of one call, and the backoff between its attempts."""

    def __init__(self, network: Network, what: str, timeout_s: float) -> None:
        self._network = network
        self.what = what
        self._timeout_s = timeout_s
        self.requested: dict[str, TopicId] = {}
        """Topic ids that the call requires, by topic name."""
        self._found_at: dict[TopicPartition | None, float] = {}
        self.restart()

    def restart(self) -> None:
        """Restart the time limit after progress."""
        self._begun = self._attempt_begun = self._network.monotonic()
        self._failures = 0
        self._absent: tuple[TopicPartition | None, float] | None = None

    def expect(self, topic: str, topic_id: TopicId) -> None:
        """Require this topic id from now on, unless the brokers have no topic ids."""
        if topic_id != NO_TOPIC_ID:
            self.requested[topic] = topic_id

    def found(self, partition: TopicPartition) -> None:
        """Record that a broker returned a leader for the partition, which proves that the name is right."""
        self._found_at[partition] = self._network.monotonic()

    def remaining_s(self) -> float:
        return self._begun + self._timeout_s - self._network.monotonic()

    def wait_for_retry(self, failure: RequestFailure) -> None:
        """Sleep until the next attempt. WireError if there must be none."""
        self._failures += 1
        now = self._network.monotonic()
        pause = backoff_s(self._failures)
        gone = self._is_gone(failure, now + pause)
        spent_s = now - self._begun
        if gone or not may_retry(failure, spent_s=spent_s + pause, timeout_s=self._timeout_s):
            raise self._error(failure, spent_s, is_gone=gone)
        self._network.sleep(pause)
        self._attempt_begun = self._network.monotonic()

    def _is_gone(self, failure: RequestFailure, then: float) -> bool:
        if is_unknown_topic(failure) or is_other_topic(failure):
            if self._absent is None or self._absent[0] != failure.partition:
                self._absent = (failure.partition, self._attempt_begun)
        elif failure.code != ErrorCode.NONE:
            self._absent = None
        # An unreachable broker proves nothing about a topic, so a connection failure keeps `_absent`.
        if self._absent is None:
            return False
        partition, since = self._absent
        was_there = partition in self._found_at or (
            partition is not None and partition.topic in self.requested
        )
        if is_other_topic(failure):
            # A broker that had the requested id contradicts the earlier replies, so the time restarts
            # there.
            since = max(since, self._found_at.get(partition, since))
        return is_gone(failure, was_there=was_there, absent_s=then - since, timeout_s=self._timeout_s)

    def _error(self, failure: RequestFailure, spent_s: float, *, is_gone: bool) -> WireError:
        tried = f" (tried {self._failures} times in {spent_s:.1f} s)" if self._failures > 1 else ""
        advice = f" {failure.advice}" if failure.advice else ""
        kind = _kind_of_absence(failure) if is_gone else _kind(failure)
        error = kind(f"{self.what} failed: {failure.what}{tried}.{advice}")
        error.failure = failure
        return error


def _kind_of_absence(failure: RequestFailure) -> type[WireError]:
    return TopicReplaced if is_other_topic(failure) else TopicUnknown


def _kind(failure: RequestFailure) -> type[WireError]:
    if failure.code in _TOO_LARGE:
        return RecordsTooLarge
    if failure.code == ErrorCode.NONE:
        return Unreachable
    return RequestRejected if failure.remedy is Remedy.GIVE_UP else WireError


class ClusterSession:
    def __init__(self, network: Network, brokers: ConnectionPool, timeout_s: float) -> None:
        self._network = network
        self._brokers = brokers
        self.timeout_s = timeout_s
        self.view = ClusterMetadata()
        self._coordinators: dict[str, Address] = {}
        self._metadata_source: Address | None = None
        """Broker of the latest metadata."""

    def deadline(self, what: str) -> CallDeadline:
        return CallDeadline(self._network, what, self.timeout_s)

    # Single attempts: these raise AttemptFailed

    def exchange(
        self,
        broker: BrokerConnection,
        api: Api[Request, Response],
        message: Request,
        *,
        newest: int = VERSION_MAX,
    ) -> Response:
        with self._brokers.closing_on_failure(broker):
            return broker.ask(api, message, newest=newest)

    def wait(self, broker: BrokerConnection, pending: PendingResponse[Response]) -> Response:
        with self._brokers.closing_on_failure(broker):
            return broker.wait(pending)

    def connection_to_broker(self, address: Address, deadline: CallDeadline) -> BrokerConnection:
        return self._brokers.connection_to(address, max(deadline.remaining_s(), 0.001))

    def any_broker(self, deadline: CallDeadline) -> BrokerConnection:
        return self._brokers.any(self.view.addresses.values(), deadline.remaining_s)

    def controller(self, deadline: CallDeadline) -> BrokerConnection:
        """Connection to the controller, which takes changes; to any broker if there is none at present."""
        self.refresh([], deadline)
        address = self.view.controller
        return self.any_broker(deadline) if address is None else self.connection_to_broker(address, deadline)

    def start_request(
        self, broker: BrokerConnection, send: Callable[[], PendingResponse[Response]]
    ) -> PendingResponse[Response]:
        with self._brokers.closing_on_failure(broker):
            return send()

    def refresh(self, names: Iterable[str] | None, deadline: CallDeadline) -> Address:
        """Request metadata of these topics; None: of all topics. Returns the address of the broker that
        replied."""
        broker = self.any_broker(deadline)
        answer = self._metadata(broker, names)
        if names is None:
            self.view = ClusterMetadata()
        self.view.update(answer)
        self._metadata_source = broker.address
        return broker.address

    def refresh_topics(self, requested: Mapping[str, TopicId], deadline: CallDeadline) -> None:
        """Request metadata from one broker, and from others what it lacks: one broker may be behind."""
        asked = self.refresh(requested, deadline)
        known = self._brokers.candidates(self.view.addresses.values())
        for address in [each for each in known if each != asked][:_SECOND_OPINIONS_MAX]:
            if not (missing_topics := self.view.missing_topics(requested)):
                return
            # So that the next attempt begins with another broker, and all are reached.
            self._brokers.deprioritize(asked)
            asked = address
            try:
                broker = self._brokers.connection_to(
                    address, min(max(deadline.remaining_s(), 0.001), _SECOND_OPINION_S_MAX)
                )
                answer = self._metadata(broker, missing_topics)
            except AttemptFailed:
                continue  # a first broker has replied; this check is optional
            if self.view.merge_better(answer, missing_topics):
                self._metadata_source = address

    def _metadata(self, broker: BrokerConnection, names: Iterable[str] | None) -> MetadataResponse:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = self.exchange(broker, METADATA, request)
        if answer.error_code != ErrorCode.NONE:
            raise AttemptFailed(failure_of(answer.error_code))
        return answer

    def leaders_of(
        self, partitions: Iterable[TopicPartition], deadline: CallDeadline
    ) -> dict[TopicPartition, Leader | RequestFailure]:
        """Leader of each partition, in the topic that the call requires; or why it is unknown."""
        partitions = list(partitions)
        requested = {each.topic: deadline.requested.get(each.topic, NO_TOPIC_ID) for each in partitions}
        if missing_topics := self.view.missing_topics(requested):
            self.refresh_topics(missing_topics, deadline)
        leaders = {each: self.view.leader_of(each, requested[each.topic]) for each in partitions}
        for partition, leader in leaders.items():
            if isinstance(leader, Leader):
                deadline.found(partition)
        return leaders

    def leader_of(self, partition: TopicPartition, deadline: CallDeadline) -> Leader:
        found = self.leaders_of([partition], deadline)[partition]
        if isinstance(found, RequestFailure):
            raise AttemptFailed(found)
        return found

    # Calls with retries: these raise WireError

    def retry(
        self, deadline: CallDeadline, attempt: Callable[[], Output], names: Iterable[str] = ()
    ) -> Output:
        """Run attempts until one does not raise AttemptFailed. `names`: topics to look up again."""
        while True:
            try:
                return attempt()
            except AttemptFailed as failed:
                self.recover(deadline, failed.failure, names)

    def recover(self, deadline: CallDeadline, failure: RequestFailure, names: Iterable[str]) -> None:
        """Wait, and apply the failure's remedy before the next attempt. WireError if there must be none."""
        deadline.wait_for_retry(failure)
        if failure.remedy is Remedy.FIND_LEADER:
            self.view.forget(names)
            if self._metadata_source is not None:
                self._brokers.deprioritize(self._metadata_source)
        elif failure.remedy is Remedy.FIND_COORDINATOR:
            self._coordinators.clear()

    def run_on_leaders(
        self,
        deadline: CallDeadline,
        operation: LeaderOperation[Input, Output],
        work: Mapping[TopicPartition, Input],
    ) -> dict[TopicPartition, Output]:
        """Run an operation on the leaders of all partitions, with retries, and return its results."""
        left = dict(work)
        found: dict[TopicPartition, Output] = {}
        while left:
            failures: dict[TopicPartition, RequestFailure] = {}
            for partition, failure, result in self._attempt_on_leaders(deadline, operation, left):
                if failure is None and result is not None:
                    found[partition] = result
                    left.pop(partition, None)
                elif failure is not None:
                    failures[partition] = failure
            if left:
                partition, failure = _decisive_failure(left, failures)
                named = failure._replace(what=f"{partition}: {failure.what}", partition=partition)
                self.recover(deadline, named, {each.topic for each in left})
        return found

    def _attempt_on_leaders(
        self,
        deadline: CallDeadline,
        operation: LeaderOperation[Input, Output],
        work: Mapping[TopicPartition, Input],
    ) -> Iterator[PartitionOutcome[Output | None]]:
        try:
            leaders = self.leaders_of(work, deadline)
        except AttemptFailed as failed:
            yield from ((partition, failed.failure, None) for partition in work)
            return
        led: dict[Address, dict[TopicPartition, Input]] = {}
        for partition, leader in leaders.items():
            if isinstance(leader, RequestFailure):
                yield partition, leader, None
            else:
                led.setdefault(leader.address, {})[partition] = work[partition]
        # All requests are sent before the first wait (rule 1).
        sent: list[tuple[BrokerConnection, PendingResponse[Any], dict[TopicPartition, Input]]] = []
        for address, part in led.items():
            try:
                broker = self.connection_to_broker(address, deadline)
                sent.append((broker, self._send(operation, broker, part), part))
            except AttemptFailed as failed:
                yield from ((partition, failed.failure, None) for partition in part)
        for broker, pending, part in sent:
            try:
                yield from operation.outcomes(self.wait(broker, pending))
            except AttemptFailed as failed:
                yield from ((partition, failed.failure, None) for partition in part)

    def _send(
        self,
        operation: LeaderOperation[Input, Output],
        broker: BrokerConnection,
        part: Mapping[TopicPartition, Input],
    ) -> PendingResponse[Any]:
        return self.start_request(broker, lambda: operation.send(broker, part))

    def run_on_coordinator(
        self,
        deadline: CallDeadline,
        group: str,
        ask: Callable[[BrokerConnection], Output],
    ) -> Output:
        """Run `ask` on the group's coordinator, again as long as it raises AttemptFailed."""

        def attempt() -> Output:
            address = self._coordinator(group, deadline)
            try:
                return ask(self.connection_to_broker(address, deadline))
            except AttemptFailed as failed:
                if failed.failure.code == ErrorCode.NONE:
                    # The coordinator is unreachable: another broker may have taken over.
                    self._coordinators.pop(group, None)
                raise

        return self.retry(deadline, attempt)

    def _coordinator(self, group: str, deadline: CallDeadline) -> Address:
        if group not in self._coordinators:
            broker = self.any_broker(deadline)
            self._coordinators[group] = self._find_coordinator(broker, group)
        return self._coordinators[group]

    def _find_coordinator(self, broker: BrokerConnection, group: str) -> Address:
        answer = self.exchange(
            broker, FIND_COORDINATOR, FindCoordinatorRequest(key=group, coordinator_keys=[group])
        )
        # Before the version with several keys, the reply itself names the coordinator.
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code != ErrorCode.NONE:
            raise AttemptFailed(failure_of(found.error_code, found.error_message))
        if not found.host:
            raise AttemptFailed(failure_of(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return Address(found.host, found.port)

    def close(self) -> None:
        self._brokers.close()


def _decisive_failure(
    left: Iterable[TopicPartition], failures: Mapping[TopicPartition, RequestFailure]
) -> tuple[TopicPartition, RequestFailure]:
    """The failure that decides the next step: permanent ones first, then those that need a lookup."""
    order = [Remedy.GIVE_UP, Remedy.FIND_LEADER, Remedy.FIND_COORDINATOR, Remedy.RETRY]
    silent = RequestFailure("the broker said nothing about it", Remedy.FIND_LEADER)
    named = ((partition, failures.get(partition, silent)) for partition in left)
    return min(named, key=lambda each: order.index(each[1].remedy))
