"""A damaged partition of the topic that groups live on: what is closed, and how people mend it."""

from pathlib import Path

from penstock.errors import ErrorCode
from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.group_client import commit, committed, committed_once_loaded, find_coordinator
from tests.integration.raw_client import RawClient, connected

GROUPS = ("g", "other", "third", "h")
COMMITS = 30


def use(client: RawClient) -> None:
    client.create_topic("orders")
    find_coordinator(client, GROUPS[0])
    for group in GROUPS:
        committed_once_loaded(client, group, "orders", 0)
    for offset in range(COMMITS):
        for group in GROUPS:
            assert commit(client, group, "orders", {0: offset}) == {ErrorCode.NONE}


def damage(data: Path) -> Path:
    """Flip a bit in the middle of one log of groups. Says in which folder."""
    log = max(data.glob("logs/__consumer_offsets-*/*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    return log.parent


def test_damage_closes_one_partition_of_groups_until_it_is_repaired(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"offsets.topic.num.partitions": 2}).start()
    try:
        with connected(broker.bootstrap) as client:
            use(client)
        broker.stop()
        folder = damage(tmp_path / "data")

        broker.start()
        with connected(broker.bootstrap) as client:
            eventually(lambda: "coordinator.not_loaded" in broker.stderr)
            # The sound one may be loaded after the other was found damaged.
            eventually(lambda: any(isinstance(committed(client, each, "orders", 0), dict) for each in GROUPS))
            answers = [committed(client, group, "orders", 0) for group in GROUPS]
            closed = [answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for answer in answers]
            assert any(closed)
            assert all(answer == {0: COMMITS - 1} for answer in answers if isinstance(answer, dict))
            assert "docs/operations.md" in broker.stderr
        broker.stop()

        for given_up in (*folder.glob("*.snapshot"), folder / "damaged"):
            given_up.unlink()
        broker.start()
        with connected(broker.bootstrap) as client:
            for group, was_closed in zip(GROUPS, closed, strict=True):
                (offset,) = committed_once_loaded(client, group, "orders", 0).values()
                assert 0 < offset < COMMITS - 1 if was_closed else offset == COMMITS - 1
                assert commit(client, group, "orders", {0: 99}) == {ErrorCode.NONE}
    finally:
        broker.kill()
