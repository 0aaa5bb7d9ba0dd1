"""Adoption: what the shared store must hold so that an embedded broker becomes the first of a cluster.

Every entry of the broker's own metadata file is written to the shared store under the same key, and after all
of them the key that names the cluster (`CLUSTER_ID_KEY`). The entries count only once that last key exists.
The broker uses the shared store only once its data directory records its membership
(`log.data_directory.set_membership`), which is not decided here. `member` is the identity of that directory.

Rule 1: the store must be empty, or hold only what an earlier attempt left behind and no process has used
        since.
Rule 2: the entries are written unchanged, except the broker's registration, which gets an incarnation and a
        directory id. Without the directory id the broker would register as one whose disk was wiped
        (`broker_lifecycle.adopt`).
"""

from collections.abc import Iterator

from penstock.chunks import chunks
from penstock.controller.broker_lifecycle import adopt
from penstock.controller.decision import Decision
from penstock.errors import ConfigError, CorruptData
from penstock.host.metadata_store import ABSENT, Compare, Delete, DeleteAll, Put, Snapshot
from penstock.log.data_directory import DirectoryIdentity
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.documents import BrokerValue, decode_document
from penstock.metadata.image_builder import image_of
from penstock.metadata.keys import CLUSTER_ID_KEY, BrokerKey, BrokerSessionKey, ClusterKeys, ControllerKey

STORE_PREFIX = "/penstock/"
"""Prefix of every key that a cluster keeps in a store, for any cluster id."""


def shared_facts(
    own: Snapshot, member: DirectoryIdentity, incarnation: str
) -> tuple[ClusterImage, dict[str, bytes]]:
    """The image of the broker's own store, and the entries that the shared store must hold."""
    image = image_of(own, member.cluster_id)
    facts = {key: entry.value for key, entry in own.entries.items()}
    if member.node_id in image.brokers:
        decision = adopt(image, member.node_id, incarnation=incarnation, directory_id=member.directory_id)
        facts |= {put.key: put.value for put in decision.changes if isinstance(put, Put)}
    return image, facts


def import_transactions(facts: dict[str, bytes], cluster_id: str, changes_max: int) -> Iterator[Decision]:
    """The transactions that fill an empty store, in their order. The last one makes all entries count."""
    is_unclaimed = Compare(CLUSTER_ID_KEY, ABSENT)
    # Sorted by key, the partitions come before their topics. So an image never shows a topic without its
    # partitions.
    puts = [Put(key, value) for key, value in sorted(facts.items())]
    for some in chunks(puts, changes_max - 1):
        # Every key must be absent: a second adoption that runs at the same time gets a conflict and
        # overwrites nothing.
        yield Decision((is_unclaimed, *(Compare(put.key, ABSENT) for put in some)), tuple(some))
    yield Decision((is_unclaimed,), (Put(CLUSTER_ID_KEY, cluster_id.encode()),))


def cleanup_transaction(found: Snapshot, member: DirectoryIdentity) -> Decision | None:
    """The transaction that deletes what an earlier attempt left behind; None if the store is empty.

    `found` is EVERYTHING in the store. ConfigError if the store holds anything else.
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
    # The compares fail if another broker completes its adoption, or a controller takes office, since `found`
    # was read.
    return Decision(
        (
            Compare(CLUSTER_ID_KEY, ABSENT if held is None else held.revision),
            Compare(keys.controller, ABSENT),
        ),
        (Delete(CLUSTER_ID_KEY), DeleteAll(keys.prefix)),
    )


def _users(keys: ClusterKeys, key: str, value: bytes, member: DirectoryIdentity) -> Iterator[str]:
    """The process that used the store since the attempt, if this key proves that there was one."""
    if key == CLUSTER_ID_KEY:
        return
    match keys.parse(key):
        case ControllerKey():
            yield "a controller"
        case BrokerSessionKey(broker_id):
            yield f"broker {broker_id}"
        case BrokerKey(broker_id):
            # An adopted registration has an incarnation but no admitted epoch until its broker joins.
            if (
                broker_id != member.node_id
                or decode_document(BrokerValue, key, value).admitted_epoch != ABSENT
            ):
                yield f"broker {broker_id}"


def verify_written(found: Snapshot, facts: dict[str, bytes]) -> None:
    """CorruptData unless the store holds exactly these entries."""
    if {key: entry.value for key, entry in found.entries.items()} != facts:
        raise CorruptData("the metadata store does not hold what was written to it: run the command again")
