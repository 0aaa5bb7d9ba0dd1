"""Clients that make up identities: every request has a reply, and nothing that is stored becomes invalid."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import ErrorCode
from penstock.transactions.records import record_of, transaction_of, value_of
from penstock.transactions.transaction import CLIENT_EPOCH_MAX, EPOCH_MAX, Transaction
from penstock.types import TopicPartition
from tests.unit.transactions.transactions_support import (
    START,
    TIMEOUT_MS,
    TV1,
    TV2,
    TransactionsHarness,
    identity,
)

LONG_MAX = 2**63 - 1
OWN_ID = 7
PRODUCER_IDS = [OWN_ID, OWN_ID + 1, 1_000, 1_001, 0, -1, -LONG_MAX - 1, LONG_MAX]
EPOCHS = [0, 1, CLIENT_EPOCH_MAX, EPOCH_MAX, -EPOCH_MAX - 1]
epochs = st.sampled_from(EPOCHS)
identities = st.builds(identity, st.just(OWN_ID), epochs) | st.builds(
    identity, st.sampled_from(PRODUCER_IDS), epochs
)
versions = st.sampled_from([TV1, TV2])
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.sampled_from([0, 2**31 - 1, -1]))
requests = st.one_of(
    st.tuples(st.just("init"), st.none() | identities),
    st.tuples(st.just("add"), identities, partitions, versions),
    st.tuples(st.just("verify"), identities, partitions),
    st.tuples(st.just("end"), identities, st.booleans(), versions),
    st.tuples(st.just("acknowledge")),
    st.tuples(st.just("wait"), st.sampled_from([1, TIMEOUT_MS])),
    st.tuples(st.just("load")),
)


def run(harness: TransactionsHarness, kind: str, *arguments: object) -> object:
    if kind == "init":
        return harness.init(expected=arguments[0])  # type: ignore[arg-type]
    if kind == "add":
        return harness.add(*arguments[:2], version=arguments[2])  # type: ignore[arg-type]
    if kind == "wait":
        harness.advance(*arguments)  # type: ignore[arg-type]
        return None
    if kind == "acknowledge":
        for markers in tuple(harness.sent):
            harness.acknowledge(markers)
        return None
    return getattr(harness, kind)(*arguments)


@given(
    epoch=st.sampled_from([0, CLIENT_EPOCH_MAX, EPOCH_MAX]), asked=st.lists(requests, min_size=5, max_size=30)
)
@example(epoch=EPOCH_MAX, asked=[("end", identity(OWN_ID, EPOCH_MAX), False, TV2)])
@settings(deadline=None, max_examples=200)
def test_whatever_identities_clients_make_up(epoch: int, asked: list[tuple[object, ...]]) -> None:
    harness = TransactionsHarness()
    before = Transaction("t", identity(OWN_ID, epoch), TIMEOUT_MS, updated_ms=START.wall_ms)
    harness.log.append(record_of(before))
    harness.load()
    for kind, *arguments in asked:
        reply = run(harness, str(kind), *arguments)
        assert reply is not ErrorCode.UNKNOWN_SERVER_ERROR
        state = harness.state()
        assert state.producer >= before.producer
        assert state.next_producer.epoch <= EPOCH_MAX
        assert transaction_of("t", value_of(state)) == state
        before = state
