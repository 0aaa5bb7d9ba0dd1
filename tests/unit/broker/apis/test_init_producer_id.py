"""InitProducerId: no id is handed out twice, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from inspect import isawaitable

import pytest

from penstock.broker.apis.init_producer_id import InitProducerId
from penstock.controller.producer_ids import next_producer_id_block
from penstock.errors import ErrorCode
from penstock.limits import PRODUCER_IDS_PER_BLOCK
from penstock.protocol.messages.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.unit.broker.support import DENY_EVERYTHING, HandlerHarness, running_cluster

PLAIN = InitProducerIdRequest(None, transaction_timeout_ms=-1)


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


def refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@pytest.mark.parametrize("version", range(6))
async def test_a_producer_gets_an_id_and_the_first_epoch(harness: HandlerHarness, version: int) -> None:
    reply = await harness.ask(INIT_PRODUCER_ID, InitProducerId(harness.cluster), PLAIN, version)

    assert reply == InitProducerIdResponse(error_code=0, producer_id=0, producer_epoch=0)


async def test_requests_at_once_share_a_block_and_no_id_is_handed_out_twice(harness: HandlerHarness) -> None:
    handler = InitProducerId(harness.cluster)
    count = PRODUCER_IDS_PER_BLOCK + 50
    replies = await asyncio.gather(*(harness.ask(INIT_PRODUCER_ID, handler, PLAIN) for _ in range(count)))

    assert sorted(reply.producer_id for reply in replies) == list(range(count))
    assert harness.store.commits == 2


async def test_only_a_request_that_needs_a_new_block_waits(harness: HandlerHarness) -> None:
    handler = InitProducerId(harness.cluster)
    first = harness.answer(INIT_PRODUCER_ID, handler, PLAIN, 5)
    assert isawaitable(first)
    await first

    assert isinstance(harness.answer(INIT_PRODUCER_ID, handler, PLAIN, 5), InitProducerIdResponse)


async def test_ids_left_over_by_a_stopped_broker_are_not_handed_out_again(harness: HandlerHarness) -> None:
    before = await harness.ask(INIT_PRODUCER_ID, InitProducerId(harness.cluster), PLAIN)
    after = await harness.ask(INIT_PRODUCER_ID, InitProducerId(harness.cluster), PLAIN)

    assert (before.producer_id, after.producer_id) == (0, PRODUCER_IDS_PER_BLOCK)


async def test_a_block_that_another_broker_took_meanwhile_is_not_used(harness: HandlerHarness) -> None:
    harness.store.before_commit = next_producer_id_block(harness.cluster.image).decision.changes
    reply = await harness.ask(INIT_PRODUCER_ID, InitProducerId(harness.cluster), PLAIN)

    assert reply.producer_id == PRODUCER_IDS_PER_BLOCK


async def test_a_producer_that_gives_its_old_id_and_epoch_gets_a_new_id(harness: HandlerHarness) -> None:
    handler = InitProducerId(harness.cluster)
    for given, expected in (((0, 5), 0), ((-5, -5), 1)):
        request = InitProducerIdRequest(None, 0, *given)
        reply = await harness.ask(INIT_PRODUCER_ID, handler, request)
        assert reply == InitProducerIdResponse(error_code=0, producer_id=expected, producer_epoch=0)


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 7)])
async def test_an_id_without_an_epoch_or_the_reverse_is_invalid(
    harness: HandlerHarness, producer_id: int, epoch: int
) -> None:
    request = InitProducerIdRequest(None, 0, producer_id, epoch)
    reply = await harness.ask(INIT_PRODUCER_ID, InitProducerId(harness.cluster), request)

    assert reply == refused(ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [("", ErrorCode.INVALID_REQUEST), ("payments", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)],
)
async def test_transactions_are_rejected_for_good(
    harness: HandlerHarness, transactional_id: str, code: ErrorCode
) -> None:
    request = InitProducerIdRequest(transactional_id, 60_000)
    reply = await harness.ask(INIT_PRODUCER_ID, InitProducerId(harness.cluster), request)

    assert reply == refused(code)


async def test_who_may_not_write_gets_no_id(harness: HandlerHarness) -> None:
    handler = InitProducerId(harness.cluster)
    plain = await harness.ask(INIT_PRODUCER_ID, handler, PLAIN, authorizer=DENY_EVERYTHING)
    request = InitProducerIdRequest("payments", 60_000)
    transactional = await harness.ask(INIT_PRODUCER_ID, handler, request, authorizer=DENY_EVERYTHING)

    assert plain == refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert transactional == refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


async def test_a_full_disk_is_waited_out(harness: HandlerHarness) -> None:
    handler = InitProducerId(harness.cluster)
    harness.store.is_full = True
    meanwhile = await harness.ask(INIT_PRODUCER_ID, handler, PLAIN)
    harness.store.is_full = False
    afterwards = await harness.ask(INIT_PRODUCER_ID, handler, PLAIN)

    assert meanwhile == refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert afterwards.producer_id == 0
