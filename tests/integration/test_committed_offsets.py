"""A group's place survives what happens to the broker, and is never said to be missing when it is not."""

from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeleteGroupsRequest
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.disk_faults import power_cut_disk, small_disk
from tests.integration.group_client import commit, committed, committed_once_loaded, find_coordinator
from tests.integration.raw_client import RawClient, batch_of, connected

NONE = {ErrorCode.NONE}


def begin(client: RawClient, group: str = "readers", topic: str = "t") -> None:
    client.create_topic(topic)
    assert find_coordinator(client, group) == 1


def test_what_was_committed_is_there_after_a_kill(data_dir: Path) -> None:
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        begin(client)
        for offset in range(50):
            assert commit(client, "readers", "t", {0: offset}) == NONE
        broker.kill()
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        assert committed_once_loaded(client, "readers", "t", 0) == {0: 49}


def test_what_was_committed_is_there_after_the_power_went(tmp_path: Path) -> None:
    with power_cut_disk(tmp_path) as disk:
        with serving(disk.path / "data") as broker, connected(broker.bootstrap) as client:
            begin(client)
            for offset in range(20):
                assert commit(client, "readers", "t", {0: offset}) == NONE
            disk.cut()
            broker.kill()
        disk.unmount()
        disk.mount()
        with serving(disk.path / "data") as broker, connected(broker.bootstrap) as client:
            assert committed_once_loaded(client, "readers", "t", 0) == {0: 19}


def test_while_offsets_are_loaded_nobody_is_told_there_are_none(data_dir: Path) -> None:
    groups = [f"group-{number}" for number in range(400)]
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        begin(client)
        for group in groups:
            assert commit(client, group, "t", {0: 7}) == NONE
        broker.kill()
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        for group in groups:
            found = committed(client, group, "t", 0)
            assert found in ({0: 7}, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), (group, found)


def test_a_commit_that_finds_the_disk_full_is_refused_and_later_ones_work(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, 24) as path,
        serving(path / "data") as broker,
        connected(broker.bootstrap) as client,
    ):
        begin(client)
        assert commit(client, "readers", "t", {0: 1}) == NONE
        fill(path / "ballast")
        refused = eventually(lambda: commit(client, "readers", "t", {0: 2}) - NONE)
        assert refused <= {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        kept = committed_once_loaded(client, "readers", "t", 0)
        assert kept[0] in (1, 2), "what was acknowledged stays, and nothing is made up"
        (path / "ballast").unlink()
        eventually(lambda: commit(client, "readers", "t", {0: 3}) == NONE)
        assert committed_once_loaded(client, "readers", "t", 0) == {0: 3}


def fill(path: Path) -> None:
    """Take the last block there is."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_groups_keep_their_places_independently(own_broker: BrokerProcess) -> None:
    with connected(own_broker.bootstrap) as client:
        begin(client)
        assert commit(client, "first", "t", {0: 10}) == NONE
        assert commit(client, "second", "t", {0: 20}) == NONE
        assert committed(client, "first", "t", 0) == {0: 10}
        assert committed(client, "second", "t", 0) == {0: 20}
        assert committed(client, "third", "t", 0) == {0: -1}


def test_an_offset_in_a_deleted_topic_is_none_in_its_successor(
    own_broker: BrokerProcess,
) -> None:
    with connected(own_broker.bootstrap) as client:
        begin(client)
        client.produce("t", batch_of(b"x"))
        assert commit(client, "readers", "t", {0: 1}) == NONE
        deleted = client.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000))
        assert deleted.responses[0].error_code == ErrorCode.NONE
        client.create_topic("t")
        assert committed(client, "readers", "t", 0) == {0: -1}
        everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("readers", topics=None)])
        assert client.ask(OFFSET_FETCH, 9, everything).groups[0].topics == []
        eventually(lambda: client.ask(LIST_GROUPS, 4, ListGroupsRequest()).groups == [])


def test_a_deleted_group_is_gone_for_good(data_dir: Path) -> None:
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        begin(client)
        assert commit(client, "readers", "t", {0: 5}) == NONE
        result = client.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(["readers", "nobody"])).results
        assert [each.error_code for each in result] == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
        assert committed(client, "readers", "t", 0) == {0: -1}
        broker.kill()
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        assert committed_once_loaded(client, "readers", "t", 0) == {0: -1}


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("missing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 99, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_place_in_what_does_not_exist_is_refused(
    own_broker: BrokerProcess, topic: str, partition: int, code: ErrorCode
) -> None:
    with connected(own_broker.bootstrap) as client:
        begin(client)
        assert commit(client, "readers", topic, {partition: 1}) == {code}


def test_what_was_committed_is_there_after_a_clean_stop(data_dir: Path) -> None:
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        begin(client)
        assert commit(client, "readers", "t", {0: 8}) == NONE
        assert broker.stop() == 0
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        assert committed_once_loaded(client, "readers", "t", 0) == {0: 8}
