"""Time that a killed broker needs until it serves again.

The broker is killed when the last record is acknowledged, so recovery reads and checks everything above the
last checkpoint. The page cache stays warm, as after a crash of the process; after a power loss the time to
read from the device comes on top.
"""

from collections.abc import Iterator

from benchmarks.brokers import running_broker, temporary_folder
from benchmarks.clients import Job, consume_batched, in_another_process, produce_batched
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.topics import create_topic

PARTITIONS = 100
RECORD_BYTES = 1000
GB = 1_000_000_000


def measure(settings: Settings) -> Iterator[Figure]:
    records = settings.restart_bytes // RECORD_BYTES
    with temporary_folder() as folder:
        with running_broker(folder) as broker:
            topic = create_topic(broker.bootstrap, PARTITIONS, "before_ack")
            job = Job(broker.bootstrap, broker.pids, topic, PARTITIONS, records, RECORD_BYTES)
            in_another_process(produce_batched, job)
            broker.process.kill()
            broker.process.wait()
        with running_broker(folder) as broker:
            start_s = broker.start_s
            again = Job(broker.bootstrap, broker.pids, topic, PARTITIONS, records, RECORD_BYTES)
            in_another_process(consume_batched, again)  # raises if an acknowledged record is missing
    name = f"kill -9 with {settings.restart_bytes / GB:g} GB in {PARTITIONS} partitions"
    yield Figure(name=f"ready again after {name}", unit="s", samples=(start_s,))
