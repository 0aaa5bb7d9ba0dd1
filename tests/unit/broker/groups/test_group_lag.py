"""How far groups have come, in a broker that really stores records and offsets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.apis.group_reports import GroupReports as GroupReportsHandler
from penstock.broker.apis.log_positions import LogPositions as LogPositionsHandler
from penstock.broker.broker import Environment, RunningBroker, running_broker
from penstock.broker.cluster.peer_requests import PeerUnavailable
from penstock.broker.cluster.topic_creation import RequestedTopic, TopicCreation
from penstock.broker.context import RequestContext
from penstock.broker.groups.cluster_groups import decoded, with_most_lag
from penstock.broker.groups.group_lag import GroupReport, PartitionReport
from penstock.config.sources import load
from penstock.controller.topics import TopicRequest, delete_topic
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, WaitingRequest
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.commit import NO_GENERATION, CommitRequest
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata, PartitionCommit
from penstock.groups.offsets.lag import LagStatus
from penstock.host.clock import AdjustableClock
from penstock.host.randomness import SystemRandomness
from penstock.log.reading.first_record_time import FirstRecordRead, FirstRecordTime
from penstock.protocol.batches import parse_header
from penstock.protocol.messages.group_reports import GroupReportsRequest
from penstock.protocol.messages.log_positions import LogPositionsRequest, WantedPosition
from penstock.protocol.records import Record, build_batch
from penstock.security.access import ANONYMOUS, CLUSTER, AllowEverything, Authorizer
from penstock.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset, TopicPartition

ATTEMPTS_MAX = 5_000


class Living:
    """A broker, and what clients would do to it."""

    def __init__(self, broker: RunningBroker, clock: AdjustableClock) -> None:
        self.broker = broker
        self.clock = clock
        self.reports = broker.groups
        self._coordinator = broker.own_groups._groups

    async def topic(self, name: str, partitions: int = 1) -> None:
        creation = TopicCreation(self.broker.cluster, self.clock, SystemRandomness())
        await creation.create([RequestedTopic(TopicRequest(name=name, partitions=partitions), {})])

    async def produce(self, topic: str, count: int, partition: int = 0) -> None:
        found = self.broker.storage.partitions.find(topic, partition)
        assert found is not None
        now_ms = self.clock.wall_ms()
        batch = build_batch(Record(NO_OFFSET, now_ms, None, b"%d" % number) for number in range(count))
        appended = found.append_now(memoryview(bytearray(batch)), now_ms)
        await self.broker.storage.flusher.flush_to([(found, appended.end_offset)])

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        await self._coordinator.ensure_topic()
        now_ms = self.clock.wall_ms()
        commits = []
        for partition, offset in offsets.items():
            topic_id = self.broker.cluster.image.topics[partition.topic].id
            commits.append(
                PartitionCommit(
                    partition, OffsetAndMetadata(Offset(offset), NO_EPOCH, "", now_ms, topic_id=topic_id)
                )
            )
        request = CommitRequest(group, "", None, NO_GENERATION, 9, commits)

        def command(state: GroupStateMachine, pending: WaitingRequest, now: Now) -> CommandOutcome:
            return CommandOutcome(state.commit(request, now), (Reply(pending, ErrorCode.NONE),))

        for _ in range(ATTEMPTS_MAX):  # the coordinator may still be loading
            if await self._done(group, command) is ErrorCode.NONE:
                return
            await asyncio.sleep(0.001)
        pytest.fail("the coordinator was never ready")

    async def _done(self, group: str, command: Callable[..., CommandOutcome]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._coordinator.execute(group, command, lambda code, _: code).then(answer.set_result)
        return await answer

    async def one(self, group: str) -> GroupReport:
        report = await self.reports.one(group)
        assert report is not None
        return report

    async def partition(self, group: str) -> PartitionReport:
        (partition,) = (await self.one(group)).partitions
        return partition


@asynccontextmanager
async def living(folder: Path) -> AsyncIterator[Living]:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", "offsets.topic.num.partitions=3"]
    clock = AdjustableClock()
    async with running_broker(load({"data_dir": str(folder)}, settings), Environment(clock=clock)) as broker:
        yield Living(broker, clock)


@pytest.fixture
async def alive(tmp_path: Path) -> AsyncIterator[Living]:
    async with living(tmp_path / "data") as broker:
        yield broker


ORDERS = TopicPartition("orders", 0)


def context_of(authorizer: Authorizer) -> RequestContext:
    return RequestContext(ANONYMOUS, "PLAINTEXT", "127.0.0.1", authorizer)


async def test_before_the_first_group_there_is_none(alive: Living) -> None:
    assert await alive.reports.one("nobody") is None
    assert await alive.reports.page("", "", 10) == ([], None, [])
    assert await alive.broker.own_groups.survey(10) == ([], 0, 0)


async def test_a_group_that_only_has_offsets_is_told_how_far_it_is(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    alive.clock.advance(60_000)
    await alive.produce("orders", 10)
    await alive.commit("g", {ORDERS: 4})
    alive.clock.advance(5_000)
    report = await alive.one("g")
    (partition,) = report.partitions
    assert (report.status.type, report.status.state, report.status.members) == ("classic", "Empty", [])
    assert (partition.lag.standing, partition.lag.behind) == (LagStatus.OK, 16)
    assert 65_000 <= (partition.lag.age_ms or 0) < 70_000
    assert report.totals.behind == 16


async def test_the_age_falls_when_the_group_comes_to_younger_records(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    alive.clock.advance(60_000)
    await alive.produce("orders", 10)
    ages = []
    for offset in (9, 10, 20):
        await alive.commit("g", {ORDERS: offset})
        ages.append((await alive.partition("g")).lag.age_ms)
    assert ages[0] is not None
    assert ages[0] >= 60_000
    assert ages[1] is not None
    assert ages[1] < 60_000
    assert ages[2] == 0


async def test_the_log_is_read_once_for_an_offset(alive: Living, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    run = FirstRecordRead.run

    def counted(read: FirstRecordRead) -> FirstRecordTime:
        reads.append(read)
        return run(read)

    monkeypatch.setattr(FirstRecordRead, "run", counted)
    await alive.topic("orders")
    await alive.produce("orders", 10)
    await alive.commit("g", {ORDERS: 4})
    await alive.commit("h", {ORDERS: 4})
    for _ in range(3):
        await alive.one("g")
        await alive.reports.page("", "", 10)
    assert len(reads) == 1
    await alive.commit("g", {ORDERS: 5})
    await alive.one("g")
    assert len(reads) == 2


async def test_markers_do_not_count_as_records_that_wait(alive: Living) -> None:
    await alive.topic("orders")
    found = alive.broker.storage.partitions.find("orders", 0)
    assert found is not None
    old_ms = alive.clock.wall_ms() - 3_600_000
    marker = bytearray(build_batch([Record(NO_OFFSET, old_ms, b"", b"")], control=True))
    found.log.append(marker, parse_header(marker), LeaderEpoch(0))
    await alive.produce("orders", 1)
    await alive.commit("g", {ORDERS: 0})
    lag = (await alive.partition("g")).lag
    assert lag.behind == 2
    assert lag.age_ms is not None
    assert lag.age_ms < 60_000, "the first record that a consumer sees is the one behind the marker"


async def test_a_group_whose_records_were_deleted_unread_is_told(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    await alive.commit("g", {ORDERS: 2})
    found = alive.broker.storage.partitions.find("orders", 0)
    assert found is not None
    found.delete_before(Offset(7))
    lag = (await alive.partition("g")).lag
    assert (lag.standing, lag.lost, lag.behind) == (LagStatus.RECORDS_LOST, 5, 3)
    assert lag.age_ms is not None


async def test_a_partition_that_went_offline_is_not_guessed_at(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    await alive.commit("g", {ORDERS: 2})
    found = alive.broker.storage.partitions.find("orders", 0)
    assert found is not None
    found.go_offline("it is damaged")
    report = await alive.one("g")
    assert report.partitions[0].lag.standing is LagStatus.OFFLINE
    assert report.partitions[0].lag.behind is None


async def test_the_rate_comes_from_commits(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 1_000)
    for number in range(5):
        await alive.commit("g", {ORDERS: number * 100})
        alive.clock.advance(5_000)
    lag = (await alive.partition("g")).lag
    assert lag.rate == pytest.approx(16, rel=0.05)
    assert lag.drain_ms == pytest.approx(600 / 16 * 1000, rel=0.05)


async def test_groups_are_paged_by_name(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    names = [f"a{number:02d}" for number in range(25)] + ["b"]
    for name in names:
        await alive.commit(name, {ORDERS: 3})
    seen, after = [], ""
    while True:
        page = await alive.reports.page("a", after, 10)
        seen += [report.status.group_id for report in page.groups]
        if page.next_after is None:
            break
        after = page.next_after
    assert seen == names[:-1]
    assert page.groups[0].totals.behind == 7


async def test_when_there_are_too_many_the_furthest_behind_are_shown(alive: Living) -> None:
    await alive.topic("orders", 2)
    await alive.produce("orders", 100)
    for number in range(20):
        await alive.commit(f"g{number:02d}", {ORDERS: number, TopicPartition("orders", 1): 0})
    survey = await alive.broker.own_groups.survey(7)
    assert [report.status.group_id for report in survey.groups] == ["g00", "g01", "g02"]
    assert survey.left_out == 17


async def test_of_the_groups_of_the_cluster_the_furthest_behind_are_shown(alive: Living) -> None:
    await alive.topic("orders", 2)
    await alive.produce("orders", 100)
    for number in range(20):
        await alive.commit(f"g{number:02d}", {ORDERS: 19 - number, TopicPartition("orders", 1): 0})
    survey = await alive.reports.survey(7)
    assert [report.status.group_id for report in survey.groups] == ["g17", "g18", "g19"]
    assert (survey.left_out, survey.unavailable) == (17, ())
    everything = await alive.reports.survey(40)
    assert (len(everything.groups), everything.left_out) == (20, 0)
    behind = [(report.status.group_id, report.totals.behind) for report in everything.groups]
    assert behind == [(f"g{number:02d}", 81 + number) for number in range(20)]


async def test_what_several_coordinators_report_is_cut_to_the_furthest_behind(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    await alive.commit("g", {ORDERS: 4})
    report = await alive.one("g")

    def behind(name: str, records: int, partitions: int = 1) -> GroupReport:
        return report._replace(
            status=report.status._replace(group_id=name),
            totals=report.totals._replace(behind=records),
            partitions=[*report.partitions] * partitions,
        )

    # c has more partitions than are left after a; b and d fit.
    reports = [behind("d", 7), behind("b", 8), behind("a", 10, 2), behind("c", 9, 3), behind("e", 1)]
    assert [each.status.group_id for each in with_most_lag(reports, 4)] == ["a", "b", "d"]


async def test_a_coordinator_chooses_the_groups_that_are_furthest_behind_for_another(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 100)
    for number in range(5):
        await alive.commit(f"g{number}", {ORDERS: 50 - number})
    handler = GroupReportsHandler(alive.broker.own_groups)
    anybody = context_of(AllowEverything())
    answer = await handler(GroupReportsRequest(partitions_max=2), anybody)
    assert (answer.error_code, answer.names, answer.left_out) == (ErrorCode.NONE, ["g3", "g4"], 3)
    too_many = await handler(GroupReportsRequest(partitions_max=5_001), anybody)
    assert too_many.error_code == ErrorCode.POLICY_VIOLATION


async def test_offsets_of_a_topic_that_is_gone_are_not_shown_for_one_of_its_name(alive: Living) -> None:
    await alive.topic("orders")
    await alive.topic("other")
    await alive.commit("g", {ORDERS: 0, TopicPartition("other", 0): 0})
    await alive.broker.cluster.change(lambda image: delete_topic(image, name="orders"))
    await alive.topic("orders")
    assert [str(entry.partition) for entry in (await alive.one("g")).partitions] == ["other-0"]


async def test_what_one_broker_tells_another_is_the_whole_report(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    await alive.commit("g", {ORDERS: 4})
    own = alive.broker.own_groups
    answer = await GroupReportsHandler(own)(
        GroupReportsRequest(group_ids=["g", "nobody"], names_max=5), context_of(AllowEverything())
    )
    assert (answer.error_code, answer.names, answer.reports[1]) == (ErrorCode.NONE, ["g"], b"")
    told = decoded(2, answer.reports[0])
    report = await alive.one("g")
    assert told is not None
    assert told.partitions[0].lag.behind == report.partitions[0].lag.behind == 6
    assert told.partitions[0].lag.standing is LagStatus.OK
    assert told.partitions[0].partition == ORDERS
    assert told.totals.behind == report.totals.behind
    assert told.status._replace(positions=()) == report.status._replace(positions=())
    with pytest.raises(PeerUnavailable, match="another release"):
        decoded(2, b"\xc1")


async def test_brokers_are_asked_for_a_bounded_part_and_only_by_brokers(alive: Living) -> None:
    reports = GroupReportsHandler(alive.broker.own_groups)
    positions = LogPositionsHandler(alive.broker.own_groups._positions)
    many_groups, many_names = GroupReportsRequest(["g"] * 21), GroupReportsRequest(names_max=1_002)
    many_partitions = LogPositionsRequest([WantedPosition()] * 1_001)
    anybody = context_of(AllowEverything())
    codes = [(await reports(request, anybody)).error_code for request in (many_groups, many_names)]
    codes.append((await positions(many_partitions, anybody)).error_code)
    assert codes == [ErrorCode.POLICY_VIOLATION] * 3
    denied = anybody.for_request(0, None, frozenset({CLUSTER.name}))
    assert (await reports(many_groups, denied)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (await positions(many_partitions, denied)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_leader_tells_where_its_logs_end_and_how_old_the_next_record_is(alive: Living) -> None:
    await alive.topic("orders")
    await alive.produce("orders", 10)
    topic_id = alive.broker.cluster.image.topics["orders"].id
    handler = LogPositionsHandler(alive.broker.own_groups._positions)
    wanted = [WantedPosition(topic_id, 0, 4), WantedPosition(topic_id, 0), WantedPosition(topic_id, 7)]
    answer = await handler(LogPositionsRequest(wanted), context_of(AllowEverything()))
    asked, ends, elsewhere = answer.partitions
    assert (asked.log_start_offset, asked.high_watermark) == (0, 10)
    assert asked.timestamp > 0
    assert (ends.high_watermark, ends.timestamp) == (10, -1)
    assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
