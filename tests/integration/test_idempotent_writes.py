"""A broker stored a batch, and its answer was lost: what pipelines write is there once all the same.

All that Spark writes to topics goes through `write_rows`: sinks, stages of etl, replay, alerts, dead letters.
"""

import pyarrow as pa
import pytest

from penstock.spark.options.options import write_settings
from penstock.spark.topic_sink import write_rows
from penstock.testing import broker
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import LATEST
from tests.integration.free_ports import free_ports
from tests.integration.relay import losing_answers
from tests.integration.test_wire_cluster import client_of, records_of

COUNT = 600
LOST = 3


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_batch_whose_answer_was_lost_is_there_once(is_idempotent: bool) -> None:
    """Without idempotence it is there twice: so an answer was lost indeed."""
    direct, behind, relayed = free_ports(3)
    listeners = {
        "listeners": f"DIRECT://127.0.0.1:{direct},RELAYED://127.0.0.1:{behind}",
        "advertised.listeners": f"DIRECT://127.0.0.1:{direct},RELAYED://127.0.0.1:{relayed}",
        "listener.security.protocol.map": "DIRECT:PLAINTEXT,RELAYED:PLAINTEXT",
    }
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{relayed}",
        "topic": "orders",
        "kafka.max.request.size": "4096",
    }
    if not is_idempotent:
        options["kafka.enable.idempotence"] = "false"
    rows = pa.RecordBatch.from_pydict({"value": [b"%06d" % number for number in range(COUNT)]})
    with broker(**listeners) as running, losing_answers(relayed, behind, LOST) as lost:
        with client_of(running.address("DIRECT")) as client:
            client.create_topic("orders", 2)
        assert write_rows(write_settings(options), iter([rows])).records == COUNT
        assert [lost.readline() for _ in range(LOST)] == [b"lost\n"] * LOST
        found: list[bytes] = []
        with client_of(running.address("DIRECT")) as client:
            for partition in (TopicPartition("orders", number) for number in range(2)):
                end, _ = client.offsets({partition: LATEST}, read_committed=False)[partition]
                fetched = client.fetch(partition, Offset(0), end, read_committed=False) if end else iter(())
                values = [record.value or b"" for record in records_of(fetched)]
                assert not is_idempotent or values == sorted(values)
                found += values
    assert set(found) == {b"%06d" % number for number in range(COUNT)}
    assert (len(found) == COUNT) is is_idempotent
