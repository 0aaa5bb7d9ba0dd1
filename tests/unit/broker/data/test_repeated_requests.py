"""A request that is recalled instead of decoded is treated as any other."""

from penstock.broker.apis.fetch import Fetch
from penstock.broker.apis.produce import Produce
from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_sessions import CachedFetchRequest
from penstock.broker.quotas import NoQuotas
from penstock.broker.router import Route, Router
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.frames import encode_request
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.security.access import AllowEverything
from penstock.types import TopicId
from tests.unit.broker.network.test_broker_connection import Client, Wiring

RECORDS_BYTES = (200, 300, 400)


class Charging:
    """Counts, and asks nobody to pause before the third request."""

    def __init__(self) -> None:
        self.charged: list[int] = []

    def charge(self, context: RequestContext, api_key: int, request_bytes: int) -> int:
        self.charged.append(request_bytes)
        return 10_000 if len(self.charged) == len(RECORDS_BYTES) else 0


def frame_of(records_bytes: int) -> bytes:
    data = [PartitionProduceData(0, bytes(records_bytes))]
    request = ProduceRequest(None, -1, 1_000, [TopicProduceData("orders", partition_data=data)])
    return b"".join(encode_request(PRODUCE, 9, 1, "tests", request))


async def test_a_repeated_request_counts_all_of_its_bytes_and_may_be_throttled() -> None:
    quotas, asked = Charging(), []

    def handle(request: ProduceRequest, context: RequestContext) -> ProduceResponse:
        records = request.topic_data[0].partition_data[0].records
        asked.append(len(records or b""))
        return ProduceResponse()

    world = Wiring()
    image = ClusterImage(cluster_id="c")
    world.shared.router = Router([Route(Produce.api, handle)], AllowEverything(), quotas, lambda: image)
    decodes: list[int] = []
    decode = world.shared.router.decode
    world.shared.router.decode = lambda *args: decodes.append(1) or decode(*args)  # type: ignore[func-returns-value,method-assign]
    client = Client(world)
    frames = [frame_of(count) for count in RECORDS_BYTES]
    for frame in frames:
        client.receives(frame)
    assert len(decodes) == 1, "the others are recalled"
    assert asked == list(RECORDS_BYTES)
    assert quotas.charged == [len(frame) - 4 for frame in frames]
    assert not client.transport.reading


async def test_what_a_connection_remembers_of_its_fetches_is_given_back_when_it_ends() -> None:
    world = Wiring()
    image = ClusterImage(cluster_id="c")
    asked: list[FetchRequest] = []

    def handle(request: FetchRequest, context: RequestContext) -> FetchResponse:
        asked.append(request)
        return FetchResponse()

    world.shared.router = Router([Route(Fetch.api, handle)], AllowEverything(), NoQuotas(), lambda: image)
    before = world.shared.fetch_cache_budget.free
    client = Client(world)
    partitions = [FetchPartition(number) for number in range(50)]
    request = FetchRequest(topics=[FetchTopic("", TopicId(bytes(15) + b"7"), partitions)])
    for _ in range(3):
        client.receives(b"".join(encode_request(FETCH, 16, 1, "tests", request)))
    assert [type(each) for each in asked] == [FetchRequest, CachedFetchRequest, CachedFetchRequest]
    assert world.shared.fetch_cache_budget.free < before
    client.leaves()
    assert world.shared.fetch_cache_budget.free == before
