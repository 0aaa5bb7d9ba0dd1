"""The cluster over HTTP: how it is, draining and balancing, and who is refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.broker.support import HandlerHarness, running_cluster
from tests.unit.http.http_support import JSON, client_of
from tests.unit.log.log_support import new_disk
from tests.unit.replication.test_replica_manager import FIRST_ID, SECOND_ID, image, opened


@pytest.fixture
async def asker() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as asker:
        await asker.topic("t", partitions=4)
        yield asker


@pytest.fixture
async def client(asker: HandlerHarness) -> AsyncIterator[Any]:
    async with client_of(asker.cluster) as client:
        yield client


async def shown(client: Any) -> Any:
    reply = await client.get("/v1/cluster")
    assert reply.status == 200
    return await reply.json()


async def test_the_page_tells_of_brokers_and_of_topics_at_risk(client: Any) -> None:
    page = await shown(client)
    assert page["controller"] == 1
    assert page["metadata_store_unavailable"] is None
    assert (page["topics"], page["partitions"]) == (1, 4)
    assert page["brokers"][0] == {
        "id": 1,
        "rack": "rack1",
        "state": "admitted",
        "addresses": {"PLAINTEXT": "plain1:9001", "TLS": "tls1:9101"},
        "leads": page["brokers"][0]["holds"],
        "holds": page["brokers"][0]["holds"],
        "is_drained": False,
        "cannot_reach": [],
    }
    assert sum(broker["leads"] for broker in page["brokers"]) == 4
    assert page["topics_at_risk"] == [{"topic": "t", "reason": "one replica"}]
    for trouble in ("offline", "under_replicated", "unbalanced", "reassigning", "damaged_here"):
        assert page[trouble] == {"count": 0, "partitions": []}


async def test_the_page_tells_of_copies_that_are_damaged_on_this_broker(asker: HandlerHarness) -> None:
    made, _ = opened(new_disk(), image({"k": FIRST_ID, "sound": SECOND_ID}))
    damaged = made.of_topic("k")[0]
    damaged.mark_damaged("the checksum of the batch at offset 5 does not match")
    async with client_of(asker.cluster, replicas=list(made)) as client:
        found = (await shown(client))["damaged_here"]
    reason = "KAFKA_STORAGE_ERROR: the checksum of the batch at offset 5 does not match"
    assert found == {"count": 1, "partitions": [{"topic": "k", "partition": 0, "reason": reason}]}


async def test_a_broker_is_drained_and_let_in_again(client: Any) -> None:
    reply = await client.post("/v1/cluster/brokers/2/drain", headers=JSON)
    assert reply.status == 200
    assert (await reply.json())["state"] == "draining"
    assert [broker["state"] for broker in (await shown(client))["brokers"]][1] == "draining"
    reply = await client.post("/v1/cluster/brokers/2/undrain", headers=JSON)
    assert (await reply.json())["state"] == "admitted"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/cluster/brokers/9/drain", 404, "broker_not_found"),
        ("/v1/cluster/brokers/9/undrain", 404, "broker_not_found"),
        ("/v1/cluster/brokers/x/drain", 400, "bad_broker_id"),
        ("/v1/cluster/brokers/99999999999/drain", 400, "bad_broker_id"),
        ("/v1/cluster/balance?away_from=9", 404, "broker_not_found"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_a_sentence(
    client: Any, path: str, status: int, code: str
) -> None:
    reply = await client.post(path, headers=JSON)
    assert reply.status == status
    error = (await reply.json())["error"]
    assert error["code"] == code
    assert error["message"].endswith(".")


async def test_the_last_broker_is_not_drained(client: Any) -> None:
    for broker_id in (1, 2):
        assert (await client.post(f"/v1/cluster/brokers/{broker_id}/drain", headers=JSON)).status == 200
    reply = await client.post("/v1/cluster/brokers/3/drain", headers=JSON)
    assert reply.status == 409
    assert "no other broker" in (await reply.json())["error"]["message"]


async def test_everything_moves_away_from_a_broker_when_that_is_asked_for(
    client: Any, asker: HandlerHarness
) -> None:
    path = "/v1/cluster/balance?away_from=1"
    planned = (await (await client.get(path)).json())["moves"]
    held = next(broker["holds"] for broker in (await shown(client))["brokers"] if broker["id"] == 1)
    assert [move["from"] for move in planned] == [[1]] * held
    assert asker.store.commits == 1, "a plan changes nothing"
    moved = (await (await client.post(path, headers=JSON)).json())["moves"]
    assert moved == [move | {"refusal": None} for move in planned]
    assert (await shown(client))["reassigning"]["count"] == held


async def test_an_even_cluster_has_nothing_to_move(client: Any) -> None:
    assert await (await client.get("/v1/cluster/balance")).json() == {"moves": []}
