"""Transactional producers of every kind against a coordinator, and what must hold whatever happens.

Each producer does what it likes at any time: starts, begins anew, adds partitions, commits, aborts, repeats
its last request because it never saw the reply, and goes on although another producer has its id (a zombie).
Half of them keep one epoch (TV1), the others get a new one for each transaction (TV2). Replies and markers
wait for the disk; writes fail, or are on a follower's disk when the coordinator dies; the coordinator may not
write for a while; markers are acknowledged in any order, twice, late, or after another coordinator took over.

    the log only grows     a new coordinator loses nothing durable, and states follow each other as Kafka's
    one decision           a durable PrepareCommit is never aborted, a durable PrepareAbort never committed
    markers say the same   a marker leaves only for a decision that is durable, and says just that
    complete means marked  no transaction is complete before each of its partitions has its marker
    in time                every open transaction ends within its timeout
    one owner              no two producers get the same producer id and epoch
    never back             producer ids and epochs of a transactional id only grow
    replies stay true      what a client was told is in the durable log
    zombies are fenced     a producer that was replaced before it asked has no success any more
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.coordinator.outcome import StateRecord
from penstock.coordinator.shard import Phase
from penstock.errors import ErrorCode
from penstock.limits import DAY_MS
from penstock.protocol.messages.end_txn import EndTxnResponse
from penstock.protocol.messages.init_producer_id import InitProducerIdResponse
from penstock.transactions.ending import EndTransactionRequest
from penstock.transactions.initialise import InitProducerRequest
from penstock.transactions.markers import TransactionMarkers
from penstock.transactions.partitions import PartitionsRequest
from penstock.transactions.records import decode_key, decode_value, record_of, transaction_of
from penstock.transactions.transaction import (
    AT_REST,
    CLIENT_EPOCH_MAX,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NEW_EPOCH_VERSION,
    NO_IDENTITY,
    ONGOING,
    PREDECESSORS,
    PREPARED,
    ProducerIdentity,
    Transaction,
)
from penstock.types import ProducerId, TopicPartition
from tests.unit.transactions.transaction_shard import FIRST_OFFSET, Request, ShardOfTransactions
from tests.unit.transactions.transactions_support import START, TV1, TV2

NAMES = ["a", "b"]
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("mail", 0)]
TIMEOUT_MS = 10_000
PRODUCERS = st.integers(0, 5)


class Producer:
    """What a producer believes, from the replies that it got."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.identity: ProducerIdentity | None = None
        self.last: Request | None = None


class TransactionCoordinators(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shards = ShardOfTransactions()
        self.shards.on_sent = self.check_markers
        self.producers: list[Producer] = []
        self.owners: dict[ProducerIdentity, Producer] = {}
        self.newest: dict[str, Producer] = {}
        """The producer that was the last to get its transactional id, by name."""
        self.seen: dict[str, list[Transaction | None]] = {name: [] for name in NAMES}
        """The durable states of each id. None: the id was deleted."""
        self.records: list[StateRecord] = []
        """All durable records, and below where they end."""
        self.read_to = FIRST_OFFSET
        self.prepared: list[tuple[TransactionMarkers, str, int]] = []
        """Markers that were sent, with the id and the number of the state that they are for."""
        self.written: set[tuple[str, int, TopicPartition]] = set()
        """Partitions that have the marker for this state of this id."""
        self.opened_at: dict[str, float] = {}

    # What producers do

    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([TV1, TV2]), is_durable=st.booleans())
    def start_a_producer(self, name: str, version: int, is_durable: bool) -> None:
        if len(self.producers) < 6:
            self.producers.append(Producer(name, version))
        else:
            self.producers[0] = Producer(name, version)
        self.initialise(len(self.producers) - 1, False)
        if is_durable:
            self.become_durable()

    @rule(number=PRODUCERS, sends_identity=st.booleans())
    def initialise(self, number: int, sends_identity: bool) -> None:
        producer = self.find(number)
        if producer is not None:
            expected = producer.identity if sends_identity else None
            self.send(producer, InitProducerRequest(producer.name, TIMEOUT_MS, expected))

    @rule(number=PRODUCERS, partition=st.sampled_from(PARTITIONS))
    def add(self, number: int, partition: TopicPartition) -> None:
        producer = self.find(number)
        if producer is not None and producer.identity is not None:
            request = PartitionsRequest(producer.name, producer.identity, [partition], producer.version)
            self.send(producer, request)

    @rule(number=PRODUCERS, is_commit=st.booleans())
    def end(self, number: int, is_commit: bool) -> None:
        producer = self.find(number)
        if producer is not None and producer.identity is not None:
            request = EndTransactionRequest(producer.name, producer.identity, is_commit, producer.version)
            self.send(producer, request)

    @rule(number=PRODUCERS)
    def repeat(self, number: int) -> None:
        producer = self.find(number)
        if producer is not None and producer.last is not None:
            self.send(producer, producer.last)

    @rule(number=PRODUCERS, partition=st.sampled_from(PARTITIONS), is_commit=st.booleans())
    def a_whole_transaction(self, number: int, partition: TopicPartition, is_commit: bool) -> None:
        self.add(number, partition)
        self.become_durable()
        self.end(number, is_commit)
        self.become_durable()

    @rule(number=PRODUCERS, dies_too=st.booleans(), ms=st.sampled_from([9_000, TIMEOUT_MS]))
    def a_producer_falls_silent(self, number: int, dies_too: bool, ms: int) -> None:
        """It leaves its transaction open, and perhaps the coordinator dies as well."""
        self.add(number, PARTITIONS[0])
        self.become_durable()
        if dies_too:
            self.fail_over(False)
        self.time_passes(ms)
        self.time_passes(1_000)

    def find(self, number: int) -> Producer | None:
        return self.producers[number % len(self.producers)] if self.producers else None

    def send(self, producer: Producer, request: Request) -> None:
        producer.last = request
        rival = self.newest.get(producer.name)
        was_replaced = rival is not None and rival is not producer
        new_id = ProducerId(self.shards.next_id)

        def on_reply(reply: object) -> None:
            if not isinstance(reply, ErrorCode):
                self.read_log()
                self.check_reply(producer, request, reply, was_replaced, new_id)

        self.shards.ask(request, on_reply)

    # What else happens

    @rule()
    def become_durable(self) -> None:
        self.shards.sync()

    @rule(
        number=st.integers(0, 20),
        partitions=st.lists(st.sampled_from(PARTITIONS), max_size=3),
        is_newest=st.booleans(),
    )
    def acknowledge(self, number: int, partitions: list[TopicPartition], is_newest: bool) -> None:
        if not self.prepared:
            return
        markers, name, state = self.prepared[-1 if is_newest else number % len(self.prepared)]
        acknowledged = [each for each in partitions if each in markers.partitions]
        self.written.update((name, state, partition) for partition in acknowledged)
        self.shards.acknowledge(markers, acknowledged)

    @rule()
    def acknowledge_everything(self) -> None:
        for markers, name, state in list(self.prepared):
            self.written.update((name, state, partition) for partition in markers.partitions)
            self.shards.acknowledge(markers, list(markers.partitions))
        self.shards.sync()

    @rule(number=PRODUCERS, sends_identity=st.booleans())
    def initialise_while_writes_fail(self, number: int, sends_identity: bool) -> None:
        self.shards.break_writes()
        self.initialise(number, sends_identity)
        self.shards.repair()

    @rule(number=PRODUCERS, is_commit=st.booleans())
    def end_while_writes_fail(self, number: int, is_commit: bool) -> None:
        self.shards.break_writes()
        self.end(number, is_commit)
        self.shards.repair()

    @rule(keeps_all=st.booleans())
    def fail_over(self, keeps_all: bool) -> None:
        self.shards.fail_over(keeps_all)
        kept = list(self.shards.durable())
        assert kept[: len(self.records)] == self.records, "a durable record was lost"

    @rule(is_writable=st.booleans())
    def in_sync_replicas_change(self, is_writable: bool) -> None:
        self.shards.set_writable(is_writable)

    @rule(ms=st.sampled_from([1, 1_000, 5_000, TIMEOUT_MS, 3 * TIMEOUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.shards.advance(ms)
        self.shards.sync()
        self.read_log()
        is_served = self.shards.shard.phase is Phase.ACTIVE and self.shards.partition.min_isr_error is None
        for name, opened_at in self.opened_at.items():
            age_ms = (self.shards.clock.monotonic - opened_at) * 1000
            assert not is_served or age_ms < TIMEOUT_MS + 1, f"{name} is open for {age_ms} ms"

    @rule()
    def ids_expire(self) -> None:
        self.shards.advance(8 * DAY_MS)
        self.shards.sync()

    @rule(name=st.sampled_from(NAMES), version=st.sampled_from([TV1, TV2]))
    def epochs_are_nearly_used_up(self, name: str, version: int) -> None:
        """As if a producer had had many epochs: a record of the next coordinator's log says so."""
        self.shards.sync()
        self.read_log()
        last = self.seen[name][-1] if self.seen[name] else None
        if last is None or last.status not in AT_REST or last.producer.epoch >= CLIENT_EPOCH_MAX - 1:
            return
        identity = last.producer._replace(epoch=CLIENT_EPOCH_MAX - 1)
        used = last._replace(producer=identity, previous=NO_IDENTITY, status=EMPTY)
        self.shards.append(record_of(used))
        self.newest.pop(name, None)
        self.shards.fail_over()

    # What must hold

    @invariant()
    def read_log(self) -> None:
        """Check each state that has become durable."""
        for record in self.shards.durable(self.read_to):
            self.records.append(record)
            name = decode_key(record.key)
            assert name is not None
            value = record.value
            self.seen[name].append(None if value is None else transaction_of(name, decode_value(value)))
            self.check_state(name, len(self.seen[name]) - 1)
        self.read_to = self.shards.partition.high_watermark

    def check_state(self, name: str, number: int) -> None:
        after = self.seen[name][number]
        before = self.seen[name][number - 1] if number else None
        if after is not None and after.status is ONGOING:
            self.opened_at.setdefault(name, self.shards.clock.monotonic)
        else:
            self.opened_at.pop(name, None)
        if after is None:
            assert before is not None
            assert before.status in AT_REST, "an id with an open transaction was deleted"
            return
        earlier = [state.producer for state in self.seen[name][:number] if state is not None]
        assert after.producer >= max(earlier, default=after.producer), "an identity went back"
        if before is None:
            return
        assert before.status in PREDECESSORS[after.status]
        if after.status in (COMPLETE_COMMIT, COMPLETE_ABORT):
            assert before.is_committing == after.is_committing
            marked = {partition for of, at, partition in self.written if (of, at) == (name, number - 1)}
            assert before.partitions <= marked, "complete without all markers"

    def check_markers(self, markers: TransactionMarkers) -> None:
        self.read_log()
        states = self.seen[markers.transactional_id]
        decided = states[-1]
        assert decided is not None
        assert decided.status in PREPARED, "a marker without a durable decision"
        assert (decided.producer, decided.is_committing) == (markers.producer, markers.is_commit)
        assert decided.partitions == set(markers.partitions)
        self.prepared.append((markers, markers.transactional_id, len(states) - 1))

    def check_reply(
        self, producer: Producer, request: Request, reply: object, was_replaced: bool, new_id: ProducerId
    ) -> None:
        """A success. `new_id` is the producer id that the request could have taken."""
        states = [state for state in self.seen[producer.name] if state is not None]
        if isinstance(reply, InitProducerIdResponse):
            assert isinstance(request, InitProducerRequest)
            given = ProducerIdentity(ProducerId(reply.producer_id), reply.producer_epoch)
            is_anew = given == (new_id, 0)
            assert not was_replaced or request.expected is None or is_anew, "a zombie went on"
            assert any(state.next_producer == given for state in states)
            self.check_owner(producer, given)
            producer.identity = given
            self.newest[producer.name] = producer
            return
        assert not was_replaced, "a zombie had success"
        assert not isinstance(request, InitProducerRequest)
        if isinstance(request, PartitionsRequest):
            assert any(
                state.status is ONGOING
                and state.producer == request.producer
                and state.partitions >= set(request.partitions)
                for state in states
            )
            return
        assert isinstance(reply, EndTxnResponse)
        has_new_epoch = request.client_version >= NEW_EPOCH_VERSION
        if has_new_epoch:
            given = ProducerIdentity(ProducerId(reply.producer_id), reply.producer_epoch)
            self.check_owner(producer, given)
            assert any(state.next_producer == given for state in states)
            if producer.identity == request.producer:
                producer.identity = given
        decisions = [state for state in states if state.status in PREPARED]
        assert any(
            (state.previous if has_new_epoch else state.producer) == request.producer
            and state.is_committing == request.is_commit
            for state in decisions
        )

    def check_owner(self, producer: Producer, given: ProducerIdentity) -> None:
        assert given.epoch <= CLIENT_EPOCH_MAX, "the reserved epoch was given away"
        assert self.owners.setdefault(given, producer) is producer, f"{given} has two owners"

    def teardown(self) -> None:
        """Whatever has happened: when the cluster works again, every id can be used again."""
        self.shards.set_writable(True)
        self.shards.fail_over(keeps_all=True)
        self.shards.advance(TIMEOUT_MS)
        self.shards.sync()
        for _ in range(2):
            self.acknowledge_everything()
        self.read_log()
        for name in NAMES:
            last = self.seen[name][-1] if self.seen[name] else None
            assert last is None or last.status in AT_REST
            replies: list[object] = []
            self.shards.ask(InitProducerRequest(name, TIMEOUT_MS), replies.append)
            self.shards.sync()
            assert isinstance(replies[0], InitProducerIdResponse)
        assert self.shards.clock.wall_ms >= START.wall_ms


TestTransactionCoordinators = TransactionCoordinators.TestCase
TestTransactionCoordinators.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
