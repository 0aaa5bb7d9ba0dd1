"""The table of all APIs by api key: Kafka's, and a few between brokers.

The table lists what can be decoded and encoded. The router decides which APIs a broker offers.
"""

from typing import Final

from penstock.protocol.messages.add_offsets_to_txn import ADD_OFFSETS_TO_TXN
from penstock.protocol.messages.add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from penstock.protocol.messages.alter_configs import ALTER_CONFIGS
from penstock.protocol.messages.alter_partition_reassignments import ALTER_PARTITION_REASSIGNMENTS
from penstock.protocol.messages.alter_replica_log_dirs import ALTER_REPLICA_LOG_DIRS
from penstock.protocol.messages.api_versions import API_VERSIONS
from penstock.protocol.messages.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from penstock.protocol.messages.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from penstock.protocol.messages.create_partitions import CREATE_PARTITIONS
from penstock.protocol.messages.create_topics import CREATE_TOPICS
from penstock.protocol.messages.delete_groups import DELETE_GROUPS
from penstock.protocol.messages.delete_records import DELETE_RECORDS
from penstock.protocol.messages.delete_topics import DELETE_TOPICS
from penstock.protocol.messages.describe_acls import DESCRIBE_ACLS
from penstock.protocol.messages.describe_cluster import DESCRIBE_CLUSTER
from penstock.protocol.messages.describe_configs import DESCRIBE_CONFIGS
from penstock.protocol.messages.describe_groups import DESCRIBE_GROUPS
from penstock.protocol.messages.describe_log_dirs import DESCRIBE_LOG_DIRS
from penstock.protocol.messages.describe_producers import DESCRIBE_PRODUCERS
from penstock.protocol.messages.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from penstock.protocol.messages.describe_transactions import DESCRIBE_TRANSACTIONS
from penstock.protocol.messages.elect_leaders import ELECT_LEADERS
from penstock.protocol.messages.end_txn import END_TXN
from penstock.protocol.messages.fetch import FETCH
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR
from penstock.protocol.messages.group_reports import GROUP_REPORTS
from penstock.protocol.messages.heartbeat import HEARTBEAT
from penstock.protocol.messages.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID
from penstock.protocol.messages.join_group import JOIN_GROUP
from penstock.protocol.messages.leave_group import LEAVE_GROUP
from penstock.protocol.messages.list_config_resources import LIST_CONFIG_RESOURCES
from penstock.protocol.messages.list_groups import LIST_GROUPS
from penstock.protocol.messages.list_offsets import LIST_OFFSETS
from penstock.protocol.messages.list_partition_reassignments import LIST_PARTITION_REASSIGNMENTS
from penstock.protocol.messages.list_transactions import LIST_TRANSACTIONS
from penstock.protocol.messages.log_positions import LOG_POSITIONS
from penstock.protocol.messages.metadata import METADATA
from penstock.protocol.messages.offset_commit import OFFSET_COMMIT
from penstock.protocol.messages.offset_delete import OFFSET_DELETE
from penstock.protocol.messages.offset_fetch import OFFSET_FETCH
from penstock.protocol.messages.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.messages.sync_group import SYNC_GROUP
from penstock.protocol.messages.txn_offset_commit import TXN_OFFSET_COMMIT
from penstock.protocol.messages.unregister_broker import UNREGISTER_BROKER
from penstock.protocol.messages.update_features import UPDATE_FEATURES
from penstock.protocol.messages.write_txn_markers import WRITE_TXN_MARKERS
from penstock.protocol.schema import Api, Struct

ALL: Final[tuple[Api[Struct, Struct], ...]] = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DELETE_RECORDS,
    INIT_PRODUCER_ID,
    OFFSET_FOR_LEADER_EPOCH,
    WRITE_TXN_MARKERS,
    DESCRIBE_ACLS,
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    CREATE_PARTITIONS,
    DELETE_GROUPS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
    OFFSET_DELETE,
    UPDATE_FEATURES,
    DESCRIBE_CLUSTER,
    DESCRIBE_PRODUCERS,
    UNREGISTER_BROKER,
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
    LIST_CONFIG_RESOURCES,
    DESCRIBE_TOPIC_PARTITIONS,
)

NOT_SERVED: Final[tuple[Api[Struct, Struct], ...]] = (
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
)
"""Kafka's APIs that have a message table and no handler yet: those of transactions."""

INTER_BROKER_APIS: Final[tuple[Api[Struct, Struct], ...]] = (GROUP_REPORTS, LOG_POSITIONS)
"""Penstock's own APIs. ApiVersions does not list them, and their keys are far above Kafka's."""

APIS: Final[dict[int, Api[Struct, Struct]]] = {api.key: api for api in (*ALL, *INTER_BROKER_APIS)}
assert len(APIS) == len(ALL) + len(INTER_BROKER_APIS), "two tables share an api key"
