"""A broker that is alone becomes the first of a cluster: what its shared store has to hold.

Everything that its own file says is written under the same keys, and then the key that says which cluster
the store holds. Nothing there counts before that last one, and nothing of it counts for the broker
before its data directory says so (`log.data_directory.set_membership`), which is not decided here.

Rule 1: the store must be empty, or hold what an earlier try has left and nobody has used since.
Rule 2: what is written is what was read, but for the broker's registration, which gets an incarnation
        and its disk. Without the disk it would come back as a broker with a wiped one (`brokers.adopt`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.controller.broker_lifecycle import adopt
from penstock.controller.decision import Decision
from penstock.errors import ConfigError, CorruptData
from penstock.host.metadata_store import ABSENT, Compare, Delete, DeleteAll, Put, Snapshot
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import BrokerValue, decode
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import CLUSTER_ID_KEY, BrokerKey, BrokerSessionKey, ClusterKeys, ControllerKey

STORE_PREFIX = "/penstock/"
"""What a cluster keeps in a store begins so, whichever it is."""


class AdoptedBroker(NamedTuple):
    """The broker that is to be a member."""

    cluster_id: str
    node_id: int
    directory_id: str


def shared_facts(
    own: Snapshot, member: AdoptedBroker, incarnation: str
) -> tuple[ClusterImage, dict[str, bytes]]:
    """What the broker's own store says, as it is and as a shared one is to say it."""
    image = image_of(own, member.cluster_id)
    facts = {key: entry.value for key, entry in own.entries.items()}
    if member.node_id in image.brokers:
        decision = adopt(image, member.node_id, incarnation=incarnation, directory_id=member.directory_id)
        facts |= {put.key: put.value for put in decision.changes if isinstance(put, Put)}
    return image, facts


def import_transactions(facts: dict[str, bytes], cluster_id: str, changes_max: int) -> Iterator[Decision]:
    """The transactions that fill an empty store, in their order. The last makes the others count."""
    nobody_came = Compare(CLUSTER_ID_KEY, ABSENT)
    # Partitions come before their topics in this order, too.
    puts = [Put(key, value) for key, value in sorted(facts.items())]
    size = changes_max - 1
    for start in range(0, len(puts), size):
        some = puts[start : start + size]
        yield Decision((nobody_came, *(Compare(put.key, ABSENT) for put in some)), tuple(some))
    yield Decision((nobody_came,), (Put(CLUSTER_ID_KEY, cluster_id.encode()),))


def cleanup_transaction(found: Snapshot, member: AdoptedBroker) -> Decision | None:
    """How what an earlier try has left is taken away; None if the store is empty.

    `found`: EVERYTHING in it. ConfigError if there is more than that.
    """
    if not found.entries:
        return None
    keys = ClusterKeys(member.cluster_id)
    held = found.entries.get(CLUSTER_ID_KEY)
    strangers = [key for key in found.entries if key != CLUSTER_ID_KEY and not key.startswith(keys.prefix)]
    if strangers or (held is not None and held.value != member.cluster_id.encode()):
        raise ConfigError(
            "the metadata store holds another cluster already: give an empty one with --metadata, or a place "
            "of its own in that one, as in etcd://host:port/name"
        )
    users = sorted(
        {user for key, entry in found.entries.items() for user in _users(keys, key, entry.value, member)}
    )
    if users:
        raise ConfigError(
            f"the metadata store holds cluster {member.cluster_id}, and {' and '.join(users)} used it since: "
            "what it says now may be newer than this data directory. Give an empty one with --metadata"
        )
    return Decision(
        (
            Compare(CLUSTER_ID_KEY, ABSENT if held is None else held.revision),
            Compare(keys.controller, ABSENT),
        ),
        (Delete(CLUSTER_ID_KEY), DeleteAll(keys.prefix)),
    )


def _users(keys: ClusterKeys, key: str, value: bytes, member: AdoptedBroker) -> Iterator[str]:
    """Who has been there, as this key shows."""
    if key == CLUSTER_ID_KEY:
        return
    match keys.parse(key):
        case ControllerKey():
            yield "a controller"
        case BrokerSessionKey(broker_id):
            yield f"broker {broker_id}"
        case BrokerKey(broker_id):
            if broker_id != member.node_id or decode(BrokerValue, key, value).admitted_epoch != ABSENT:
                yield f"broker {broker_id}"


def verify_written(found: Snapshot, facts: dict[str, bytes]) -> None:
    """CorruptData unless the store holds all of it, and nothing else."""
    if {key: entry.value for key, entry in found.entries.items()} != facts:
        raise CorruptData("the metadata store does not hold what was written to it: run the command again")
