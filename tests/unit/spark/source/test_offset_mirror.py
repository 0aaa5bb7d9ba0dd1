"""What of a stream's position is committed to its group, and how its planner learns the name."""

import socket
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, cast

from penstock.config.listeners import Address
from penstock.spark.options.options import stream_read_settings
from penstock.spark.source.offset_mirror import OffsetMirror, QueryIdentity, group_name, offsets_to_commit
from penstock.spark.source.query_name_channel import QueryNameReceiver, send_query_name
from penstock.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def group(query: QueryIdentity, **options: str) -> str:
    needed = {"bootstrap": "127.0.0.1:9092", "subscribe": "a"}
    return group_name(stream_read_settings(needed | options), query)


def test_a_group_is_named_by_option_query_or_id() -> None:
    named, unnamed = QueryIdentity("archive", "id-1"), QueryIdentity("", "id-1")
    assert group(named, **{"kafka.group.id": "mine"}) == "mine"
    assert group(named, groupIdPrefix="team") == "archive"
    assert group(unnamed, groupIdPrefix="team") == "team-id-1"
    assert group(unnamed) == "spark-id-1"


def test_a_position_moves_on_and_never_back() -> None:
    assert offsets_to_commit({A0: 5, A1: 5}, {}, {}) == {A0: 5, A1: 5}
    assert offsets_to_commit({A0: 5, A1: 5}, {A0: 4, A1: 6}, {A0: 9, A1: 9}) == {A0: 5}
    assert offsets_to_commit({A0: 5}, {A0: 5}, {A0: 9}) == {}


def test_a_position_beyond_the_end_is_of_a_topic_that_is_gone() -> None:
    assert offsets_to_commit({A0: 2}, {A0: 50}, {A0: 3}) == {A0: 2}


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
    mirror = OffsetMirror(stream_read_settings(options), lambda access: nullcontext(cast(Any, cluster)))
    ends = {A0: 99, A1: 99}
    mirror.commit_position({A0: 5, A1: 5}, ends)
    cluster.offsets[A0] = 50  # another run of the query
    mirror.commit_position({A0: 6, A1: 6}, ends)
    assert cluster.offsets == {A0: 50, A1: 6}


def test_a_letter_arrives_only_with_the_token() -> None:
    receiver = QueryNameReceiver(Address("127.0.0.1", 9092))
    try:
        assert receiver.received_name() is None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(bytes(16) + b"forged", (receiver.address.host, receiver.address.port))
        assert receiver.received_name() is None
        send_query_name(receiver.address, "orders-archive")
        assert receiver.received_name() == "orders-archive"
    finally:
        receiver.close()
