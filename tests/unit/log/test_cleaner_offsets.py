"""Kafka's cleaner-offset-checkpoint."""

import pytest

from penstock.errors import CorruptData
from penstock.log.cleaner_offsets import parse_offsets, render_offsets
from penstock.types import Offset, TopicPartition

OFFSETS = {TopicPartition("users", 3): Offset(17), TopicPartition("orders.v-1", 0): Offset(1200)}
TEXT = b"0\n2\norders.v-1 0 1200\nusers 3 17\n"


def test_it_is_written_and_read_as_kafka_does() -> None:
    assert render_offsets(OFFSETS) == TEXT
    assert parse_offsets(TEXT) == OFFSETS
    assert parse_offsets(render_offsets({})) == {}


@pytest.mark.parametrize(
    "text", [b"", b"1\n0\n", b"0\n2\nusers 3 17\n", b"0\n1\nusers 17\n", b"0\n1\nusers 3 x\n", b"\xff\n"]
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptData, match="cleaner-offset-checkpoint"):
        parse_offsets(text)
