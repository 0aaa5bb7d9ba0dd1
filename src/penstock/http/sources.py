"""What HTTP shows of a running broker."""

from typing import NamedTuple

from penstock.broker.cluster import Cluster
from penstock.broker.cluster_groups import ClusterGroups
from penstock.broker.compaction import Compaction
from penstock.broker.group_reports import GroupReports
from penstock.broker.server import Server
from penstock.broker.storage import Storage


class Sources(NamedTuple):
    groups: ClusterGroups
    own_groups: GroupReports
    storage: Storage
    server: Server
    compaction: Compaction
    cluster: Cluster
