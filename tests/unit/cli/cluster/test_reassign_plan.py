"""Which replicas are wanted, from what was typed or from a file."""

import json

import pytest

from penstock.cli.cluster.reassign_plan import FORM, parse_brokers, read_plan, spread
from penstock.types import TopicPartition


def test_brokers_are_numbers_between_commas() -> None:
    assert parse_brokers("1, 2,30") == [1, 2, 30]


@pytest.mark.parametrize("text", ["", "1,", "one", "1,-2", "1.5", "4294967296", "9" * 400, "1,1", "²"])
def test_what_is_no_list_of_brokers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not the id of a broker|named twice"):
        parse_brokers(text)


def test_who_is_preferred_to_lead_goes_round() -> None:
    targets = spread("t", [0, 1, 2, 3], [7, 8, 9])
    assert [targets[TopicPartition("t", number)] for number in range(4)] == [
        [7, 8, 9],
        [8, 9, 7],
        [9, 7, 8],
        [7, 8, 9],
    ]


def test_a_plan_is_read_as_kafkas_tool_writes_it() -> None:
    text = json.dumps(
        {
            "version": 1,
            "partitions": [
                {"topic": "t", "partition": 1, "replicas": [2, 3], "log_dirs": ["any", "any"]},
                {"topic": "u", "partition": 0, "replicas": [1]},
            ],
        }
    )
    assert read_plan(text) == {TopicPartition("t", 1): [2, 3], TopicPartition("u", 0): [1]}
    assert read_plan(FORM)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": []}',
        '{"partitions": [1]}',
        '{"partitions": [{"topic": 1, "partition": 0, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [-1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
        ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a plan looks like|named twice"):
        read_plan(text)
