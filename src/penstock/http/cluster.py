"""The cluster over HTTP: its state, draining of brokers, and balancing.

GET  /v1/cluster                      brokers, partitions with problems or being reassigned, topics at risk
POST /v1/cluster/brokers/{id}/drain   move its leaderships, and assign it no leaderships or replicas
POST /v1/cluster/brokers/{id}/undrain end the draining
GET  /v1/cluster/balance              reassignments that would even out replicas and leaders over the brokers
POST /v1/cluster/balance              make them; with ?away_from= move everything off that broker instead

Reassigning chosen partitions and electing leaders are done over Kafka's protocol.

Rule: POST requests are authorized before they reach this file (change_access.py).
"""

from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from aiohttp import web

from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.controller.balance import balancing_moves, evacuation_moves
from penstock.controller.broker_lifecycle import drain, drain_by_operator, is_drained
from penstock.controller.cluster_summary import ClusterSummary, broker_state, survey
from penstock.controller.decision import Decide
from penstock.controller.partitions import TopicPartitionState
from penstock.controller.reachability import unreachable_for
from penstock.controller.reassignment import Reassignment, reassign
from penstock.errors import ApiError, ErrorCode
from penstock.http.errors import HttpError, json_reply
from penstock.limits import BALANCE_MOVES_MAX, HTTP_PARTITIONS_LISTED_MAX, INT_MAX, PARTITION_CHANGES_AT_ONCE
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.replication.partition import Partition

JsonObject = dict[str, Any]
T = TypeVar("T")

_STATUS = {
    ErrorCode.BROKER_ID_NOT_REGISTERED: (404, "broker_not_found"),
    ErrorCode.NOT_CONTROLLER: (503, "no_controller"),
    ErrorCode.REQUEST_TIMED_OUT: (503, "metadata_store_unavailable"),
}


class ClusterPages:
    def __init__(self, cluster: MetadataService, replicas: Iterable[Partition]) -> None:
        """`replicas`: iterates over the partitions that this broker has at that moment."""
        self._cluster = cluster
        self._replicas = replicas

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/cluster", self.show)
        router.add_get("/v1/cluster/balance", self.plan_balance)
        router.add_post("/v1/cluster/balance", self.balance)
        router.add_post("/v1/cluster/brokers/{id}/drain", self.drain)
        router.add_post("/v1/cluster/brokers/{id}/undrain", self.undrain)

    async def show(self, request: web.Request) -> web.Response:
        shown = document(self._cluster.image, self._cluster.current_store_unavailable_reason)
        return json_reply(shown | {"damaged_here": _damaged(self._replicas)})

    async def drain(self, request: web.Request) -> web.Response:
        broker_id = _id(request.match_info["id"])
        return await self._changed_broker(broker_id, lambda image: drain_by_operator(image, broker_id))

    async def undrain(self, request: web.Request) -> web.Response:
        broker_id = _id(request.match_info["id"])
        return await self._changed_broker(broker_id, lambda image: drain(image, broker_id, is_draining=False))

    async def _changed_broker(self, broker_id: int, decide: Decide) -> web.Response:
        image = await _raising_http_error(MetadataChange(self._cluster).commit(decide))
        return json_reply(_broker(image, survey(image), broker_id))

    async def plan_balance(self, request: web.Request) -> web.Response:
        image = self._cluster.image
        return json_reply({"moves": [_move(image, wanted) for wanted in _plan(image, request)]})

    async def balance(self, request: web.Request) -> web.Response:
        image = self._cluster.image
        plan = _plan(image, request)
        outcomes = await MetadataChange(self._cluster).commit_each(
            [_reassignment(wanted) for wanted in plan], independent=True, at_once=PARTITION_CHANGES_AT_ONCE
        )
        moves = [
            _move(image, wanted) | {"refusal": str(outcome) if isinstance(outcome, ApiError) else None}
            for wanted, outcome in zip(plan, outcomes, strict=True)
        ]
        return json_reply({"moves": moves})


def document(image: ClusterImage, store_unavailable_reason: str | None) -> JsonObject:
    found = survey(image)
    controller = image.controller_id
    return {
        "cluster_id": image.cluster_id,
        "controller": None if controller == NO_NODE else controller,
        "metadata_store_unavailable": store_unavailable_reason,
        "topics": len(image.topics),
        "partitions": image.partition_count,
        "brokers": [_broker(image, found, node) for node in sorted(image.brokers)],
        "offline": _listed(found.offline),
        "under_replicated": _listed(found.under_replicated),
        "unbalanced": _listed(found.unbalanced),
        "reassigning": _listed(found.reassigning),
        "topics_at_risk": [at_risk._asdict() for at_risk in found.at_risk],
    }


def _broker(image: ClusterImage, found: ClusterSummary, broker_id: int) -> JsonObject:
    broker, load = image.brokers[broker_id], found.loads[broker_id]
    return {
        "id": broker.id,
        "rack": broker.rack,
        "state": broker_state(broker),
        "addresses": {name: f"{at.host}:{at.port}" for name, at in broker.endpoints.items()},
        "leads": load.leads,
        "holds": load.holds,
        "is_drained": broker.is_draining and is_drained(image, broker_id),
        "cannot_reach": sorted(unreachable_for(image, broker_id)),
    }


def _listed(partitions: list[TopicPartitionState]) -> JsonObject:
    """The number of partitions, and the first of them."""
    first = partitions[:HTTP_PARTITIONS_LISTED_MAX]
    return {"count": len(partitions), "partitions": [_partition(partition) for partition in first]}


def _damaged(replicas: Iterable[Partition]) -> JsonObject:
    """Damaged partitions on this broker. No other broker can list them: the cluster only records the ISR."""
    found = [
        {"topic": each.name.topic, "partition": each.name.partition, "reason": str(each.offline_error)}
        for each in replicas
        if each.is_damaged
    ]
    return {"count": len(found), "partitions": found[:HTTP_PARTITIONS_LISTED_MAX]}


def _partition(partition: TopicPartitionState) -> JsonObject:
    topic, state = partition
    return {
        "topic": topic.name,
        "partition": state.index,
        "leader": None if state.leader == NO_NODE else state.leader,
        "replicas": state.replicas,
        "in_sync": state.isr,
        "adding": state.adding,
        "removing": state.removing,
    }


def _plan(image: ClusterImage, request: web.Request) -> list[Reassignment]:
    away_from = request.query.get("away_from")
    if away_from is None:
        return balancing_moves(image, BALANCE_MOVES_MAX)
    broker_id = _id(away_from)
    if broker_id not in image.brokers:
        raise _http_error(ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id}."))
    return evacuation_moves(image, broker_id, BALANCE_MOVES_MAX)


def _move(image: ClusterImage, wanted: Reassignment) -> JsonObject:
    state = image.topics[wanted.topic].partitions[wanted.partition]
    return {
        "topic": wanted.topic,
        "partition": wanted.partition,
        "from": state.replicas,
        "to": wanted.target,
    }


def _reassignment(wanted: Reassignment) -> Decide:
    return lambda image: reassign(image, wanted)


async def _raising_http_error(change: Awaitable[T]) -> T:
    try:
        return await change
    except ApiError as problem:
        raise _http_error(problem) from problem


def _http_error(problem: ApiError) -> HttpError:
    status, code = _STATUS.get(problem.code, (409, problem.code.name.lower()))
    return HttpError(status, code, problem.detail or problem.code.name)


def _id(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(INT_MAX))
    if not is_number or int(text) > INT_MAX:
        raise HttpError(400, "bad_broker_id", "The id of a broker is a number.")
    return int(text)
