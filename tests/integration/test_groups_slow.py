"""A consumer that takes long for each record keeps its place, and nobody waits for it.

Times are a tenth of what the promise speaks of: a record takes 3 seconds, and a session lasts one. What
keeps the member in its group are the heartbeats that its library sends meanwhile.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.group_client import committed
from tests.integration.group_crowd import SHORT_GROUP_TIMEOUTS, create_topic, group_processes, offered, write
from tests.integration.raw_client import connected

KINDS = ("confluent-range", "confluent-consumer", "kafka-python", "aiokafka")
RECORD_S = 3
SESSION_MS = 1_000
SETTINGS = {**SHORT_GROUP_TIMEOUTS, "group.consumer.session.timeout.ms": SESSION_MS}
PATIENT = {"session": SESSION_MS, "poll": 30_000}


@pytest.fixture
def broker(data_dir: Path) -> Iterator[BrokerProcess]:
    with serving(data_dir, settings=SETTINGS) as broker:
        create_topic(broker.bootstrap, "t", 2)
        yield broker


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_may_take_longer_than_a_session(kind: str, broker: BrokerProcess, tmp_path: Path) -> None:
    address = broker.bootstrap
    with group_processes(address, "t", "readers", tmp_path) as them, connected(address) as client:
        offered(kind, address)
        slow, quick = them.add(kind, slow=RECORD_S, **PATIENT), them.add(kind, **PATIENT)
        them.wait_until(
            lambda: sorted([*slow.owns(), *quick.owns()]) == [0, 1] and slow.owns() and quick.owns()
        )
        (slow_one,), (quick_one,) = slow.owns(), quick.owns()
        rebalances = [member.rebalances() for member in them.members]

        write(address, "t", *((slow_one, number) for number in range(3)))
        them.wait_until(slow.delivered)
        for number in count():
            write(address, "t", (quick_one, number))
            them.wait_until(partial(quick.has, (quick_one, number)))
            if slow.output_lines("committed", "refused") or slow.rebalances() != rebalances[0]:
                break

        assert number >= RECORD_S, "others went on while it worked"
        assert slow.delivered()[0] == (slow_one, 0)
        assert [member.rebalances() for member in them.members] == rebalances, "nobody lost anything"
        assert slow_one not in {partition for partition, _ in quick.delivered()}
        assert committed(client, "readers", "t", slow_one) == {slow_one: 1}

        slow.crash()
        them.wait_until(lambda: (slow_one, 2) in quick.delivered())
        assert [spot for spot in quick.delivered() if spot[0] == slow_one] == [(slow_one, 1), (slow_one, 2)]
