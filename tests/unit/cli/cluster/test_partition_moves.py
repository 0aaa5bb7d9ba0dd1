"""Moves of replicas that cannot go on: what is said of them, and that nobody waits for ever."""

from typing import Any

import pytest

from penstock.cli import http_client
from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.cluster import balance as cluster_balance
from penstock.cli.cluster import reassign as cluster_reassign
from penstock.cli.cluster.balance import remaining_replicas_text
from penstock.cli.cluster.partition_moves import PartitionMove, blocked_moves
from penstock.cli.cluster.reassign import NoLeaderToCopyFrom, wait_until_moved
from penstock.errors import CommandFailed
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from penstock.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.types import TopicPartition
from tests.unit.cli.answering import CannedReplies, as_broker

SINGLE = TopicPartition("single", 0)
ORDERS = TopicPartition("orders", 0)
LEADERLESS = "partition single-0 has no leader to copy from: bring broker 4 back, or delete the topic"
NOBODY = -1


def answering(
    *, brokers: list[int], topics: dict[TopicPartition, Any], refusal: str | None = None
) -> BrokerConnector:
    """`topics`: leader, replicas, in-sync replicas, those added."""
    metadata = MetadataResponse(
        brokers=[MetadataResponseBroker(node, "127.0.0.1", 1) for node in brokers],
        topics=[
            MetadataResponseTopic(
                name=name,
                partitions=[MetadataResponsePartition(0, index, leader, 0, list(replicas), list(in_sync))],
            )
            for (name, index), (leader, replicas, in_sync, _) in topics.items()
        ],
    )
    moves = ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(
                name, [OngoingPartitionReassignment(index, list(replicas), list(adding), [])]
            )
            for (name, index), (_, replicas, _, adding) in topics.items()
            if adding is not None
        ]
    )
    taken = AlterPartitionReassignmentsResponse(
        responses=[
            ReassignableTopicResponse(
                name, [ReassignablePartitionResponse(index, 39 * bool(refusal), refusal)]
            )
            for name, index in topics
        ]
    )
    return as_broker(
        CannedReplies(Metadata=metadata, ListPartitionReassignments=moves, AlterPartitionReassignments=taken)
    )


def test_a_missing_leader_and_a_lost_broker_block_a_move_visibly() -> None:
    other = TopicPartition("other", 0)
    broker = answering(
        brokers=[1, 2],
        topics={
            SINGLE: (NOBODY, (1, 4), (4,), (1,)),
            ORDERS: (1, (1, 2, 3), (1, 2), (3,)),
            other: (1, (1, 2), (1,), (2,)),
        },
    )
    moves = [PartitionMove(SINGLE, [1], [4]), PartitionMove(ORDERS, [3], []), PartitionMove(other, [2], [])]
    found = blocked_moves(broker, moves)

    assert found[SINGLE].sentence == LEADERLESS
    assert found[ORDERS].summary == "waits for broker 3 to come back"
    assert "reassign --topic orders --cancel" in found[ORDERS].sentence
    assert other not in found


def test_nobody_waits_for_ever_for_a_partition_that_nobody_leads(capsys: pytest.CaptureFixture[str]) -> None:
    broker = answering(brokers=[1], topics={SINGLE: (NOBODY, (1, 4), (4,), (1,))})
    with pytest.raises(NoLeaderToCopyFrom) as ended:
        wait_until_moved(broker, [SINGLE])
    assert str(ended.value) == LEADERLESS


def reassigned(broker: BrokerConnector, *to: str) -> None:
    cluster_reassign.reassign.__wrapped__(  # type: ignore[attr-defined]
        broker,
        topic="orders",
        partition=None,
        to=",".join(to),
        file=None,
        cancel=False,
        wait=False,
        as_json=False,
    )


def test_a_move_to_a_broker_that_is_away_is_not_said_to_be_copied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reassigned(answering(brokers=[1, 2], topics={ORDERS: (1, (1, 2, 3), (1, 2), (3,))}), "1", "2", "3")
    said = capsys.readouterr().err
    assert "waits for broker 3 to come back" in said
    assert "is being copied now" not in said

    reassigned(answering(brokers=[1, 2], topics={ORDERS: (1, (1, 2), (1,), (2,))}), "1", "2")
    assert "it is being copied now" in capsys.readouterr().err


def test_of_a_move_that_was_refused_only_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    broker = answering(brokers=[1], topics={ORDERS: (1, (1,), (1,), None)}, refusal="There is no broker 9.")
    with pytest.raises(CommandFailed) as refused:
        reassigned(broker, "1", "9")
    assert str(refused.value).splitlines() == [
        "nothing was done.",
        "partition 0 of topic orders: There is no broker 9.",
    ]
    assert not capsys.readouterr().out


def document(holds: int, moved: int) -> dict[str, Any]:
    moves_under_way = [{"topic": "t", "partition": number, "removing": [4]} for number in range(moved)]
    return {"brokers": [{"id": 4, "holds": holds}, {"id": 1, "holds": 9}],
            "reassigning": {"count": moved, "partitions": moves_under_way}}  # fmt: skip


def test_what_a_broker_still_holds_is_told_with_the_reason() -> None:
    assert not remaining_replicas_text(document(0, 0), 4)
    assert remaining_replicas_text(document(2, 2), 4) == "broker 4 still holds 2 replicas: 2 being moved."
    stays = remaining_replicas_text(document(3, 0), 4)
    assert stays.startswith("broker 4 still holds 3 replicas: 3 that no other broker can take")
    assert "1 being moved, and 55 that no other broker" in remaining_replicas_text(document(56, 1), 4)


def balanced(broker: BrokerConnector, *, wait: bool) -> None:
    cluster_balance.balance.__wrapped__(  # type: ignore[attr-defined]
        broker, dry_run=False, away_from=4, wait=wait, url="http://127.0.0.1:1", as_json=False
    )


def test_a_broker_with_nowhere_to_go_is_not_said_to_be_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_client, "post_json", lambda *_: {"moves": []})
    monkeypatch.setattr(http_client, "get_json", lambda *_: document(3, 0))
    with pytest.raises(CommandFailed, match="still holds 3 replicas"):
        balanced(answering(brokers=[1], topics={}), wait=False)
    assert not capsys.readouterr().out


def test_emptying_a_broker_that_had_the_only_copy_ends_with_all_that_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    move = {"topic": "single", "partition": 0, "from": [4], "to": [1]}
    monkeypatch.setattr(http_client, "post_json", lambda *_: {"moves": [move]})
    monkeypatch.setattr(http_client, "get_json", lambda *_: document(56, 1))
    with pytest.raises(CommandFailed) as ended:
        balanced(answering(brokers=[1], topics={SINGLE: (NOBODY, (1, 4), (4,), (1,))}), wait=True)
    leaderless, stays = str(ended.value).splitlines()
    assert leaderless == LEADERLESS
    assert "55 that no other broker can take" in stays
