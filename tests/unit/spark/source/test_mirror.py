"""What of a stream's position is committed to its group, and how its planner learns the name."""

import socket
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, cast

from penstock.config.listeners import Address
from penstock.spark.options.options import stream_read_settings
from penstock.spark.source.mirror import Mirror, Query, group_of, moves
from penstock.spark.source.query_name_channel import Postbox, post
from penstock.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def group(query: Query, **options: str) -> str:
    needed = {"bootstrap": "127.0.0.1:9092", "subscribe": "a"}
    return group_of(stream_read_settings(needed | options), query)


def test_a_group_is_named_by_option_query_or_id() -> None:
    named, unnamed = Query("archive", "id-1"), Query("", "id-1")
    assert group(named, **{"kafka.group.id": "mine"}) == "mine"
    assert group(named, groupIdPrefix="team") == "archive"
    assert group(unnamed, groupIdPrefix="team") == "team-id-1"
    assert group(unnamed) == "spark-id-1"


def test_a_position_moves_on_and_never_back() -> None:
    assert moves({A0: 5, A1: 5}, {}, {}) == {A0: 5, A1: 5}
    assert moves({A0: 5, A1: 5}, {A0: 4, A1: 6}, {A0: 9, A1: 9}) == {A0: 5}
    assert moves({A0: 5}, {A0: 5}, {A0: 9}) == {}


def test_a_position_beyond_the_end_is_of_a_topic_that_is_gone() -> None:
    assert moves({A0: 2}, {A0: 50}, {A0: 3}) == {A0: 2}


class _Group:
    """In place of a cluster."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        return {partition: self.offsets.get(partition) for partition in partitions}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], note: str) -> None:
        self.offsets |= offsets


def test_who_came_further_meanwhile_is_not_set_back() -> None:
    cluster = _Group()
    options = {"bootstrap": "127.0.0.1:9092", "subscribe": "a", "kafka.group.id": "mine"}
    mirror = Mirror(stream_read_settings(options), lambda access: nullcontext(cast(Any, cluster)))
    ends = {A0: 99, A1: 99}
    mirror.follow({A0: 5, A1: 5}, ends)
    cluster.offsets[A0] = 50  # another run of the query
    mirror.follow({A0: 6, A1: 6}, ends)
    assert cluster.offsets == {A0: 50, A1: 6}


def test_a_letter_arrives_only_with_the_token() -> None:
    postbox = Postbox(Address("127.0.0.1", 9092))
    try:
        assert postbox.letter() is None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(bytes(16) + b"forged", (postbox.mailbox.host, postbox.mailbox.port))
        assert postbox.letter() is None
        post(postbox.mailbox, "orders-archive")
        assert postbox.letter() == "orders-archive"
    finally:
        postbox.close()
