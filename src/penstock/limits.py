"""Every bound in the system, and how the bounds depend on each other.

Strategy: a bound is a constant here, one to a line, with its unit last in the name. Where an
operator may choose, the constant is the default of a setting in `config/`; where nobody may, the
code reads it from here. Whatever one bound assumes about another is asserted at the end of the
file, so that a change which breaks an assumption stops the process at import.

Rule 1: nothing a client sends may make the broker hold more than one of these allows.
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
# Of a file or folder: what Linux and macOS allow on their usual file systems.
FILE_NAME_BYTES_MAX = 255
# A setting's value must fit Kafka's short string.
CONFIG_VALUE_BYTES_MAX = SHORT_MAX
# Broker settings that this release does not know are kept for tools that set them, but not without end:
# so many of one broker, or of the defaults of all, with so long names, and so many bytes of all together.
UNKNOWN_SETTINGS_MAX = 100
UNKNOWN_SETTING_NAME_BYTES_MAX = 249
UNKNOWN_SETTINGS_BYTES_MAX = 64 * KIB

# Coordinators -----------------------------------------------------------------------------------

# Changes of state that gathered during a flush are appended in batches of about this size.
STATE_BATCH_BYTES_MAX = 512 * KIB
# All that one command may change: it is one batch, or it would not be all or nothing.
STATE_COMMAND_BYTES_MAX = 16 * MIB
# So much of what gathered is written for one flush; a few milliseconds of encoding.
STATE_RECORDS_PER_FLUSH = 2_000
STATE_BYTES_PER_FLUSH = 4 * MIB
# Records that long commands and timers make in one turn of the loop, all together: about 20 us each,
# from the decision to the file. What a group takes beside its records is counted as so many of them.
STATE_RECORDS_PER_TURN = 1_000
GROUP_TURN_RECORDS = 5
# Timers that are looked at in one turn.
TIMERS_PER_TURN = 1_000
# A coordinator's log is read in pieces of this size, and after so many records others get a turn.
LOAD_BYTES_AT_ONCE = 1 * MIB
LOAD_RECORDS_PER_TURN = 200
# After an append failed, the state is loaded again no sooner than this; if that fails, after twice as
# long each time, up to the second.
COORDINATOR_RELOAD_MS = 1 * SECOND_MS
COORDINATOR_RELOAD_MS_MAX = 1 * MINUTE_MS
# While too few replicas are in sync nothing of a coordinator expires; how often it looks again.
TOO_FEW_PAUSE_MS = 1 * SECOND_MS
# After the disk was full, a coordinator looks this often whether so much is free again, or twice what
# there was no room for. If that was no room after all, it looks half as often each time.
COORDINATOR_ROOM_CHECK_MS = 1 * SECOND_MS
COORDINATOR_ROOM_CHECK_MS_MAX = 30 * SECOND_MS
COORDINATOR_ROOM_BYTES = 8 * MIB
# Records of a coordinator's log that cannot be read, and are told of one by one.
UNREADABLE_RECORDS_TOLD_MAX = 20
# What is remembered of all groups together: members, offsets, notes. Newcomers are refused beyond it.
GROUP_STATE_BYTES_MAX = 512 * MIB
# One reply about groups, and how many long ones are made at once.
GROUP_REPLY_BYTES_MAX = 32 * MIB
GROUP_REPLIES_AT_ONCE = 4
# Committed offsets that are put into a reply in one turn of the loop.
OFFSETS_PER_TURN = 2_000
# What the members of one group tell and are told, all together: it is written as one record.
GROUP_METADATA_BYTES_MAX = 2 * MIB
# The name of a group, which is in every one of its records.
GROUP_ID_BYTES_MAX = 1 * KIB
# Groups that have settings of their own: they are kept in memory, whether or not the group is there.
GROUPS_WITH_SETTINGS_MAX = 10_000
# Members of one group, unless the operator says otherwise; Kafka sets no limit to classic groups.
GROUP_MEMBERS_MAX = 10_000
# Offsets that are looked at in one turn of the loop, to forget those whose time is up.
OFFSETS_LOOKED_PER_TURN = 5_000
# How fast groups read is measured over this long, for so many partitions that moved last.
GROUP_RATE_WINDOW_MS = 1 * MINUTE_MS
GROUP_RATE_PARTITIONS_MAX = 20_000
# Groups that are looked at in one turn of the loop when somebody asks how far all of them have come.
GROUPS_REPORTED_PER_TURN = 20
# Such questions that are answered at once; others wait their turn.
GROUP_REPORTS_AT_ONCE = 4
# Pages about groups that are made at once, each of which asks the coordinators among the other brokers.
GROUP_PAGES_AT_ONCE = 4
# What another broker is asked in one question about groups, and how long it may take. It asks leaders itself.
GROUP_REPORTS_PER_QUESTION = 20
PEER_REPORTS_MS_MAX = 4_500
# The same for the ends of logs: so many partitions in a question, so many questions at once, so long for one
# and so long for all that one leader is asked for one page.
LOG_POSITIONS_PER_QUESTION = 1_000
PEER_POSITIONS_AT_ONCE = 8
PEER_POSITION_MS_MAX = 1_500
PEER_POSITIONS_MS_MAX = 2 * SECOND_MS
# A broker that did not answer such a question is not asked again for so long.
PEER_UNAVAILABLE_MS = 5 * SECOND_MS
# The age of a record that waits is read from the log: so many at once, so many kept, for so long.
# Batches beyond so many records, or that expand to more, are not opened for it.
RECORD_TIMES_READ_AT_ONCE = 16
RECORD_TIME_RECORDS_MAX = 10_000
RECORD_TIME_EXPANDED_BYTES_MAX = 4 * MIB
# Batches without records that are passed on the way to one with some.
RECORD_TIME_BATCHES_MAX = 1_000
RECORD_TIMES_KEPT_MAX = 20_000
# How long one question waits for such ages. Those that were not read in time are not known.
RECORD_TIMES_MS_MAX = 1 * SECOND_MS
RECORD_TIME_KEPT_MS = 1 * MINUTE_MS
# Offsets that are kept or forgotten in one batch, which is one turn of the loop.
COMMITS_AT_ONCE = 1_000
TOMBSTONES_AT_ONCE = 1_000
# All that one commit may say: about ten thousand partitions.
COMMIT_BYTES_MAX = 2 * MIB
# A note beside a committed offset.
OFFSET_METADATA_BYTES_MAX = 4 * KIB
# How often members of the new protocol report: while nothing changes, while partitions change hands,
# and at the most for groups so large that heartbeats would keep the broker busy.
CONSUMER_HEARTBEAT_MS = 1 * SECOND_MS
CONSUMER_HEARTBEAT_REBALANCING_MS = 200
CONSUMER_HEARTBEAT_MS_MAX = 5 * SECOND_MS

# Requests ---------------------------------------------------------------------------------------

# The size a client announces is compared with this before a byte is set aside for it.
REQUEST_BYTES_MAX = 100 * MIB
# The frame of any request starts with key, version, correlation id and client id length.
REQUEST_BYTES_MIN = 8
FRAME_PREFIX_BYTES = 4
# One buffer receives for all connections of a loop: one each would cost 2,000 of them 512 MiB.
RECEIVE_BUFFER_BYTES = 256 * KIB
# While memory is short, reads are this small, so that what must be kept of them is little.
RECEIVE_BYTES_WHEN_SHORT = 16 * KIB
# A frame larger than the shared buffer is given this much at first, and the rest of what it
# announced only when that much has come: announcing 100 MiB and sending nothing gains little.
FRAME_FIRST_BYTES = 1 * MIB + 64 * KIB
# While memory is short a frame begins with this much, and gets so many times what has come.
FRAME_STEP_BYTES = 4 * KIB
FRAME_STEP_GROWTH = 8
# While somebody waits for memory, who holds most of it for longest is ended, so many at a time,
# unless the request is younger than this or comes at this rate.
MEMORY_RELIEF_MS = 100
MEMORY_RELIEF_PARTS = 8
MEMORY_GRACE_MS = 500
FRAME_BYTES_PER_SECOND_MIN = 1 * MIB
# Requests of one connection that wait for an answer; reading pauses at this number.
CONNECTION_REQUESTS_IN_FLIGHT_MAX = 128
# Rejections of one API in a row on one connection before its next request has to wait, and the longest
# wait after a rejection. Clients with a backoff wait at least as long by themselves.
REJECTIONS_BEFORE_PAUSE = 20
REJECTION_PAUSE_MS_MAX = 100
# Rejected requests of one connection in a second, whatever they ask for. Tools that look for things which
# are not there stay below; clients in a loop would cost half a core.
REJECTIONS_PER_SECOND = 2000
# Bytes kept for all unfinished requests. Half of it is for frames beyond FRAME_FIRST_BYTES, so that
# large requests never stop small ones.
REQUEST_BYTES_IN_FLIGHT_MAX = 256 * MIB
# Memory of decoded requests that wait for their answer, and what one is counted as: so much, and so
# much for each of its bytes (the worst that can be made of them), or for each partition where only
# partitions wait.
DECODED_BYTES_MAX = 256 * MIB
DECODED_REQUEST_BYTES = 2 * KIB
DECODED_BYTES_PER_BYTE = 48
DECODED_PARTITION_BYTES = 512
# When all of that is used, requests that are counted as more than this wait; the others are looked
# at, and a connection whose answer is then put off is not read until there is room.
DECODED_BYTES_WHEN_FULL = 16 * KIB
# Record batches of one produce request: they are appended in one turn of the loop, 10 to 20 us each.
PRODUCE_BATCHES_MAX = 10_000
# Records that the refusals of one produce request name.
RECORDS_NAMED_MAX = 100
# How often connections are looked at for stalled frames, slow readers and idleness.
CONNECTION_SWEEP_MS = 1 * SECOND_MS
# Bad requests that are logged each second; the rest are only counted.
REJECTIONS_LOGGED_PER_SECOND_MAX = 10

# Replies ----------------------------------------------------------------------------------------

# Unsent reply bytes of one connection. Above the first, no further request of it is read until they
# fall below the second. So it never holds more than the first and one reply beyond it.
REPLY_BYTES_PAUSE_AT = 1 * MIB
REPLY_BYTES_RESUME_AT = 256 * KIB
# Replies that leave together are gathered up to this size.
REPLY_BYTES_GATHERED_MAX = 64 * KIB
# Unsent reply bytes of all connections together.
REPLY_BYTES_TOTAL_MAX = 512 * MIB

# Connections ------------------------------------------------------------------------------------

CONNECTIONS_MAX = 10_000
CONNECTION_BACKLOG_MAX = 1_024
CONNECTION_IDLE_MS_MAX = 10 * MINUTE_MS
# From the first byte of a frame to its last. Slower than this is a stalled or hostile peer.
FRAME_COMPLETION_MS_MAX = 30 * SECOND_MS
# How long a peer may leave its reply bytes untaken.
SLOW_READER_MS_MAX = 30 * SECOND_MS
# And how long a broker that stops waits for that.
LAST_REPLIES_MS_MAX = SECOND_MS // 2
TLS_HANDSHAKE_MS_MAX = 10 * SECOND_MS
# How often certificate files are looked at for a replacement.
TLS_RELOAD_CHECK_MS = 5 * SECOND_MS
# How long a stopping broker waits for answers that are under way.
SHUTDOWN_MS_MAX = 10 * SECOND_MS

# Batches and records ----------------------------------------------------------------------------

# Kafka's default: a mebibyte of records and the offset and length in front of them.
BATCH_BYTES_MAX = 1 * MIB + 12
# What one batch may become when it has to be looked into (times, keys, recompression).
DECOMPRESSED_BYTES_MAX = 64 * MIB
# Records of one batch that are looked at one by one, where a topic asks for it.
RECORDS_CHECKED_MAX = 50_000
# A batch beyond either of these, or a compressed one, is looked into by a worker thread: these many
# records take about half a millisecond.
INSPECTED_RECORDS_ON_LOOP_MAX = 200
INSPECTED_BYTES_ON_LOOP_MAX = 16 * KIB
# Batches that wait to be looked into, of all partitions, and what one is counted as beside its own
# bytes; their requests are no longer held.
INSPECTED_BYTES_WAITING_MAX = 64 * MIB
INSPECTION_BYTES = 2 * KIB
INSPECTIONS_PER_PARTITION_MAX = 1_000
# How long a batch waits for its turn at most, whatever its producer asked for.
INSPECTION_WAIT_MS_MAX = 30 * SECOND_MS
# What zstd's highest level declares; the memory behind it is only touched as far as it is used.
DECOMPRESSION_WINDOW_BYTES_MAX = 128 * MIB
# A producer may have this many batches in flight and still be recognised when it repeats one.
PRODUCER_WINDOW_BATCHES = 5
# The oldest are forgotten first beyond this number.
PRODUCERS_PER_PARTITION_MAX = 5_000
# Of all partitions together; about 1.5 KiB each.
PRODUCERS_MAX = 100_000
# How often it is said at most that producers were forgotten because of that.
PRODUCERS_EVICTED_LOGGED_MS = 1 * MINUTE_MS
PRODUCER_IDS_PER_BLOCK = 1_000
PRODUCER_EXPIRY_MS = 1 * DAY_MS

# Fetching ---------------------------------------------------------------------------------------

# One reply, whatever the client asked for.
FETCH_BYTES_MAX = 55 * MIB
# All replies that are being read from the device at once.
FETCH_BYTES_TOTAL_MAX = 256 * MIB
FETCH_WAIT_MS_MAX = 5 * MINUTE_MS
FETCH_SESSIONS_MAX = 1_000
# Partitions remembered by all sessions together.
FETCH_SESSION_PARTITIONS_MAX = 200_000
# Partitions of sessionless fetches that are remembered by all connections, to know them when they are
# fetched again, and by one of them; about 500 bytes each.
FETCH_REPEATS_PARTITIONS_MAX = 100_000
FETCH_REPEATS_PER_CONNECTION_MAX = 20_000
# What a topic among them is counted as, beside its partitions.
FETCH_REPEATS_TOPIC_PARTITIONS = 4
# A smaller fetch is decoded in as little time.
FETCH_REPEATS_PARTITIONS_MIN = 16
# A session that fetched within this time is not evicted for a new one.
FETCH_SESSION_EVICTION_MS = 2 * MINUTE_MS

# Topics -----------------------------------------------------------------------------------------

PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_MAX = 100_000
# Topics created, deleted, grown or reconfigured by one request.
TOPICS_PER_REQUEST_MAX = 10_000
REPLICATION_FACTOR_MAX = SHORT_MAX

# Changes of the metadata that wait their turn; the next one waits for room.
METADATA_CHANGES_QUEUED_MAX = 1_000
# Proposals that are with the store at once; the next one waits.
METADATA_PROPOSALS_MAX = 32
# Transactions about in-sync sets that a leader has under way. What comes meanwhile goes together.
IN_SYNC_SENDERS_MAX = 4
# What the controller does before it looks at the cluster again: a few transactions of etcd.
UPKEEP_DECISIONS_MAX = 1_000
# Conflicts upon which it learns the news and decides the rest of a transaction's decisions anew. To find one
# decision that conflicts among those of a transaction takes eight.
UPKEEP_CONFLICTS_MAX = 32
# Partitions that it moves at once by itself, to make the cluster safer or more even.
REASSIGNMENTS_AT_ONCE = 20
# How often a change is decided again because somebody else was faster.
METADATA_CONFLICTS_MAX = 100
# How often a change is tried again because the store did not answer, and for how long it is waited
# until this broker has seen what was committed.
METADATA_TRIES_MAX = 3
METADATA_REVISION_WAIT_MS_MAX = 10 * SECOND_MS
# How long a request waits for a controller. There is none for moments only: another takes over.
METADATA_CONTROLLER_MS_MAX = 5 * SECOND_MS
# Between two attempts to reach a store that is away; the longest one between two to change something there.
METADATA_UNAVAILABLE_PAUSE_MS = 250
METADATA_UNAVAILABLE_PAUSE_MS_MAX = 2 * SECOND_MS
# How long a decision that met a conflict waits for the news, where the store cannot say which, and one that
# would be refused for what the store has and this broker has not seen.
METADATA_REVISION_WAIT_MS = 200
# How long one member of etcd may take for an answer, how long the members are asked in turn, and the
# pause when all of them have been. A transaction is waited for longer: to give up is to know nothing.
ETCD_QUESTION_MS_MAX = 2 * SECOND_MS
ETCD_TRANSACTION_MS_MAX = 4 * SECOND_MS
ETCD_PATIENCE_MS_MAX = 5 * SECOND_MS
ETCD_PAUSE_MS = 100
# Entries in one answer of etcd when everything is read.
ETCD_PAGE_ENTRIES = 2_000
# Of the way to such a store: connections, the time to make one, what is sent in one go, how long a
# watch is silent before it is looked into, and the longest line of one.
ENDPOINT_CONNECTIONS_MAX = 64
ENDPOINT_CONNECT_MS_MAX = 1 * SECOND_MS
ENDPOINT_PIECE_BYTES = 256 * KIB
ENDPOINT_SILENCE_MS_MAX = 2 * SECOND_MS
ENDPOINT_LINE_BYTES_MAX = 64 * MIB
# Events that a store in this process keeps for watchers that are behind.
METADATA_EVENTS_KEPT_MAX = 1_000

# Clusters ---------------------------------------------------------------------------------------

# Brokers that are registered. A decision about all of them compares each, and the term, in one transaction.
BROKERS_MAX = 100
# A broker that is silent for so long is gone. It says that it is there this often.
BROKER_SESSION_MS = 5 * SECOND_MS
BROKER_KEEP_MS = 3 * SECOND_MS // 2
# Between two attempts to join, the longest such pause, and how long a start waits until another process
# with the same id is gone.
BROKER_JOIN_PAUSE_MS = 100
BROKER_JOIN_PAUSE_MS_MAX = 2 * SECOND_MS
BROKER_JOIN_MS_MAX = 2 * BROKER_SESSION_MS
# A session that was not kept for so long may be over: the other brokers are asked.
STORE_SILENCE_MS_MAX = BROKER_KEEP_MS + 1 * SECOND_MS
PEER_LEASE_CHECK_PAUSE_MS = 500
PEER_LEASE_CHECK_MS_MAX = 1 * SECOND_MS
PEER_LEASE_REJECTIONS_MIN = 2
# Of partitions that a broker has lost, as many are named one by one when it joins. More count as a lost disk.
LOST_PARTITIONS_NAMED_MAX = 10_000
# How long a start waits to be admitted, and a stop until others lead what it led.
BROKER_ADMISSION_MS_MAX = 20 * SECOND_MS
BROKER_DRAIN_MS_MAX = 20 * SECOND_MS
# How often the controller looks at the cluster when nothing happens, and how often it evens it out.
UPKEEP_MS = 1 * SECOND_MS
UPKEEP_IDLE_MS = 5 * SECOND_MS
# Of the connection by which it notices that a broker is gone: the pause before another attempt.
PEER_PAUSE_MS = 20
PEER_PAUSE_MS_MAX = 1 * SECOND_MS
# Partitions that one request may move or elect leaders for, and how many of them share a transaction: each
# compares itself and its topic, all together the term, the default of the cluster and who is elected.
PARTITIONS_CHANGED_MAX = 10_000
PARTITION_CHANGES_AT_ONCE = 25
# Partitions that one step of `penstock cluster balance` moves.
BALANCE_MOVES_MAX = 100
# A replica that may not be copied faster is looked at again after so long at the latest: the rate may change.
REPLICA_THROTTLE_PAUSE_MS_MAX = 1 * SECOND_MS
# A follower that has not had everything for so long is out of sync; how often that is looked at.
REPLICA_LAG_MS_MAX = 30 * SECOND_MS
REPLICA_LAG_CHECK_MS = 500
# A damaged copy is copied anew at once the first time. Each further time one process waits before it copies
# the same partition anew: so long, and twice as long each time, up to the second.
RENEWAL_PAUSE_MS = 1 * MINUTE_MS
RENEWAL_PAUSE_MS_MAX = 1 * HOUR_MS
# What a leader would say only for certain: how many such claims it remembers and for how long, and of how
# many partitions the metadata store is asked at a time.
LEADERSHIP_CLAIMS_MAX = 1_000
LEADERSHIP_CLAIM_MS_MAX = 2 * SECOND_MS
LEADERSHIP_CHECKS_MAX = 8
# A follower's fetch: how long it waits at the leader, how long it is waited for, and what it brings.
REPLICA_WAIT_MS = 500
REPLICA_IDLE_WAIT_MS = 5 * SECOND_MS
REPLICA_FETCH_MS_MAX = 10 * SECOND_MS
REPLICA_PARTITION_BYTES = 1 * MIB
REPLICA_FETCH_BYTES_MAX = 10 * MIB
# Before a leader that is away is asked again, and a partition that it cannot give us.
REPLICA_PAUSE_MS = 50
REPLICA_PAUSE_MS_MAX = 1 * SECOND_MS
# Where a leader is followed in more partitions than this, those that have had nothing for so long are in
# a session of their own, until they have had something so often.
REPLICA_TOGETHER_MAX = 64
REPLICA_IDLE_MS = 5 * SECOND_MS
REPLICA_BUSY_ANSWERS = 5
# A fetch under way is given up for newly followed partitions, but not more often than this.
REPLICA_INTERRUPT_MS = 100

# The log ----------------------------------------------------------------------------------------

SEGMENT_BYTES_DEFAULT = 1 * GIB
SEGMENT_BYTES_MIN = 1 * MIB
# Offsets within a segment are kept relative to its first, in four bytes.
SEGMENT_OFFSETS_MAX = INT_MAX
INDEX_INTERVAL_BYTES = 4 * KIB
# Whatever a topic's settings say: a read walks from header to header at most so far, on the event loop too.
INDEX_INTERVAL_BYTES_MAX = 64 * KIB
INDEX_BYTES_MAX = 10 * MIB
# Bytes read at once when a log is opened after a crash.
RECOVERY_READ_BYTES = 1 * MIB
# Batch starts each log remembers, so that a fetch which goes on where another ended need not search.
LOG_BATCH_STARTS_KEPT = 32
# Indexes of sealed segments that are kept in memory for readers of old data, over all partitions.
INDEX_BYTES_KEPT_MAX = 64 * MIB
RETENTION_CHECK_MS = 5 * MINUTE_MS
FILE_DELETE_DELAY_MS = 1 * MINUTE_MS
# Set aside on disk: deleting topics and records, and starting, must work when nothing else is left.
DISK_RESERVE_BYTES = 1 * MIB
# The reserve is only set aside while more than this is free. A damaged copy of a partition is only kept for
# people if as much stays free beside the copy that takes its place.
DISK_RESERVE_FREE_BYTES = 4 * DISK_RESERVE_BYTES
# While the disk is full, that is said this often.
DISK_FULL_LOGGED_MS = 30 * SECOND_MS
DISK_RESERVE_CHECK_MS = 2 * SECOND_MS
# A checkpoint is due after so many bytes or so much time: a restart scans no more than that.
CHECKPOINT_BYTES = 64 * MIB
CHECKPOINT_MS = 5 * SECOND_MS
# Partitions whose checkpoint is planned in one turn of the loop.
CHECKPOINT_PARTITIONS_AT_ONCE = 20
# Partitions whose start DeleteRecords stores together; it looks at the client's timeout between such groups.
DELETE_RECORDS_PARTITIONS_AT_ONCE = 20
# Before a start of a log that found no room on disk is stored again; and how long a fetch waits at the leader
# while the follower has a new start to report that is about to be stored.
LOG_START_PAUSE_MS = 1 * SECOND_MS
LOG_START_FETCH_WAIT_MS = 20
# Segment files that are open at once, where the process may open more than twice as many.
OPEN_FILES_MAX = 50_000
# A flush of more files than this is one syncfs instead of a sync for each.
SYNC_FILES_BEFORE_SYNCFS = 4
# How often the storage looks at what is due: checkpoints, flushes, retention, timeouts.
STORAGE_TICK_MS = 250
# Threads that read what is not in memory.
COLD_READ_THREADS = 4
# A copy whose files could not be read so often within so long is given up, where others have it. A device may
# try for many seconds before it gives up on a sector. Failures closer together than the third count as one.
READ_FAILURES_MAX = 3
READ_FAILURES_MS = 1 * MINUTE_MS
READ_FAILURES_APART_MS = SECOND_MS // 2
# Lookups by time have a thread of their own, where they take turns. One of them passes so many batch
# headers in a turn (about 3 ms) and then examines the records of one batch, pausing after so many.
LOOKUP_HEADERS_PER_STEP = 1_000
LOOKUP_RECORDS_PER_TURN = 500
# What one lookup of one partition opens, in all its batches; beyond it headers answer. As many records
# fit no batch of the default size that is not compressed; they take about a third of a second.
LOOKUP_RECORDS_MAX = 200_000
LOOKUP_EXPANDED_BYTES_MAX = DECOMPRESSED_BYTES_MAX
# How long a request waits for its lookups, unless it says less.
LOOKUP_MS_MAX = 30 * SECOND_MS
# How often compacted topics are looked at, and the memory that a cleaning may use for keys.
CLEANER_BACKOFF_MS = 15 * SECOND_MS
CLEANER_MEMORY_BYTES = 128 * MIB
CLEANER_MEMORY_BYTES_MIN = 1 * MIB
# One byte in so many of it notes which records are the last of their key.
CLEANER_NOTES_SHARE = 8
CLEANER_READ_BYTES = 1 * MIB
CLEANER_WRITE_BYTES = 1 * MIB
# What the cleaner wrote is synced every so many bytes: one sync of a gigabyte would delay all others.
CLEANER_SYNC_BYTES = 16 * MIB
# Segments that one cleaned segment may replace: taking it over happens in one turn of the loop.
CLEANER_GROUP_SEGMENTS_MAX = 32
# The process of the cleaner ends when it had nothing to do for so long.
CLEANER_IDLE_MS_MAX = 1 * MINUTE_MS
CLEANER_MESSAGE_BYTES_MAX = 16 * MIB

# HTTP -------------------------------------------------------------------------------------------

HTTP_REQUEST_BYTES_MAX = 16 * MIB
# The file with the tokens of those who may change something: about 600 of them.
HTTP_TOKENS_FILE_BYTES_MAX = 64 * KIB
# Groups that one answer lists; the next ones are asked for with its continuation.
HTTP_GROUPS_LISTED_MAX = 1_000
HTTP_GROUPS_LISTED_DEFAULT = 100
# Partitions that the page about the cluster lists of each kind.
HTTP_PARTITIONS_LISTED_MAX = 1_000
# Partitions of groups, and topics, that have series of their own among the metrics.
METRICS_GROUP_PARTITIONS_MAX = 5_000
METRICS_TOPICS_MAX = 1_000
# Partitions that are summed up, and lines of metrics that are written, in one turn of the loop.
METRICS_PARTITIONS_PER_TURN = 1_000
METRICS_LINES_PER_TURN = 500

# How the bounds depend on each other ------------------------------------------------------------

# A session survives two attempts to keep it that were lost.
assert 3 * BROKER_KEEP_MS <= BROKER_SESSION_MS < BROKER_JOIN_MS_MAX
assert REPLICA_WAIT_MS < REPLICA_IDLE_WAIT_MS < REPLICA_FETCH_MS_MAX < REPLICA_LAG_MS_MAX
assert BATCH_BYTES_MAX <= REPLICA_FETCH_BYTES_MAX

# So many failures fit the time that they are counted in, also those of a coordinator that loads again.
assert READ_FAILURES_MAX * READ_FAILURES_APART_MS < READ_FAILURES_MS
assert READ_FAILURES_APART_MS < COORDINATOR_RELOAD_MS
assert (2 ** (READ_FAILURES_MAX - 1) - 1) * COORDINATOR_RELOAD_MS < READ_FAILURES_MS

# A batch that fits no request, no reply or no segment could be written or read by nobody.
assert BATCH_BYTES_MAX < REQUEST_BYTES_MAX
assert BATCH_BYTES_MAX <= FETCH_BYTES_MAX
assert BATCH_BYTES_MAX <= SEGMENT_BYTES_DEFAULT
assert SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT <= INT_MAX
# A batch of the default size is received without growing its frame, its request's head included.
assert BATCH_BYTES_MAX + TOPIC_NAME_CHARACTERS_MAX < FRAME_FIRST_BYTES
assert RECEIVE_BYTES_WHEN_SHORT < RECEIVE_BUFFER_BYTES < FRAME_FIRST_BYTES < REQUEST_BYTES_MAX
# The largest request must fit what all requests share, or it could never be received at all; twice,
# or one client sending large requests would stop every other.
assert 2 * REQUEST_BYTES_MAX <= REQUEST_BYTES_IN_FLIGHT_MAX
# A frame begun in a shortage takes little of what is left, and every connection may begin one.
assert FRAME_STEP_BYTES < RECEIVE_BYTES_WHEN_SHORT
assert CONNECTIONS_MAX * FRAME_STEP_BYTES < REQUEST_BYTES_IN_FLIGHT_MAX // 2
assert MEMORY_RELIEF_MS < MEMORY_GRACE_MS < FRAME_COMPLETION_MS_MAX
# Reading resumes below where it paused, and a whole fetch may be queued beyond it.
assert REPLY_BYTES_GATHERED_MAX < REPLY_BYTES_RESUME_AT < REPLY_BYTES_PAUSE_AT
assert REPLY_BYTES_PAUSE_AT + FETCH_BYTES_MAX <= REPLY_BYTES_TOTAL_MAX
assert FETCH_BYTES_MAX <= FETCH_BYTES_TOTAL_MAX <= REPLY_BYTES_TOTAL_MAX
# A stalled peer is cut off for stalling, long before it counts as idle.
assert FRAME_COMPLETION_MS_MAX < CONNECTION_IDLE_MS_MAX
assert SLOW_READER_MS_MAX < CONNECTION_IDLE_MS_MAX
# A fetch that waits as long as it may is not an idle connection.
assert FETCH_WAIT_MS_MAX < CONNECTION_IDLE_MS_MAX
# A batch of the default size may be looked into.
assert BATCH_BYTES_MAX < DECOMPRESSED_BYTES_MAX
# One produce request may write to every partition of the largest topic.
assert PRODUCE_BATCHES_MAX >= PARTITIONS_PER_TOPIC_MAX
# What is looked at although the memory is used up is no more than that again.
assert CONNECTIONS_MAX * DECODED_BYTES_WHEN_FULL <= DECODED_BYTES_MAX
# Requests whose batches wait and that are counted as nothing but a request leave room for others.
assert INSPECTED_BYTES_WAITING_MAX // INSPECTION_BYTES * DECODED_REQUEST_BYTES < DECODED_BYTES_MAX // 2
# Kafka's clients keep up to five batches in flight and expect each repeat to be recognised.
assert PRODUCER_WINDOW_BATCHES >= 5
# A topic as large as a topic may be still fits the cluster and one fetch of all its partitions.
assert PARTITIONS_PER_TOPIC_MAX <= PARTITIONS_MAX
assert PARTITIONS_PER_TOPIC_MAX <= FETCH_SESSION_PARTITIONS_MAX
# The folder of a partition is named after its topic and its index.
assert TOPIC_NAME_CHARACTERS_MAX + len(f"-{PARTITIONS_PER_TOPIC_MAX - 1}") <= FILE_NAME_BYTES_MAX
# What a commit or the record of a group takes is far from what a command may take.
assert 2 * max(COMMIT_BYTES_MAX, GROUP_METADATA_BYTES_MAX) < STATE_COMMAND_BYTES_MAX
# Whatever is written for one flush finds room where a coordinator believes that there is some, and no
# batch has more records than the log takes.
assert max(COMMIT_BYTES_MAX, GROUP_METADATA_BYTES_MAX, STATE_BYTES_PER_FLUSH) < COORDINATOR_ROOM_BYTES
assert 2 * STATE_RECORDS_PER_FLUSH < RECORDS_CHECKED_MAX
# The pieces of long commands fit a turn.
assert max(COMMITS_AT_ONCE, TOMBSTONES_AT_ONCE) <= STATE_RECORDS_PER_TURN
# The long replies that are made at once leave room for fetches.
assert GROUP_REPLIES_AT_ONCE * GROUP_REPLY_BYTES_MAX < REPLY_BYTES_TOTAL_MAX
# A topic as large as a topic may be is remembered, and leaves room for others.
assert PARTITIONS_PER_TOPIC_MAX < FETCH_REPEATS_PER_CONNECTION_MAX < FETCH_REPEATS_PARTITIONS_MAX // 2
# Otherwise the index of a single segment could not be kept while it is read.
assert 2 * INDEX_BYTES_MAX <= INDEX_BYTES_KEPT_MAX
# Otherwise a segment could be read only by scanning it from its start.
assert INDEX_INTERVAL_BYTES <= INDEX_INTERVAL_BYTES_MAX < SEGMENT_BYTES_MIN
# What is read of one group for its age need not be read again for the next question.
assert METRICS_GROUP_PARTITIONS_MAX <= RECORD_TIMES_KEPT_MAX
assert HTTP_GROUPS_LISTED_DEFAULT <= HTTP_GROUPS_LISTED_MAX
# A coordinator has asked the leaders, or given up on one of them, before its own answer is overdue.
assert PEER_POSITIONS_MS_MAX * 2 < PEER_REPORTS_MS_MAX
# A silent leader is known as one before the time for all its questions is over. Then it is not asked again.
assert PEER_POSITION_MS_MAX < PEER_POSITIONS_MS_MAX < PEER_UNAVAILABLE_MS
# A leader whose disk is slow answers in time, without ages.
assert RECORD_TIMES_MS_MAX < PEER_POSITION_MS_MAX
# One entry for each interval of a full segment of the default size,
# of twelve bytes, the larger of the two kinds.
assert SEGMENT_BYTES_DEFAULT // INDEX_INTERVAL_BYTES * 12 <= INDEX_BYTES_MAX
# A paused connection holds the request that waits, and must not be ended for that.
assert REJECTION_PAUSE_MS_MAX < MEMORY_GRACE_MS
