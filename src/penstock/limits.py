"""Every limit of the system, and how the limits depend on each other.

Strategy: a limit is a constant here, one to a line, with its unit last in the name. Where an operator may
choose, the constant is the default of a setting in `config/`; elsewhere the code reads the constant. Whatever
one limit assumes about another is asserted at the end of the file, so that a change which breaks an
assumption stops the process at import.

Rule 1: no client request may make the broker hold more than one of these limits allows.
Rule 2: this file imports nothing.
"""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

# Names and texts --------------------------------------------------------------------------------

TOPIC_NAME_CHARACTERS_MAX = 249
# Name of a file or folder: the limit of Linux and macOS on their usual file systems.
FILE_NAME_BYTES_MAX = 255
# A setting's value must fit Kafka's short string.
CONFIG_VALUE_BYTES_MAX = SHORT_MAX
# Broker settings that this release does not know are kept for tools that set them, within limits: on their
# number per broker (or in the cluster-wide defaults), on the length of a name, and on their bytes in total.
UNKNOWN_SETTINGS_MAX = 100
UNKNOWN_SETTING_NAME_BYTES_MAX = 249
UNKNOWN_SETTINGS_BYTES_MAX = 64 * KIB

# Coordinators -----------------------------------------------------------------------------------

# Changes of coordinator state that accumulate during a flush are appended in batches of about this size.
STATE_BATCH_BYTES_MAX = 512 * KIB
# Everything that one command changes: it is written as one batch, or it would not be atomic.
STATE_COMMAND_BYTES_MAX = 16 * MIB
# What is written of the accumulated changes for one flush: a few milliseconds of encoding.
STATE_RECORDS_PER_FLUSH = 2_000
STATE_BYTES_PER_FLUSH = 4 * MIB
# Records that long commands and timers make in one iteration of the event loop, all together: about 20 us
# each, from the decision to the file. The work for a group beside its records counts as this many.
STATE_RECORDS_PER_CHUNK = 1_000
GROUP_TURN_RECORDS = 5
# Timers that are checked in one iteration of the event loop.
TIMERS_PER_CHUNK = 1_000
# A coordinator's log is read in chunks of this size, and other tasks run after this many records.
LOAD_BYTES_AT_ONCE = 1 * MIB
LOAD_RECORDS_PER_CHUNK = 200
# After a failed append, the state is loaded again no sooner than this. If loading fails, the pause doubles
# each time, up to the second limit.
COORDINATOR_RELOAD_MS = 1 * SECOND_MS
COORDINATOR_RELOAD_MS_MAX = 1 * MINUTE_MS
# While fewer replicas are in sync than the minimum, nothing of a coordinator expires until it checks again.
TOO_FEW_PAUSE_MS = 1 * SECOND_MS
# After the disk was full, a coordinator checks this often whether this many bytes are free again, or twice
# the size of the failed write. If that was not enough after all, the pause doubles each time.
COORDINATOR_ROOM_CHECK_MS = 1 * SECOND_MS
COORDINATOR_ROOM_CHECK_MS_MAX = 30 * SECOND_MS
COORDINATOR_ROOM_BYTES = 8 * MIB
# Records of a coordinator's log that cannot be read, and are logged one by one.
UNREADABLE_RECORDS_TOLD_MAX = 20
# State of all groups together: members, offsets, metadata. Beyond it, new members and groups are rejected.
GROUP_STATE_BYTES_MAX = 512 * MIB
# The size of one reply about groups, and how many long ones are built at once.
GROUP_REPLY_BYTES_MAX = 32 * MIB
GROUP_REPLIES_AT_ONCE = 4
# Committed offsets that are added to a reply in one iteration of the event loop.
OFFSETS_PER_CHUNK = 2_000
# Subscriptions and assignments of one group's members, all together: they are written as one record.
GROUP_METADATA_BYTES_MAX = 2 * MIB
# The id of a group, which is in every one of its records.
GROUP_ID_BYTES_MAX = 1 * KIB
# Groups that have settings: these are kept in memory, whether or not the group exists.
GROUPS_WITH_SETTINGS_MAX = 10_000
# Members of one group, unless the operator sets another limit; Kafka sets none for classic groups.
GROUP_MEMBERS_MAX = 10_000
# Offsets that are checked for expiry in one iteration of the event loop.
OFFSETS_LOOKED_PER_CHUNK = 5_000
# How fast groups consume is measured over this time, for this many partitions that advanced last.
GROUP_RATE_WINDOW_MS = 1 * MINUTE_MS
GROUP_RATE_PARTITIONS_MAX = 20_000
# Groups that are processed in one iteration of the event loop for a report on the lag of all groups.
GROUPS_REPORTED_PER_CHUNK = 20
# Such reports that are computed at once; further ones are queued.
GROUP_REPORTS_AT_ONCE = 4
# HTTP pages about groups that are built at once. Each sends requests to the coordinators on other brokers.
GROUP_PAGES_AT_ONCE = 4
# Groups in one lag request to another broker, which in turn sends requests to leaders, and its time limit.
GROUP_REPORTS_PER_CHUNK = 20
PEER_REPORTS_MS_MAX = 4_500
# The same for log end offsets: partitions in one request, requests at once, the time limit of one request,
# and of all requests to one leader for one page.
LOG_POSITIONS_PER_CHUNK = 1_000
PEER_POSITIONS_AT_ONCE = 8
PEER_POSITION_MS_MAX = 1_500
PEER_POSITIONS_MS_MAX = 2 * SECOND_MS
# A broker that did not reply to such a request receives no further one for this long.
PEER_UNAVAILABLE_MS = 5 * SECOND_MS
# The age of the oldest unconsumed record is read from the log: this many reads at once, this many results
# kept, and for this long. Batches with more records, or that decompress to more bytes, are not opened for it.
RECORD_TIMES_READ_AT_ONCE = 16
RECORD_TIME_RECORDS_MAX = 10_000
RECORD_TIME_EXPANDED_BYTES_MAX = 4 * MIB
# Batches without records that are skipped on the way to one with records.
RECORD_TIME_BATCHES_MAX = 1_000
RECORD_TIMES_KEPT_MAX = 20_000
# How long one request waits for such ages. Ages that were not read in time are reported as unknown.
RECORD_TIMES_MS_MAX = 1 * SECOND_MS
RECORD_TIME_KEPT_MS = 1 * MINUTE_MS
# Offsets that are committed or deleted in one batch, which is one iteration of the event loop.
COMMITS_AT_ONCE = 1_000
TOMBSTONES_AT_ONCE = 1_000
# Content of one offset commit: about ten thousand partitions.
COMMIT_BYTES_MAX = 2 * MIB
# The metadata of one committed offset.
OFFSET_METADATA_BYTES_MAX = 4 * KIB
# Heartbeat intervals of members of the consumer protocol: while nothing changes, while partitions are
# reassigned, and at most, for groups so large that heartbeats would keep the broker busy.
CONSUMER_HEARTBEAT_MS = 1 * SECOND_MS
CONSUMER_HEARTBEAT_REBALANCING_MS = 200
CONSUMER_HEARTBEAT_MS_MAX = 5 * SECOND_MS
# The transactional id of a producer, which is in the key of all records about it. The ids of one shard.
TRANSACTIONAL_ID_BYTES_MAX = 1 * KIB
TRANSACTIONAL_IDS_PER_SHARD_MAX = 20_000
# An unused id is deleted after this time, and no sooner than the second one after its coordinator loaded it:
# a wall clock that is ahead must not delete all ids at once.
TRANSACTIONAL_ID_EXPIRATION_MS = 7 * DAY_MS
TRANSACTIONAL_ID_EXPIRY_PAUSE_MS = 1 * HOUR_MS
# The timeout of a transaction. Its partitions, which are one record, and those of all open ones of a shard.
TRANSACTION_TIMEOUT_MS_MAX = 15 * MINUTE_MS
TRANSACTION_PARTITIONS_MAX = 10_000
TRANSACTION_PARTITIONS_PER_SHARD_MAX = 500_000

# Requests ---------------------------------------------------------------------------------------

# The size announced by a client is compared with this before any memory is allocated for it.
REQUEST_BYTES_MAX = 100 * MIB
# The frame of any request starts with API key, version, correlation id and client id length.
REQUEST_BYTES_MIN = 8
FRAME_PREFIX_BYTES = 4
# One receive buffer for all connections of a loop: separate ones would cost 2,000 connections 512 MiB.
RECEIVE_BUFFER_BYTES = 256 * KIB
# While memory is short, reads are this small, so that little of them must be kept.
RECEIVE_BYTES_WHEN_SHORT = 16 * KIB
# A frame larger than the shared buffer gets this much memory at first, and the rest of the announced size
# only when that much has arrived: announcing 100 MiB and sending nothing gains little.
FRAME_FIRST_BYTES = 1 * MIB + 64 * KIB
# While memory is short a frame starts with this much, and grows to this multiple of what has arrived.
FRAME_STEP_BYTES = 4 * KIB
FRAME_STEP_GROWTH = 8
# While a request waits for memory, the connections that hold most of it for longest are closed, this many at
# a time, unless their request is younger than this or arrives at this rate.
MEMORY_RELIEF_MS = 100
MEMORY_RELIEF_PARTS = 8
MEMORY_GRACE_MS = 500
FRAME_BYTES_PER_SECOND_MIN = 1 * MIB
# Requests of one connection that wait for a reply; at this number the broker stops reading from it.
CONNECTION_REQUESTS_IN_FLIGHT_MAX = 128
# Rejections of one API in a row on one connection before its next request is delayed, and the longest delay
# after a rejection. Clients with a backoff wait at least as long by themselves.
REJECTIONS_BEFORE_PAUSE = 20
REJECTION_PAUSE_MS_MAX = 100
# Rejected requests of one connection per second, for any API. Tools that look up missing resources stay
# below; a client in a tight loop would cost half a core.
REJECTIONS_PER_SECOND = 2000
# Memory of all unfinished requests. Half is for frames beyond FRAME_FIRST_BYTES, so small ones never wait.
REQUEST_BYTES_IN_FLIGHT_MAX = 256 * MIB
# Memory of decoded requests that wait for their reply. One costs a fixed amount, and an amount for each byte
# (the largest that decoding can expand it to), or for each partition where only partitions wait.
DECODED_BYTES_MAX = 256 * MIB
DECODED_REQUEST_BYTES = 2 * KIB
DECODED_BYTES_PER_BYTE = 48
DECODED_PARTITION_BYTES = 512
# When all of that is used, requests that count as more than this wait. Smaller ones are processed, and a
# connection whose reply is then deferred is not read until memory is free.
DECODED_BYTES_WHEN_FULL = 16 * KIB
# Record batches of one produce request, appended in one iteration of the event loop: 10 to 20 us each.
PRODUCE_BATCHES_MAX = 10_000
# Invalid records that the reply to one produce request lists.
RECORDS_NAMED_MAX = 100
# How often connections are checked for stalled frames, slow readers and idleness.
CONNECTION_SWEEP_MS = 1 * SECOND_MS
# Rejected requests that are logged each second; the rest are only counted.
REJECTIONS_LOGGED_PER_SECOND_MAX = 10

# Replies ----------------------------------------------------------------------------------------

# Unsent reply bytes of one connection. Above the first limit no further request of it is read until they fall
# below the second. So a connection never holds more than the first limit and one reply beyond it.
REPLY_BYTES_PAUSE_AT = 1 * MIB
REPLY_BYTES_RESUME_AT = 256 * KIB
# Replies that are sent together are joined up to this size.
REPLY_BYTES_GATHERED_MAX = 64 * KIB
# Unsent reply bytes of all connections together.
REPLY_BYTES_TOTAL_MAX = 512 * MIB

# Connections ------------------------------------------------------------------------------------

CONNECTIONS_MAX = 10_000
CONNECTION_BACKLOG_MAX = 1_024
CONNECTION_IDLE_MS_MAX = 10 * MINUTE_MS
# From the first byte of a frame to its last. A slower peer is stalled or hostile.
FRAME_COMPLETION_MS_MAX = 30 * SECOND_MS
# How long a peer may leave its reply bytes unread.
SLOW_READER_MS_MAX = 30 * SECOND_MS
# How long a stopping broker waits for its last replies to be read.
LAST_REPLIES_MS_MAX = SECOND_MS // 2
TLS_HANDSHAKE_MS_MAX = 10 * SECOND_MS
# How often certificate files are checked for a replacement.
TLS_RELOAD_CHECK_MS = 5 * SECOND_MS
# How long a stopping broker waits for pending replies.
SHUTDOWN_MS_MAX = 10 * SECOND_MS

# Batches and records ----------------------------------------------------------------------------

# Kafka's default: a mebibyte of records, with the base offset and length in front of them.
BATCH_BYTES_MAX = 1 * MIB + 12
# The decompressed size of one batch, where the broker has to decode it (timestamps, keys, recompression).
DECOMPRESSED_BYTES_MAX = 64 * MIB
# Records of one batch that are validated one by one, where a topic requires it.
RECORDS_CHECKED_MAX = 50_000
# A batch beyond either of these (about 0.5 ms), or a compressed one, is validated by a worker thread.
VALIDATION_RECORDS_ON_LOOP_MAX = 200
VALIDATION_BYTES_ON_LOOP_MAX = 16 * KIB
# Batches that wait for validation, of all partitions, and the cost of one beside its own bytes; their
# requests are no longer held.
VALIDATION_BYTES_WAITING_MAX = 64 * MIB
VALIDATION_OVERHEAD_BYTES = 2 * KIB
VALIDATIONS_PER_PARTITION_MAX = 1_000
# The longest that a batch waits for validation, whatever timeout its producer set.
VALIDATION_WAIT_MS_MAX = 30 * SECOND_MS
# The window that zstd's highest level declares; memory behind it is only touched as far as it is used.
DECOMPRESSION_WINDOW_BYTES_MAX = 128 * MIB
# Batches that a producer may have in flight while a repeated one is still recognized.
PRODUCER_WINDOW_BATCHES = 5
# Beyond this number the oldest producers are evicted first.
PRODUCERS_PER_PARTITION_MAX = 5_000
# Producers of all partitions together; about 1.5 KiB each.
PRODUCERS_MAX = 100_000
# How often, at most, such evictions are logged.
PRODUCERS_EVICTED_LOGGED_MS = 1 * MINUTE_MS
PRODUCER_IDS_PER_BLOCK = 1_000
PRODUCER_EXPIRY_MS = 1 * DAY_MS
# Open transactions of one partition, and of all partitions: one more is rejected. Each keeps its producer.
TRANSACTIONS_OPEN_PER_PARTITION_MAX = 10_000
TRANSACTIONS_OPEN_MAX = 50_000
# Aborted transactions whose markers are in the log of one partition; 32 bytes each.
TRANSACTIONS_ABORTED_PER_PARTITION_MAX = 1_000_000
# Markers of one WriteTxnMarkers request: they are appended in one iteration of the event loop.
TRANSACTION_MARKERS_MAX = 10_000
# The longest that a coordinator's request waits until its markers are replicated.
TRANSACTION_MARKERS_WAIT_MS_MAX = 30 * SECOND_MS

# Fetching ---------------------------------------------------------------------------------------

# The size of one reply, whatever the client requested.
FETCH_BYTES_MAX = 55 * MIB
# All replies that are being read from disk at once.
FETCH_BYTES_TOTAL_MAX = 256 * MIB
FETCH_WAIT_MS_MAX = 5 * MINUTE_MS
FETCH_SESSIONS_MAX = 1_000
# Partitions in all fetch sessions together.
FETCH_SESSION_PARTITIONS_MAX = 200_000
# Partitions of sessionless fetches that are cached for all connections, to recognize a repeated request, and
# for one connection; about 650 bytes each, with its pre-encoded empty reply.
FETCH_REPEATS_PARTITIONS_MAX = 100_000
FETCH_REPEATS_PER_CONNECTION_MAX = 20_000
# Cost of a topic in that cache, as a number of partitions, beside its own partitions.
FETCH_REPEATS_TOPIC_PARTITIONS = 4
# A smaller fetch is decoded as fast as it is looked up.
FETCH_REPEATS_PARTITIONS_MIN = 16
# A session that fetched within this time is not evicted for a new one.
FETCH_SESSION_EVICTION_MS = 2 * MINUTE_MS

# Topics -----------------------------------------------------------------------------------------

PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_MAX = 100_000
# Topics created, deleted, grown or reconfigured by one request.
TOPICS_PER_REQUEST_MAX = 10_000
REPLICATION_FACTOR_MAX = SHORT_MAX

# Changes of the metadata that are queued; a further one waits for room.
METADATA_CHANGES_QUEUED_MAX = 1_000
# Decisions that are committed at once without the queue of changes; a further one waits.
METADATA_COMMITS_AT_ONCE_MAX = 32
# Tasks of a broker that commit ISR proposals, with one transaction each under way. Proposals that arrive
# meanwhile share a transaction.
ISR_SENDERS_MAX = 4
# Decisions of the controller before it checks the cluster again: a few transactions of etcd.
UPKEEP_DECISIONS_MAX = 1_000
# Conflicts after which the controller waits for the newer image and decides the rest of a transaction's
# decisions again. Finding one conflicting decision among those of a transaction takes eight.
UPKEEP_CONFLICTS_MAX = 32
# Partitions that the controller reassigns at once by itself, to make the cluster safer or more even.
REASSIGNMENTS_AT_ONCE = 20
# How often a change is decided again because another writer was faster.
METADATA_CONFLICTS_MAX = 100
# How often a change is retried because the store did not reply, and how long the broker waits until its own
# image contains what was committed.
METADATA_TRIES_MAX = 3
METADATA_REVISION_WAIT_MS_MAX = 10 * SECOND_MS
# How long a request waits for a controller. A cluster lacks one for moments only: another broker takes over.
METADATA_CONTROLLER_MS_MAX = 5 * SECOND_MS
# Pauses between attempts to reach an unavailable store; the longest pause between attempts to change it.
METADATA_UNAVAILABLE_PAUSE_MS = 250
METADATA_UNAVAILABLE_PAUSE_MS_MAX = 2 * SECOND_MS
# How long the broker waits for a newer image after a conflict for which the store reports no revision, and
# before it rejects a change because of an entry that the store has and its own image lacks.
METADATA_REVISION_WAIT_MS = 200
# The time limit of one etcd member for a reply, the time limit for trying the members in turn, and the pause
# after all of them have failed. A transaction gets longer: giving up leaves its outcome unknown.
ETCD_REQUEST_MS_MAX = 2 * SECOND_MS
ETCD_TRANSACTION_MS_MAX = 4 * SECOND_MS
ETCD_CALL_MS_MAX = 5 * SECOND_MS
ETCD_PAUSE_MS = 100
# Entries in one etcd reply when the whole store is read.
ETCD_PAGE_ENTRIES = 2_000
# HTTP connections to such a store: their number, the time to connect, the bytes sent at once, how long a
# watch may be silent before it is probed, and the longest line of one.
ENDPOINT_CONNECTIONS_MAX = 64
ENDPOINT_CONNECT_MS_MAX = 1 * SECOND_MS
ENDPOINT_PIECE_BYTES = 256 * KIB
ENDPOINT_SILENCE_MS_MAX = 2 * SECOND_MS
ENDPOINT_LINE_BYTES_MAX = 64 * MIB
# Events that a store in this process keeps for watchers that are behind.
METADATA_EVENTS_KEPT_MAX = 1_000

# Clusters ---------------------------------------------------------------------------------------

# Registered brokers. A decision about all of them compares each, and the term, in one transaction.
BROKERS_MAX = 100
# A broker is fenced when its session was not renewed for this long; how often the broker renews it.
BROKER_SESSION_MS = 5 * SECOND_MS
BROKER_KEEP_MS = 3 * SECOND_MS // 2
# The first and the longest pause between two attempts to join, and how long a start waits until the session
# of another process with the same id ends.
BROKER_JOIN_PAUSE_MS = 100
BROKER_JOIN_PAUSE_MS_MAX = 2 * SECOND_MS
BROKER_JOIN_MS_MAX = 2 * BROKER_SESSION_MS
# A session that was not renewed for this long may have expired: the broker checks with the other brokers.
STORE_SILENCE_MS_MAX = BROKER_KEEP_MS + 1 * SECOND_MS
PEER_LEASE_CHECK_PAUSE_MS = 500
PEER_LEASE_CHECK_MS_MAX = 1 * SECOND_MS
PEER_LEASE_REJECTIONS_MIN = 2
# Lost partitions that a broker lists one by one when it joins. More of them count as a lost disk.
LOST_PARTITIONS_NAMED_MAX = 10_000
# How long a start waits for admission, and a stop until other brokers lead its partitions.
BROKER_ADMISSION_MS_MAX = 20 * SECOND_MS
BROKER_DRAIN_MS_MAX = 20 * SECOND_MS
# How often the controller checks the cluster when nothing happens, and how often it balances it.
UPKEEP_MS = 1 * SECOND_MS
UPKEEP_IDLE_MS = 5 * SECOND_MS
# The pause between attempts to reconnect to a peer; a lost connection is how a dead broker is detected early.
PEER_PAUSE_MS = 20
PEER_PAUSE_MS_MAX = 1 * SECOND_MS
# Brokers check whether they reach each other: how often; how long a leader that a broker follows may be
# silent before the broker sends a probe, and the time limit of one; the failed probes in a row after which
# the broker reports the other one as unreachable, and how long probes must have succeeded before that one is
# elected again because it is preferred. A leader ignores reports of followers whose next fetch is late by
# less than the last limit.
PEER_CHECK_MS = 500
PEER_SILENCE_MS_MAX = 1 * SECOND_MS
PEER_PROBE_MS_MAX = 1 * SECOND_MS
PEER_PROBE_FAILURES_MIN = 2
PEER_REACHABLE_MS = 10 * SECOND_MS
FOLLOWER_SILENCE_MS_MAX = 2 * SECOND_MS
# Partitions that one request may reassign or elect leaders for, and how many of them share a transaction:
# each compares itself and its topic; all compare the term, the cluster-wide defaults and the elected brokers.
PARTITIONS_CHANGED_MAX = 10_000
PARTITION_CHANGES_AT_ONCE = 25
# Partitions that one step of `penstock cluster balance` reassigns.
BALANCE_MOVES_MAX = 100
# A throttled replica is checked again after this long at the latest: the rate may change.
REPLICA_THROTTLE_PAUSE_MS_MAX = 1 * SECOND_MS
# A follower that has not caught up for this long leaves the ISR; how often that is checked.
REPLICA_LAG_MS_MAX = 30 * SECOND_MS
REPLICA_LAG_CHECK_MS = 500
# A damaged copy is replaced at once the first time. Before each further replacement of the same partition one
# process waits this long, and twice as long each time, up to the second limit.
REPLACEMENT_PAUSE_MS = 1 * MINUTE_MS
REPLACEMENT_PAUSE_MS_MAX = 1 * HOUR_MS
# Replies that a leader sends only after it confirmed its leadership: how many pending confirmations are kept
# and for how long, and how many partitions are checked in the metadata store at a time.
LEADERSHIP_CLAIMS_MAX = 1_000
LEADERSHIP_CLAIM_MS_MAX = 2 * SECOND_MS
LEADERSHIP_CHECKS_MAX = 8
# A follower's fetch: its wait at the leader, the follower's timeout, and the bytes that it returns.
REPLICA_WAIT_MS = 500
REPLICA_IDLE_WAIT_MS = 2 * SECOND_MS
REPLICA_FETCH_MS_MAX = 10 * SECOND_MS
REPLICA_PARTITION_BYTES = 1 * MIB
REPLICA_FETCH_BYTES_MAX = 10 * MIB
# A leader reads a partition again that a follower has read to its end, without any change, after this long.
REPLICA_RECHECK_MS = 100
# The pause before an unreachable leader, or a partition that it cannot serve, is retried.
REPLICA_PAUSE_MS = 50
REPLICA_PAUSE_MS_MAX = 1 * SECOND_MS
# Where a follower fetches more partitions than this from one leader, partitions without records for this long
# move to a fetch session of their own, until they have returned records this often.
REPLICA_TOGETHER_MAX = 64
REPLICA_IDLE_MS = 5 * SECOND_MS
REPLICA_BUSY_ANSWERS = 5
# A pending fetch is cancelled for newly followed partitions, but not more often than this.
REPLICA_INTERRUPT_MS = 100

# The log ----------------------------------------------------------------------------------------

SEGMENT_BYTES_DEFAULT = 1 * GIB
SEGMENT_BYTES_MIN = 1 * MIB
# Offsets within a segment are stored relative to its first, in four bytes.
SEGMENT_OFFSETS_MAX = INT_MAX
INDEX_INTERVAL_BYTES = 4 * KIB
# The maximum for any topic's setting: how far a read walks from header to header, on the event loop too.
INDEX_INTERVAL_BYTES_MAX = 64 * KIB
INDEX_BYTES_MAX = 10 * MIB
# Bytes read at once when a log is opened after a crash.
RECOVERY_READ_BYTES = 1 * MIB
# Batch positions each log remembers, so that a fetch which continues where another ended need not search.
LOG_BATCH_STARTS_KEPT = 32
# Indexes of sealed segments that are cached for reads of old data, over all partitions.
INDEX_BYTES_KEPT_MAX = 64 * MIB
RETENTION_CHECK_MS = 5 * MINUTE_MS
FILE_DELETE_DELAY_MS = 1 * MINUTE_MS
# Disk space held in reserve: deleting topics and records, and starting, must work when the disk is full.
DISK_RESERVE_BYTES = 1 * MIB
# The reserve is only set aside while more than this is free. A damaged copy of a partition is only kept for
# operators if this much stays free beside the copy that replaces it.
DISK_RESERVE_FREE_BYTES = 4 * DISK_RESERVE_BYTES
# How often a full disk is logged.
DISK_FULL_LOGGED_MS = 30 * SECOND_MS
DISK_RESERVE_CHECK_MS = 2 * SECOND_MS
# A checkpoint is due after this many bytes or this much time: a restart scans no more than that.
CHECKPOINT_BYTES = 64 * MIB
CHECKPOINT_MS = 5 * SECOND_MS
# Partitions whose checkpoint is planned in one iteration of the event loop.
CHECKPOINT_PARTITIONS_AT_ONCE = 20
# Partitions whose log start offset DeleteRecords stores together. In between it checks the client's timeout.
DELETE_RECORDS_PARTITIONS_AT_ONCE = 20
# The pause before a log start offset that found no disk space is stored again; and how long a fetch waits at
# the leader while the follower has a new log start offset to report that is about to be stored.
LOG_START_PAUSE_MS = 1 * SECOND_MS
LOG_START_FETCH_WAIT_MS = 20
# Segment files that are open at once, where the process may open more than twice as many.
OPEN_FILES_MAX = 50_000
# A flush of more files than this is one syncfs instead of a sync for each.
SYNC_FILES_BEFORE_SYNCFS = 4
# Group commit: how long a flush is delayed for appends that are expected, how many appends are not worth a
# delay, and how many flushes start at once after delays in vain.
GROUP_COMMIT_DELAY_MS_MAX = 1
GROUP_COMMIT_APPENDS_MAX = 8
FLUSHES_WITHOUT_DELAY_MAX = 64
# How often the storage checks what is due: checkpoints, flushes, retention, timeouts.
STORAGE_TICK_MS = 250
# Threads that read data that is not in memory.
COLD_READ_THREADS = 4
# A copy whose files could not be read this often within this time is given up, where other replicas exist. A
# device may retry a sector for many seconds. Failures closer together than the third limit count as one.
READ_FAILURES_MAX = 3
READ_FAILURES_MS = 1 * MINUTE_MS
READ_FAILURES_APART_MS = SECOND_MS // 2
# Lookups by timestamp have a thread of their own, which alternates between them. One step of a lookup passes
# this many batch headers (about 3 ms) and then examines the records of one batch, yielding after this many.
LOOKUP_HEADERS_PER_STEP = 1_000
LOOKUP_RECORDS_PER_CHUNK = 500
# Records and bytes that one lookup of one partition decodes, in about a third of a second; beyond that, batch
# headers determine the result. No uncompressed batch of the default size has as many records.
LOOKUP_RECORDS_MAX = 200_000
LOOKUP_EXPANDED_BYTES_MAX = DECOMPRESSED_BYTES_MAX
# How long a request waits for its lookups, unless it sets a shorter timeout.
LOOKUP_MS_MAX = 30 * SECOND_MS
# How often compacted topics are checked, and the memory that a cleaning may use for keys.
CLEANER_BACKOFF_MS = 15 * SECOND_MS
CLEANER_MEMORY_BYTES = 128 * MIB
CLEANER_MEMORY_BYTES_MIN = 1 * MIB
# One byte in this many of it marks which records are the last of their key.
CLEANER_NOTES_SHARE = 8
CLEANER_READ_BYTES = 1 * MIB
CLEANER_WRITE_BYTES = 1 * MIB
# The cleaner syncs its output every so many bytes: one sync of a gigabyte would delay all others.
CLEANER_SYNC_BYTES = 16 * MIB
# Segments that one cleaned segment may replace: the swap happens in one iteration of the event loop.
CLEANER_GROUP_SEGMENTS_MAX = 32
# The cleaner process ends when it was idle for this long.
CLEANER_IDLE_MS_MAX = 1 * MINUTE_MS
CLEANER_MESSAGE_BYTES_MAX = 16 * MIB

# HTTP -------------------------------------------------------------------------------------------

HTTP_REQUEST_BYTES_MAX = 16 * MIB
# The file with the tokens of users who may change something: about 600 tokens.
HTTP_TOKENS_FILE_BYTES_MAX = 64 * KIB
# Groups that one reply lists; its continuation token requests the next ones.
HTTP_GROUPS_LISTED_MAX = 1_000
HTTP_GROUPS_LISTED_DEFAULT = 100
# Partitions of each kind that the cluster page lists.
HTTP_PARTITIONS_LISTED_MAX = 1_000
# Partitions of groups, and topics, that have their own series among the metrics.
METRICS_GROUP_PARTITIONS_MAX = 5_000
METRICS_TOPICS_MAX = 1_000
# Partitions that are summed up, and lines of metrics that are written, in one iteration of the event loop.
METRICS_PARTITIONS_PER_CHUNK = 1_000
METRICS_LINES_PER_CHUNK = 500

# How the bounds depend on each other ------------------------------------------------------------

# A session survives two lost attempts to renew it.
assert 3 * BROKER_KEEP_MS <= BROKER_SESSION_MS < BROKER_JOIN_MS_MAX
assert REPLICA_RECHECK_MS < REPLICA_WAIT_MS < REPLICA_IDLE_WAIT_MS < REPLICA_FETCH_MS_MAX < REPLICA_LAG_MS_MAX
assert BATCH_BYTES_MAX <= REPLICA_FETCH_BYTES_MAX
# A leader under load is not probed all the time, and a follower is reported before its leader counts the last
# fetch before the cut as recent.
assert REPLICA_WAIT_MS < PEER_SILENCE_MS_MAX < FOLLOWER_SILENCE_MS_MAX
assert FOLLOWER_SILENCE_MS_MAX < PEER_SILENCE_MS_MAX + PEER_PROBE_FAILURES_MIN * PEER_PROBE_MS_MAX

# This many failures fit into the time that they are counted in, also those of a coordinator that reloads.
assert READ_FAILURES_MAX * READ_FAILURES_APART_MS < READ_FAILURES_MS
assert READ_FAILURES_APART_MS < COORDINATOR_RELOAD_MS
assert (2 ** (READ_FAILURES_MAX - 1) - 1) * COORDINATOR_RELOAD_MS < READ_FAILURES_MS

# A batch that fits no request, no reply or no segment could never be written or read.
assert BATCH_BYTES_MAX < REQUEST_BYTES_MAX
assert BATCH_BYTES_MAX <= FETCH_BYTES_MAX
assert BATCH_BYTES_MAX <= SEGMENT_BYTES_DEFAULT
assert SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT <= INT_MAX
# A batch of the default size is received without growing its frame, the request's header included.
assert BATCH_BYTES_MAX + TOPIC_NAME_CHARACTERS_MAX < FRAME_FIRST_BYTES
assert RECEIVE_BYTES_WHEN_SHORT < RECEIVE_BUFFER_BYTES < FRAME_FIRST_BYTES < REQUEST_BYTES_MAX
# The largest request must fit the memory that all requests share, or it could never be received; twice, or
# one client sending large requests would block all others.
assert 2 * REQUEST_BYTES_MAX <= REQUEST_BYTES_IN_FLIGHT_MAX
# A frame that starts during a shortage takes little of what is left, and every connection may start one.
assert FRAME_STEP_BYTES < RECEIVE_BYTES_WHEN_SHORT
assert CONNECTIONS_MAX * FRAME_STEP_BYTES < REQUEST_BYTES_IN_FLIGHT_MAX // 2
assert MEMORY_RELIEF_MS < MEMORY_GRACE_MS < FRAME_COMPLETION_MS_MAX
# Reading resumes below where it paused, and a whole fetch reply may be queued beyond that.
assert REPLY_BYTES_GATHERED_MAX < REPLY_BYTES_RESUME_AT < REPLY_BYTES_PAUSE_AT
assert REPLY_BYTES_PAUSE_AT + FETCH_BYTES_MAX <= REPLY_BYTES_TOTAL_MAX
assert FETCH_BYTES_MAX <= FETCH_BYTES_TOTAL_MAX <= REPLY_BYTES_TOTAL_MAX
# A stalled peer is disconnected for stalling, long before it counts as idle.
assert FRAME_COMPLETION_MS_MAX < CONNECTION_IDLE_MS_MAX
assert SLOW_READER_MS_MAX < CONNECTION_IDLE_MS_MAX
# A fetch that waits as long as it may is not an idle connection.
assert FETCH_WAIT_MS_MAX < CONNECTION_IDLE_MS_MAX
# A batch of the default size may be decompressed for validation.
assert BATCH_BYTES_MAX < DECOMPRESSED_BYTES_MAX
# One produce request may write to every partition of the largest topic.
assert PRODUCE_BATCHES_MAX >= PARTITIONS_PER_TOPIC_MAX
# The requests that are processed although the memory is used up take at most that much again.
assert CONNECTIONS_MAX * DECODED_BYTES_WHEN_FULL <= DECODED_BYTES_MAX
# Requests that wait for validation, and count only as a request, leave memory for others.
assert (
    VALIDATION_BYTES_WAITING_MAX // VALIDATION_OVERHEAD_BYTES * DECODED_REQUEST_BYTES < DECODED_BYTES_MAX // 2
)
# Kafka's clients keep up to five batches in flight and expect each repeated one to be recognized.
assert PRODUCER_WINDOW_BATCHES >= 5
# The largest topic still fits the cluster, and one fetch session of all its partitions.
assert PARTITIONS_PER_TOPIC_MAX <= PARTITIONS_MAX
assert PARTITIONS_PER_TOPIC_MAX <= FETCH_SESSION_PARTITIONS_MAX
# The folder of a partition is named after its topic and its index.
assert TOPIC_NAME_CHARACTERS_MAX + len(f"-{PARTITIONS_PER_TOPIC_MAX - 1}") <= FILE_NAME_BYTES_MAX
# A commit or a group's record is far smaller than the limit of a command.
assert 2 * max(COMMIT_BYTES_MAX, GROUP_METADATA_BYTES_MAX) < STATE_COMMAND_BYTES_MAX
# Whatever is written for one flush fits the space that a coordinator considers enough, and no batch has more
# records than the log accepts.
assert max(COMMIT_BYTES_MAX, GROUP_METADATA_BYTES_MAX, STATE_BYTES_PER_FLUSH) < COORDINATOR_ROOM_BYTES
assert 2 * STATE_RECORDS_PER_FLUSH < RECORDS_CHECKED_MAX
# The chunks of long commands, and the timers that write a record each, fit one iteration of the event loop.
assert max(COMMITS_AT_ONCE, TOMBSTONES_AT_ONCE, TIMERS_PER_CHUNK) <= STATE_RECORDS_PER_CHUNK
# The largest transaction covers any topic. With a topic for each partition, its record fits a batch twice.
assert PARTITIONS_PER_TOPIC_MAX <= TRANSACTION_PARTITIONS_MAX <= TRANSACTION_PARTITIONS_PER_SHARD_MAX
assert 2 * TRANSACTION_PARTITIONS_MAX * (TOPIC_NAME_CHARACTERS_MAX + 16) < STATE_COMMAND_BYTES_MAX
# The long replies that are built at once leave memory for fetches.
assert GROUP_REPLIES_AT_ONCE * GROUP_REPLY_BYTES_MAX < REPLY_BYTES_TOTAL_MAX
# The largest topic fits the cache, and leaves room for others.
assert PARTITIONS_PER_TOPIC_MAX < FETCH_REPEATS_PER_CONNECTION_MAX < FETCH_REPEATS_PARTITIONS_MAX // 2
# Otherwise the index of a single segment could not be cached while it is read.
assert 2 * INDEX_BYTES_MAX <= INDEX_BYTES_KEPT_MAX
# Otherwise a segment could be read only by scanning it from its start.
assert INDEX_INTERVAL_BYTES <= INDEX_INTERVAL_BYTES_MAX < SEGMENT_BYTES_MIN
# The ages read for one group's metrics need not be read again for the next request.
assert METRICS_GROUP_PARTITIONS_MAX <= RECORD_TIMES_KEPT_MAX
assert HTTP_GROUPS_LISTED_DEFAULT <= HTTP_GROUPS_LISTED_MAX
# A coordinator has the leaders' replies, or has given up on one of them, before its own reply is overdue.
assert PEER_POSITIONS_MS_MAX * 2 < PEER_REPORTS_MS_MAX
# A silent leader is detected before the time for all its requests is over, and gets no further request.
assert PEER_POSITION_MS_MAX < PEER_POSITIONS_MS_MAX < PEER_UNAVAILABLE_MS
# A leader with a slow disk replies in time, without ages.
assert RECORD_TIMES_MS_MAX < PEER_POSITION_MS_MAX
# One entry of twelve bytes, the larger of the two kinds, for each interval of a full segment by default.
assert SEGMENT_BYTES_DEFAULT // INDEX_INTERVAL_BYTES * 12 <= INDEX_BYTES_MAX
# A connection paused after a rejection holds the waiting request, and must not be closed for that.
assert REJECTION_PAUSE_MS_MAX < MEMORY_GRACE_MS
