"""What a fetch of idle partitions costs: a consumer that has read everything and names all its partitions.

The client has no fetch session, as librdkafka, and begins the list of partitions elsewhere each time.
"""

from collections.abc import Iterator

from benchmarks.brokers import Broker, fresh_broker
from benchmarks.clients import ClientFailed
from benchmarks.figures import Figure
from benchmarks.groups_wire import client_of
from benchmarks.phase import process_cpu_s
from benchmarks.settings import Settings, partitions_text
from benchmarks.topics import new_topic
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic

FETCHES = 5_000
STEP = 7
BYTES_MAX = 1 << 20
NO_SESSION_EPOCH = -1


def measure(settings: Settings) -> Iterator[Figure]:
    for partitions in settings.partition_counts:
        samples = []
        for _ in range(settings.repeats):
            with fresh_broker() as broker, new_topic(broker.bootstrap, partitions, "os") as topic:
                samples.append(_cpu_us(broker, topic, partitions, settings.scaled(FETCHES)))
        yield Figure(
            name=f"broker CPU, fetch of {partitions_text(partitions)} without new records",
            unit="µs/request",
            samples=tuple(samples),
        )


def _cpu_us(broker: Broker, topic: str, partitions: int, fetches: int) -> float:
    with client_of(broker.bootstrap) as client:
        (found,) = client.ask(METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
        asked = [FetchPartition(index, partition_max_bytes=BYTES_MAX) for index in range(partitions)]
        before_s = 0.0
        for number in range(-1, fetches):
            if number == 0:  # the first request is not counted
                before_s = process_cpu_s(broker.pid)
            first = STEP * number % partitions
            topics = [FetchTopic(topic_id=found.topic_id, partitions=asked[first:] + asked[:first])]
            request = FetchRequest(max_bytes=BYTES_MAX, session_epoch=NO_SESSION_EPOCH, topics=topics)
            answered = client.ask(FETCH, request).responses
            if sum(len(each.partitions) for each in answered) != partitions:
                raise ClientFailed(f"a fetch of {partitions} partitions got a reply for {answered}")
        return (process_cpu_s(broker.pid) - before_s) * 1e6 / fetches
