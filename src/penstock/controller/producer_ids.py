"""Blocks of producer ids, handed out to brokers."""

from dataclasses import dataclass

from penstock.controller.decision import Decision
from penstock.host.metadata_store import Compare, Put
from penstock.limits import LONG_MAX, PRODUCER_IDS_PER_BLOCK
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import ProducerIdsValue, encode_document
from penstock.metadata.keys import ClusterKeys
from penstock.types import ProducerId


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: ProducerId
    count: int
    decision: Decision
    """The decision to commit before the first id is handed out."""


def next_producer_id_block(image: ClusterImage) -> ProducerIdBlock:
    """A block of producer ids for one broker. Ids that a crash leaves unused are never handed out again."""
    known = image.producer_ids
    # The whole block is taken before its first id is used: no id is ever given to two producers.
    next_id = known.next_id + PRODUCER_IDS_PER_BLOCK
    assert next_id <= LONG_MAX, "at a block a microsecond this takes 292 years"
    key = ClusterKeys(image.cluster_id).producer_ids
    decision = Decision(
        (Compare(key, known.revision),), (Put(key, encode_document(ProducerIdsValue(next_id))),)
    )
    return ProducerIdBlock(ProducerId(known.next_id), PRODUCER_IDS_PER_BLOCK, decision)
