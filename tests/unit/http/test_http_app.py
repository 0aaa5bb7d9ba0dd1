"""What is answered over HTTP when things are not as they should be, and when they are many."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from penstock.broker.groups.coordinator_runtime import CoordinatorErrors
from penstock.broker.groups.group_lag import GroupLagSurvey, GroupReport, PartitionReport
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_status import GroupStatus, RebalanceStatus
from penstock.groups.offsets.lag import LogSpan, compute_lag, compute_totals
from penstock.http.errors import errors_as_json
from penstock.http.groups import GroupPages
from penstock.http.metrics import coordinator_error_metrics, group_metrics, producer_metrics
from penstock.http.prometheus import lines
from penstock.log.producer_state import ProducerLimits, ProducerRegistry, Producers
from penstock.protocol.batches import parse_header
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset, TopicPartition


class LoadingGroups:
    """Coordinators that have not read their log yet."""

    async def one(self, group_id: str) -> None:
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def page(self, prefix: str, after: str, limit: int) -> None:
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    app = web.Application(middlewares=[errors_as_json])
    GroupPages(LoadingGroups()).add_to(app.router)  # type: ignore[arg-type]
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/groups", "/v1/groups/g"])
async def test_while_groups_are_loading_that_is_said_and_not_that_there_are_none(
    client: Any, path: str
) -> None:
    reply = await client.get(path)
    assert reply.status == 503
    assert (await reply.json())["error"]["code"] == "loading"


async def test_another_method_is_refused_with_those_that_are_allowed(client: Any) -> None:
    reply = await client.post("/v1/groups")
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert (await reply.json())["error"]["message"] == "/v1/groups takes GET, HEAD, not POST."


def report(committed: int, rebalances: RebalanceStatus) -> GroupReport:
    lag = compute_lag(Offset(committed), LogSpan(Offset(50), Offset(100)), 2.5).with_age(1_000, 3_500)
    status = GroupStatus("g", "consumer", "Assigning", "uniform", (), rebalances, ())
    partition = PartitionReport(TopicPartition("t", 3), lag, 0, None)
    return GroupReport(status, [partition], compute_totals([lag]))


def test_what_was_left_out_is_counted() -> None:
    text = "".join(lines(group_metrics(GroupLagSurvey([], 7, 2))))
    assert "\npenstock_groups 7\n" in text
    assert "\npenstock_groups_left_out 7\n" in text
    assert "\npenstock_coordinators_loading 2\n" in text


def test_producers_that_were_forgotten_early_are_counted() -> None:
    roll = ProducerRegistry(ProducerLimits(total_max=2))
    producers = Producers()
    producers.share(roll)
    for number in range(5):
        batch = build_batch([Record(Offset(0), 1, None, b"x")], producer_id=number, base_sequence=0)
        producers.replay(parse_header(batch), Offset(number))
    text = "".join(lines(producer_metrics(roll)))
    assert "\npenstock_producers 2\n" in text
    assert "\npenstock_producers_evicted_total 3\n" in text


def test_the_troubles_of_coordinators_are_counted() -> None:
    text = "".join(
        lines(coordinator_error_metrics(CoordinatorErrors(unreadable=1, full=2, unanswered=3, too_large=4)))
    )
    assert "\npenstock_coordinator_records_unreadable 1\n" in text
    assert "\npenstock_coordinators_full 2\n" in text
    assert "\npenstock_coordinator_answers_failed_total 3\n" in text
    assert "\npenstock_coordinator_decisions_too_large_total 4\n" in text


def test_a_group_has_series_for_its_lag_and_for_its_rebalances() -> None:
    survey = GroupLagSurvey([report(40, RebalanceStatus(4, "somebody left", 1_500, None))], 0, 0)
    text = "".join(lines(group_metrics(survey)))
    where = '{group="g",topic="t",partition="3"}'
    for line in (
        f"penstock_group_lag_records{where} 50",
        f"penstock_group_lag_age_seconds{where} 2.5",
        f"penstock_group_lost_records{where} 10",
        f"penstock_group_consumption_rate{where} 2.5",
        'penstock_group_rebalances_total{group="g"} 4',
        'penstock_group_rebalance_duration_seconds{group="g"} 1.5',
        'penstock_group_state{group="g",type="consumer",state="Assigning"} 1',
    ):
        assert f"\n{line}\n" in text


def test_a_rebalance_that_is_under_way_is_measured_so_far() -> None:
    survey = GroupLagSurvey([report(60, RebalanceStatus(4, "somebody left", None, 9_000))], 0, 0)
    text = "".join(lines(group_metrics(survey)))
    assert 'penstock_group_rebalance_duration_seconds{group="g"} 9.0\n' in text
