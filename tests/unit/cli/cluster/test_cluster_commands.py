"""`penstock cluster`: each command explains itself, refuses nonsense at once, and `status` is readable."""

import sys
from typing import Any

import pytest

from penstock.cli.cluster import elect as cluster_elect
from penstock.cli.cluster.output import print_status
from penstock.cli.cluster.partition_moves import left_text
from penstock.cli.main import EXIT_WRONG_USE, main
from penstock.errors import CommandFailed
from penstock.protocol.messages.elect_leaders import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.unit.cli.answering import CannedReplies, as_broker

COMMANDS = ["status", "drain", "undrain", "reassign", "balance", "elect", "unregister"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["penstock", "cluster", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_of_clusters_shows_examples(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run(monkeypatch, name, "--help")
    assert f"penstock cluster {name}" in capsys.readouterr().out.split("Examples:")[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain",),
        ("drain", "x"),
        ("drain", "-1"),
        ("unregister",),
        ("reassign",),
        ("reassign", "--topic", "t"),
        ("reassign", "--topic", "t", "--to", "1,x"),
        ("reassign", "--topic", "t", "--file", "f"),
        ("reassign", "--file", "f", "--to", "1"),
        ("reassign", "--topic", "t", "--to", "1", "--cancel"),
        ("reassign", "--topic", "not a topic", "--to", "1"),
        ("balance", "--dry-run", "--wait"),
        ("elect",),
        ("elect", "--all", "--topic", "t"),
        ("elect", "--all", "--partition", "0"),
        ("elect", "--all", "--preferred", "--unclean"),
        ("elect", "--all", "--unclean", "--preferred"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "127.0.0.1:1")
    assert run(monkeypatch, *arguments) == EXIT_WRONG_USE


@pytest.mark.parametrize("name", ["status", "drain", "balance"])
def test_where_no_broker_answers_that_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [name, "2"] if name == "drain" else [name]
    said = run(monkeypatch, *arguments, "--url", "http://127.0.0.1:1")
    assert "nothing listens there" in str(said)


def test_a_plan_that_is_none_is_told_from_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "reassign", "--file", "plan") == EXIT_WRONG_USE
    assert "plan cannot be read" in capsys.readouterr().err
    (tmp_path / "plan").write_text("{}")
    assert run(monkeypatch, "reassign", "--file", "plan") == EXIT_WRONG_USE
    assert "plan is no plan" in capsys.readouterr().err


def test_leaders_are_elected_of_every_partition_that_was_named() -> None:
    partitions = [MetadataResponsePartition(partition_index=number) for number in range(3)]
    broker = CannedReplies(
        Metadata=MetadataResponse(topics=[MetadataResponseTopic(name="orders", partitions=partitions)]),
        ElectLeaders=ElectLeadersResponse(),
    )
    elect = cluster_elect.elect.__wrapped__  # type: ignore[attr-defined]
    elect(as_broker(broker), topic="orders", partition=[2, 0], all_=False)
    (asked,) = broker.asked["ElectLeaders"].topic_partitions
    assert asked.partitions == [0, 2]


def test_an_error_that_this_release_does_not_know_is_shown_by_its_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = ReplicaElectionResult("orders", [PartitionResult(0, 9_999)])
    broker = CannedReplies(ElectLeaders=ElectLeadersResponse(replica_election_results=[result]))
    elect = cluster_elect.elect.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises(CommandFailed, match="partition 0 of topic orders has no other leader: error 9999"):
        elect(as_broker(broker), topic=None, partition=[], all_=True, as_json=True)
    assert '"outcome": "error 9999"' in capsys.readouterr().out


def partition(**more: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": 3,
        "leader": None,
        "replicas": [1, 2],
        "in_sync": [1],
        "adding": [],
        "removing": [],
        **more,
    }


def document(**more: Any) -> dict[str, Any]:
    none = {"count": 0, "partitions": []}
    broker = {"id": 1, "rack": None, "state": "admitted", "addresses": {"PLAINTEXT": "h:9092"}}
    return {
        "cluster_id": "c",
        "controller": 1,
        "metadata_store_unavailable": None,
        "topics": 2,
        "partitions": 9,
        "brokers": [{**broker, "leads": 4, "holds": 9, "is_drained": False}],
        "offline": none,
        "under_replicated": none,
        "unbalanced": none,
        "reassigning": none,
        "topics_at_risk": [],
        **more,
    }


def test_a_sound_cluster_is_told_in_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(document())
    assert capsys.readouterr().out.splitlines() == [
        "cluster c  1 broker, controller 1, 2 topics, 9 partitions",
        "BROKER  ADDRESS  RACK  STATE     LEADS  HOLDS",
        "     1  h:9092   -     admitted      4      9",
        "offline (no leader): none",
        "under-replicated: none",
        "unbalanced (another than the preferred one leads): none",
        "being moved: none",
        "one lost disk would lose: nothing",
    ]


def test_brokers_that_do_not_reach_each_other_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    (broker,) = document()["brokers"]
    others = [{**broker, "id": 2, "cannot_reach": [1]}, {**broker, "id": 3, "cannot_reach": [1, 2]}]
    print_status(document(brokers=[{**broker, "cannot_reach": []}, *others]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[5:7] == ["broker 2 cannot reach broker 1", "broker 3 cannot reach brokers 1,2"]


def test_troubles_are_told_and_long_lists_cut(capsys: pytest.CaptureFixture[str]) -> None:
    moves_under_way = partition(adding=[3], removing=[1], records_left={"3": 1200})
    print_status(
        document(
            controller=None,
            metadata_store_unavailable="no answer",
            offline={"count": 30, "partitions": [partition()] * 30},
            reassigning={"count": 1, "partitions": [moves_under_way]},
            damaged_here={"count": 1, "partitions": [{"topic": "k", "partition": 0, "reason": "rot"}]},
            topics_at_risk=[{"topic": "alone", "reason": "one replica"}],
        )
    )
    out = capsys.readouterr().out
    assert "no controller" in out
    assert "nothing can be changed now (no answer)" in out
    assert "offline (no leader): 30 partitions" in out
    assert "and 10 more: see --json" in out
    assert "1200 on broker 3" in out
    assert "damaged on the broker that was asked: 1 partition\n  k-0  (rot)\n" in out
    assert "  alone  (one replica)" in out


def test_what_is_left_is_told_for_each_broker() -> None:
    assert left_text({3: 1200, 4: None}) == "1200 on broker 3, - on broker 4"
    assert left_text({}) == "nothing to copy"
