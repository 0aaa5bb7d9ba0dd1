"""Admin requests that must reach a leader or the controller: librdkafka routes them.

The requests are topic and config changes, and offset lookups. A rejection becomes CommandFailed with the
broker's own error message, which names the setting or limit that was violated. After a leader change, the
request is retried at the new leader, which librdkafka leaves to its caller.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin as untyped

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.main import with_full_stop
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.cli.topic_metadata import leaderless_reason, reported_error
from penstock.errors import CommandFailed

# confluent_kafka does not re-export its names explicitly, so type checkers reject them.
kafka: Any = untyped

SETTINGS_ARE_LISTED: Final = "`penstock topic describe NAME --all-settings` lists the settings of a topic."

_MOVED: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_MOVED_PAUSE_S: Final = 0.1


class LeadersMoved(CommandFailed):
    """The partitions have other leaders by now: the request can be retried there."""


class TopicSetting(NamedTuple):
    value: str | None
    is_override: bool


class FoundOffset(NamedTuple):
    offset: int | None
    timestamp: int | None


class Admin:
    """Wrapper of librdkafka's admin client, which runs one request at a time."""

    def __init__(self, broker: BrokerConnector) -> None:
        self._broker = broker
        self._timeout_s = broker.timeout_s
        # Otherwise a lookup would create the topic, like a lookup of a producer.
        self._client = kafka.AdminClient(broker.settings(**{"allow.auto.create.topics": False}))
        self._leaders_known: set[str] = set()

    def create(
        self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str]
    ) -> bool:
        """Create a topic; False if the name exists already."""
        failure = f"topic {name} was not created"
        with _explaining_local_errors(failure):
            new = kafka.NewTopic(name, partitions, replication_factor, config=dict(settings))
            (future,) = self._client.create_topics([new], request_timeout=self._timeout_s).values()
        try:
            future.result()
        except KafkaException as refusal:
            if refusal.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise CommandFailed(error_sentence(refusal.args[0], failure)) from refusal
        return True

    def add_partitions(self, name: str, partitions: int, *, validate_only: bool) -> None:
        failure = f"topic {name} was not changed"
        with _explaining_local_errors(failure):
            futures = self._client.create_partitions(
                [kafka.NewPartitions(name, partitions)],
                request_timeout=self._timeout_s,
                validate_only=validate_only,
            )
        self._all(futures, failure)

    def alter(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Change topic configs; a value of None removes the topic's override."""
        operations = {True: kafka.AlterConfigOpType.DELETE, False: kafka.AlterConfigOpType.SET}
        entries = [
            kafka.ConfigEntry(key, value or "", incremental_operation=operations[value is None])
            for key, value in changes.items()
        ]
        resource = kafka.ConfigResource(kafka.ResourceType.TOPIC, name, incremental_configs=entries)
        futures = self._client.incremental_alter_configs(
            [resource], request_timeout=self._timeout_s, validate_only=validate_only
        )
        self._all(futures, f"topic {name} was not changed")

    def settings(self, names: Sequence[str]) -> dict[str, dict[str, TopicSetting]]:
        resources = [kafka.ConfigResource(kafka.ResourceType.TOPIC, name) for name in names]
        futures = self._client.describe_configs(resources, request_timeout=self._timeout_s)
        found = self._all(futures, "the settings cannot be read")
        own = kafka.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            resource.name: {
                key: TopicSetting(entry.value, entry.source == own) for key, entry in sorted(entries.items())
            }
            for resource, entries in found.items()
        }

    def delete(self, names: Sequence[str]) -> None:
        futures = self._client.delete_topics(list(names), request_timeout=self._timeout_s)
        self._all(futures, "not every topic was deleted")

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete records up to the given offsets, and return the new log start offset of each partition."""
        failure = f"topic {topic} was not truncated everywhere"
        wanted = [TopicPartition(topic, number, offset) for number, offset in before.items()]
        ask = partial(self._client.delete_records, wanted, request_timeout=self._timeout_s)
        found = self._run_on_leaders(topic, before, ask, failure)
        return {entry.partition: result.low_watermark for entry, result in found.items()}

    def offsets(
        self, topic: str, partitions: Sequence[int], position: PositionSpec
    ) -> dict[int, FoundOffset]:
        failure = f"the offsets of topic {topic} cannot be read"
        question = _specification(position)
        wanted = {TopicPartition(topic, number): question for number in partitions}
        ask = partial(self._client.list_offsets, wanted, request_timeout=self._timeout_s)
        found = self._run_on_leaders(topic, partitions, ask, failure)
        return {
            entry.partition: FoundOffset(
                result.offset if result.offset >= 0 else None,
                result.timestamp if result.timestamp >= 0 else None,
            )
            for entry, result in found.items()
        }

    def span(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the log start and end offset of each partition."""
        starts = self.offsets(topic, partitions, PositionSpec(PositionKind.EARLIEST))
        ends = self.offsets(topic, partitions, PositionSpec(PositionKind.LATEST))
        return {number: (starts[number].offset or 0, ends[number].offset or 0) for number in partitions}

    def _run_on_leaders(
        self,
        topic: str,
        partitions: Iterable[int],
        ask: "Callable[[], Mapping[Any, Future[Any]]]",
        failure: str,
    ) -> dict[Any, Any]:
        """Run a request at the leaders of the partitions, and retry it after leader changes."""
        gives_up_at = time.monotonic() + self._timeout_s
        while True:
            self._fetch_leaders(topic, failure)
            with self._explaining_missing_leaders(topic, partitions, failure):
                try:
                    return self._all(ask(), failure)
                except LeadersMoved:
                    if time.monotonic() >= gives_up_at:
                        raise
            # The topic's metadata is fetched again before the retry, since the leaders have changed.
            self._leaders_known.discard(topic)
            time.sleep(_MOVED_PAUSE_S)

    @contextmanager
    def _explaining_missing_leaders(
        self, topic: str, partitions: Iterable[int], failure: str
    ) -> Iterator[None]:
        """Name the partitions without a leader in the error, which librdkafka reports without details."""
        try:
            yield
        except CommandFailed:
            if reason := leaderless_reason(self._broker, topic, partitions):
                raise CommandFailed(with_full_stop(f"{failure}: {reason}")) from None
            raise

    def _fetch_leaders(self, topic: str, failure: str) -> None:
        """Fetch the topic's leaders before a request that goes to leaders.

        librdkafka requests the leaders by itself only once in three seconds. On connecting, it switches from
        the bootstrap address to the broker's advertised address. A request in flight at that moment is lost
        with the connection. librdkafka retries this explicit metadata request, but not its own.
        """
        if topic in self._leaders_known:
            return
        try:
            self._client.list_topics(topic, timeout=self._timeout_s)
        except KafkaException as problem:
            raise CommandFailed(error_sentence(problem.args[0], failure)) from problem
        self._leaders_known.add(topic)

    def _all(self, futures: Mapping[Any, "Future[Any]"], failure: str) -> dict[Any, Any]:
        results, problems, codes = {}, [], set()
        for what, future in futures.items():
            try:
                results[what] = future.result()
            except KafkaException as refusal:
                problems.append(error_sentence(refusal.args[0], failure, what))
                codes.add(refusal.args[0].code())
        if problems:
            # A retry helps only if all errors are leader changes.
            kind = LeadersMoved if codes <= _MOVED else CommandFailed
            raise kind("\n".join(dict.fromkeys(problems)))
        return results


@contextmanager
def _explaining_local_errors(failure: str) -> Iterator[None]:
    """Convert errors that librdkafka raises locally, such as a number outside of its range."""
    try:
        yield
    except (ValueError, OverflowError) as problem:
        raise CommandFailed(with_full_stop(f"{failure}: {problem}")) from problem


def _specification(position: PositionSpec) -> Any:
    assert position.kind is not PositionKind.OFFSET, "an offset need not be asked for"
    if position.kind is PositionKind.TIMESTAMP:
        return kafka.OffsetSpec.for_timestamp(position.number)
    named = {
        PositionKind.EARLIEST: kafka.OffsetSpec.earliest,
        PositionKind.LATEST: kafka.OffsetSpec.latest,
        PositionKind.MAX_TIMESTAMP: kafka.OffsetSpec.max_timestamp,
    }
    return named[position.kind]()


def error_sentence(error: Any, failure: str, what: Any = None) -> str:
    """Return the broker's error message, which names the problem. `what` is the subject of the request."""
    said = error.str().removeprefix("Broker: ") or error.name()
    if error.code() == KafkaError.KAFKA_STORAGE_ERROR and isinstance(what, TopicPartition):
        said = reported_error(error.code(), f"{what.topic}-{what.partition}")
    elif error.code() in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
        said = "no answer came in time; allow more with --timeout"
    elif error.code() == KafkaError._TRANSPORT:
        said = "the connection to the broker was lost, or none could be made"
    told = with_full_stop(f"{failure}: {said}")
    is_unknown = error.code() == KafkaError.INVALID_CONFIG and "unknown" in said.lower()
    return f"{told} {SETTINGS_ARE_LISTED}" if is_unknown else told
