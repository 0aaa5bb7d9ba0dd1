"""The parts of a running broker that the HTTP application uses."""

from typing import NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.groups.cluster_groups import ClusterGroups
from penstock.broker.groups.group_lag import GroupLagReporter
from penstock.broker.network.server import Server
from penstock.broker.storage.compaction import Compaction
from penstock.broker.storage.partition_storage import Storage
from penstock.observability.logs import Log


class Sources(NamedTuple):
    groups: ClusterGroups
    own_groups: GroupLagReporter
    storage: Storage
    server: Server
    compaction: Compaction
    cluster: MetadataService
    log: Log
    tokens_path: str | None = None
    """The file with the tokens that authorize changes; None: there are no tokens."""
