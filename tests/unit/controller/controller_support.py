"""A metadata store in memory, with real comparisons, and clusters made of decisions."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from penstock.controller.broker_lifecycle import (
    RegistrationRequest,
    admit,
    become_controller,
    finish_joining,
    register,
)
from penstock.controller.decision import Decision, transactions_of
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic
from penstock.errors import ApiError
from penstock.host.metadata_store import (
    ABSENT,
    Compare,
    Delete,
    DeleteAll,
    Put,
    SessionId,
    Snapshot,
    StoreChange,
    StoreEntry,
)
from penstock.metadata import levels
from penstock.metadata.cluster_image import ClusterImage, PartitionState
from penstock.metadata.documents import Endpoint
from penstock.metadata.image_builder import apply, image_of
from penstock.metadata.keys import ClusterKeys
from penstock.types import TopicId

CLUSTER = "c"
KEYS = ClusterKeys(CLUSTER)
EMPTY = ClusterImage(cluster_id=CLUSTER)
ETCD_CHANGES_MAX = 128
LISTENERS = {"PLAINTEXT": Endpoint("h", 9092)}


def refusal(decide: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decide()
    assert caught.value.detail, "a refusal says why"
    return caught.value


class MemoryStore:
    def __init__(self) -> None:
        self.revision = 0
        self._entries: dict[str, StoreEntry] = {}
        self._sessions: dict[str, SessionId] = {}

    def transact(self, compares: Iterable[Compare], changes: Sequence[StoreChange]) -> int | None:
        """The revision it was committed at; None: a comparison failed."""
        for key, revision in compares:
            entry = self._entries.get(key)
            if (ABSENT if entry is None else entry.revision) != revision:
                return None
        self.revision += 1
        for change in changes:
            self._make(change)
        return self.revision

    def end_session(self, session: SessionId) -> list[StoreChange]:
        """What a watcher sees of it."""
        gone: list[StoreChange] = [Delete(key) for key, of in self._sessions.items() if of == session]
        if gone:
            self.transact((), gone)
        return gone

    def read(self) -> Snapshot:
        return Snapshot(self.revision, dict(sorted(self._entries.items())))

    def _make(self, change: StoreChange) -> None:
        if isinstance(change, Put):
            self._entries[change.key] = StoreEntry(change.value, self.revision)
            self._sessions.pop(change.key, None)
            if change.session is not None:
                self._sessions[change.key] = change.session
            return
        gone = [change.key] if isinstance(change, Delete) else self._under(change)
        for key in gone:
            self._entries.pop(key, None)
            self._sessions.pop(key, None)

    def _under(self, change: DeleteAll) -> list[str]:
        return [key for key in self._entries if key.startswith(change.prefix)]


class StoredCluster:
    """A store and the image of it, kept current the way a broker does: by watching."""

    def __init__(self, changes_max: int = ETCD_CHANGES_MAX) -> None:
        self.store = MemoryStore()
        self.image = EMPTY
        self.newest = levels.NEWEST
        """The last level that is known here."""
        self._changes_max = changes_max
        self._topics = 1

    def attempt(self, decision: Decision) -> bool:
        for piece in transactions_of(decision, self._changes_max):
            revision = self.store.transact(piece.compares, piece.changes)
            if revision is None:
                return False
            self.image = apply(self.image, piece.changes, revision, newest=self.newest)
        return True

    def commit(self, decision: Decision) -> ClusterImage:
        assert self.attempt(decision), "nobody else writes"
        return self.image

    def end_session(self, session: int) -> None:
        gone = self.store.end_session(SessionId(session))
        if gone:
            self.image = apply(self.image, gone, self.store.revision, newest=self.newest)

    def read_afresh(self) -> ClusterImage:
        return image_of(self.store.read(), CLUSTER, self.newest)

    def join(self, broker_id: int, incarnation: str = "", **facts: object) -> None:
        """Register a broker. Its session has the number of the broker."""
        self.commit(self.joining(broker_id, incarnation, **facts))

    def joining(self, broker_id: int, incarnation: str = "", **facts: object) -> Decision:
        wanted = RegistrationRequest(
            broker_id=broker_id,
            incarnation=incarnation or f"first of {broker_id}",
            directory_id=str(facts.pop("directory_id", f"disk of {broker_id}")),
            endpoints=LISTENERS,
            **facts,  # type: ignore[arg-type]
        )
        return register(self.image, wanted, SessionId(broker_id))

    def admit(self, broker_id: int) -> None:
        self.commit(admit(self.image, self.image.brokers[broker_id]))

    def create(
        self,
        name: str = "t",
        partitions: int = 1,
        factor: int = 3,
        overrides: Mapping[str, str] | None = None,
        *,
        internal: bool = False,
    ) -> None:
        self._topics += 1
        new = NewTopicFacts(TopicId(self._topics.to_bytes(16, "big")), created_ms=7)
        request = TopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=factor,
            overrides=overrides or {},
            internal=internal,
        )
        defaults = TopicDefaults(partitions=1, replication_factor=-1)
        self.commit(create_topic(self.image, request, new, defaults=defaults))

    def state(self, name: str = "t", index: int = 0) -> PartitionState:
        found = self.image.partition(name, index)
        assert found is not None
        return found


def cluster_of(*broker_ids: int, racks: Sequence[str] = ()) -> StoredCluster:
    """All of them admitted and settled in; the first is the controller."""
    cluster = StoredCluster()
    for number, broker_id in enumerate(broker_ids):
        cluster.join(broker_id, rack=racks[number] if racks else None)
        if number == 0:
            cluster.commit(become_controller(cluster.image, broker_id, SessionId(1000)))
        cluster.admit(broker_id)
        cluster.commit(finish_joining(cluster.image, cluster.image.brokers[broker_id]))
    return cluster
