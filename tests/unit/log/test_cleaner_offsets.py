"""The note of how far each log is clean: cleaner-offset-checkpoint, by the id of the topic."""

import pytest

from penstock.errors import CorruptData
from penstock.log.cleaner_offsets import CleanedLog, CleanTo, parse_offsets, render_offsets
from penstock.types import Offset, TopicId, TopicPartition

USERS, ORDERS = TopicId(bytes(range(16))), TopicId(b"o" * 16)
LOGS = [
    CleanTo(TopicPartition("users", 3), USERS, Offset(17)),
    CleanTo(TopicPartition("orders.v-1", 0), ORDERS, Offset(1200)),
]
TEXT = b"1\n2\norders.v-1 0 1200 " + b"6f" * 16 + b"\nusers 3 17 000102030405060708090a0b0c0d0e0f\n"


def test_a_row_is_kafkas_and_the_id_of_the_topic() -> None:
    assert render_offsets(LOGS) == TEXT
    assert parse_offsets(TEXT) == {CleanedLog(USERS, 3): 17, CleanedLog(ORDERS, 0): 1200}
    assert parse_offsets(render_offsets([])) == {}


def test_a_file_that_knows_topics_by_name_says_nothing() -> None:
    assert parse_offsets(b"0\n1\nusers 3 17\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"2\n0\n",
        b"1\n2\nusers 3 17 000102030405060708090a0b0c0d0e0f\n",
        b"1\n1\nusers 3 17\n",
        b"1\n1\nusers 3 17 0001\n",
        b"1\n1\nusers 3 17 xx0102030405060708090a0b0c0d0e0f\n",
        b"1\n1\nusers 3 x 000102030405060708090a0b0c0d0e0f\n",
        b"\xff\n",
    ],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptData, match="cleaner-offset-checkpoint"):
        parse_offsets(text)
