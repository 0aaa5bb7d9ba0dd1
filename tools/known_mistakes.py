"""The mutants of `python -m tools.mutants`: mistakes that the simulator or a test has to notice."""

from collections.abc import Sequence

from tools.damage_mistakes import DAMAGE_MISTAKES, MANAGER
from tools.mutant import Mutant
from tools.transaction_coordinator_mistakes import TRANSACTION_COORDINATOR_MISTAKES
from tools.transaction_mistakes import TRANSACTION_MISTAKES

LEADING = "replication/leading.py"
PARTITION = "replication/partition.py"
FOLLOWING = "replication/following.py"
LOG = "log/partition_log.py"
DURABILITY = "metadata/durability.py"
REACHABILITY = "controller/reachability.py"
RECOVERY = "log/recovery.py"
SWAP = "log/compaction/swap.py"
CLEANER = "log/compaction/cleaner.py"

MUTANTS: Sequence[Mutant] = (
    *DAMAGE_MISTAKES,
    *TRANSACTION_MISTAKES,
    *TRANSACTION_COORDINATOR_MISTAKES,
    # What is safe
    Mutant(
        "visible_before_flush",
        PARTITION,
        "end, own_bytes = log.flushed_end_offset, log.flushed_bytes",
        "end, own_bytes = log.log_end_offset, log.appended_bytes",
    ),
    Mutant(
        "follower_acknowledges_before_flush",
        "log/follower_append.py",
        "        appended += 1\n",
        "        appended += 1\n        log.flushed_end_offset = log.log_end_offset\n",
    ),
    Mutant(
        "acknowledges_before_flush", LOG, "min(flush.end_offset, self.log_end_offset)", "self.log_end_offset"
    ),
    Mutant("acknowledges_before_replicas", LEADING, "for member in self._maximal:", "for member in ():"),
    Mutant(
        "produce_answers_at_once",
        "broker/apis/produce.py",
        "reached = partition.high_watermark",
        "reached = appended.end_offset",
    ),
    Mutant(
        "no_fsync_of_folders",
        "log/partition_folder.py",
        "folders = sorted(self._unsynced_folders)",
        "folders = list[str]()",
    ),
    Mutant("failed_sync_is_passed_over", "broker/storage/flusher.py", "if error is not None:", "if False:"),
    Mutant("minimum_is_ignored", LEADING, "        if not self.meets_min_isr:\n", "        if False:\n"),
    # In-sync sets
    Mutant(
        "pending_isr_is_forgotten",
        LEADING,
        "proposed = self._proposal.isr if self._proposal is not None else ()",
        "proposed = ()",
    ),
    Mutant(
        "shrinking_counts_at_once",
        LEADING,
        "frozenset((*self._state.isr, *proposed))",
        "frozenset(proposed or self._state.isr)",
    ),
    Mutant(
        "joins_below_high_watermark", LEADING, "            and fetched.offset >= self.high_watermark\n", ""
    ),
    Mutant("joins_before_epoch_start", LEADING, "            and fetched.offset >= self.epoch_start\n", ""),
    # A broker joins; the request that says so comes late, after the leader has given it up and gone on
    # without him. Only an ambush makes that likely.
    Mutant(
        "unknown_outcome_counts_as_rejected",
        "broker/replication/isr_updates.py",
        'self._log.warning("isr.unknown", partition=queued.partition.name, reason=str(problem))',
        "self._rejected(queued)",
    ),
    Mutant(
        "isr_change_ignores_config_revision",
        "controller/partitions.py",
        "        Compare(keys.topic(topic.name), topic.revision),\n",
        "",
        "tests/unit/controller/test_elections.py",
    ),
    Mutant(
        "isr_change_ignores_who_joins",
        "controller/isr.py",
        "draft, own, *joining, *compare_settings(image, topic))",
        "draft, own, *compare_settings(image, topic))",
    ),
    # Epochs and history
    Mutant(
        "replica_goes_under_the_same_epoch",
        "controller/partitions.py",
        "bumps_leader_epoch or has_new_leader or not set(before.replicas).issubset(draft.replicas)",
        "bumps_leader_epoch or has_new_leader",
    ),
    # A follower that is two epochs behind, where the same broker leads, would count for the latest; then he
    # hears of the one between, whose leader makes him cut what he has just confirmed. What is noticed is the
    # first step: that he counts, or that a reader with an old epoch is answered.
    Mutant(
        "no_epoch_check_on_fetch",
        PARTITION,
        "if epoch < 0 or epoch == self.leader_epoch:",
        "if True:",
    ),
    Mutant(
        "divergence_is_not_told",
        PARTITION,
        "return None if epoch == asked and end >= params.fetch_offset else EpochEndOffset(epoch, end)",
        "return None",
    ),
    # Who comes back has no high watermark, and may be eligible: a leader that was cut off and died has
    # records to cut, and would cut all. Who stayed up knows the high watermark almost always.
    Mutant(
        "truncates_to_high_watermark",
        FOLLOWING,
        "offset = divergence_offset(log, diverging)",
        "offset = max(min(divergence_offset(log, diverging), self.high_watermark_before),"
        " log.log_start_offset)",
    ),
    Mutant(
        "truncates_too_little",
        FOLLOWING,
        "return max(min(end, Offset(leader.end_offset)), log.log_start_offset)",
        "return max(end, log.log_start_offset)",
    ),
    Mutant(
        "cut_keeps_producers",
        LOG,
        "self.producers, self.epochs = truncated.segments, truncated.producers, truncated.epochs",
        "self.epochs = truncated.segments, truncated.epochs",
    ),
    Mutant(
        "cut_keeps_epochs",
        LOG,
        "self.producers, self.epochs = truncated.segments, truncated.producers, truncated.epochs",
        "self.producers = truncated.segments, truncated.producers",
    ),
    Mutant(
        "restarted_leader_leads_on",
        "replication/roles.py",
        "if not self.is_leader(state) or not self.may_lead:",
        "if not self.is_leader(state):",
    ),
    # Elections
    Mutant(
        "fencing_leaves_followers_in_isr",
        "controller/elections.py",
        "draft = state if len(present) == len(state.isr) else _with_isr_of(image, topic, state, present)",
        "draft = state",
    ),
    Mutant(
        "elections_are_unclean",
        DURABILITY,
        "return _topic_or_cluster_setting(image, topic, UNCLEAN) is True",
        "return True",
    ),
    Mutant(
        "unclean_elections_may_be_late",
        "controller/partitions.py",
        "if is_unclean or before.elr or draft.elr:",
        "if before.elr or draft.elr:",
        "tests/unit/controller/test_elections.py",
    ),
    Mutant(
        "unclean_elections_ignore_who_comes_back",
        "controller/partitions.py",
        "        compares += _compare_presence(image, have_records)\n",
        "        pass\n",
        "tests/unit/controller/test_elections.py",
    ),
    Mutant(
        "lost_disk_is_not_noticed",
        DURABILITY,
        "is_another = live.directory_id != broker.directory_id or live.has_lost_all",
        "is_another = False",
    ),
    # Leaders that followers cannot reach
    Mutant(
        "isolated_leader_leads_on",
        "broker/replication/cluster_followers.py",
        "            if contact.cut_off:\n",
        "            if False:\n",
        "tests/simulation/test_extras.py",
    ),
    Mutant(
        "new_leader_waits_for_the_isolated_one",
        REACHABILITY,
        "isr = [node for node in (*state.isr, best) if node in connected[best]]",
        "isr = [*state.isr, best]",
        "tests/unit/controller/test_reachability.py",
    ),
    Mutant(
        "isolated_follower_stays_in_isr",
        REACHABILITY,
        "    return late\n\n\n",
        "    return frozenset()\n\n\n",
        "tests/simulation/test_extras.py",
    ),
    Mutant(
        "leadership_goes_to_any_replica_in_reach",
        REACHABILITY,
        "for node in state.replicas if node in have_records and _may_lead(image, node))",
        "for node in state.replicas if _may_lead(image, node))",
        "tests/unit/controller/test_reachability.py",
    ),
    Mutant(
        "leadership_moves_between_equals",
        REACHABILITY,
        "len(connected[node]), node == broker_id, node in state.isr",
        "len(connected[node]), node != broker_id, node in state.isr",
        "tests/unit/controller/test_reachability.py",
    ),
    Mutant(
        "leadership_goes_where_replicas_have_to_copy",
        REACHABILITY,
        "return has_enough, len(",
        "return True, len(",
        "tests/unit/controller/test_reachability.py",
    ),
    Mutant(
        "paused_leader_believes_reports_at_once",
        "broker/replication/follower_contacts.py",
        "FollowerContact(self._suspects & before, silent)",
        "FollowerContact(self._suspects, silent)",
        "tests/unit/broker/replication/test_follower_contacts.py",
    ),
    # Producers
    Mutant(
        "window_of_four_batches",
        "log/producer_state.py",
        "before.batches[1 - PRODUCER_WINDOW_BATCHES :]",
        "before.batches[2 - PRODUCER_WINDOW_BATCHES :]",
    ),
    Mutant(
        "retries_are_not_recognised",
        "log/producer_state.py",
        "        repeated = _duplicate_or_next(producer, header)\n",
        "        repeated = None\n",
    ),
    Mutant(
        "producers_evicted_early_are_not_counted",
        "log/producer_state.py",
        "        self.evicted += 1\n",
        "",
        "tests/unit/log/test_producer_state.py",
    ),
    Mutant(
        "producers_evicted_early_are_not_logged",
        "broker/storage/partition_storage.py",
        "            self._log_evictions(now)\n",
        "            pass\n",
        "tests/unit/broker/storage/test_partition_storage.py",
    ),
    # Groups
    Mutant(
        "commits_without_epoch",
        "groups/consumer/request_validation.py",
        "if epoch != member.epoch or epoch <= LEAVE_GROUP_EPOCH:",
        "if False:",
    ),
    Mutant(
        "serves_before_loaded",
        "broker/groups/coordinator_runtime.py",
        "end = await _until_committed(self.shard.partition)",
        "end = self.shard.partition.high_watermark",
    ),
    Mutant(
        "commits_answered_at_once",
        "coordinator/shard.py",
        "if end > self.partition.high_watermark:",
        "if False:",
    ),
    # Deposed and reinstated leaders
    Mutant(
        "peers_depose_nobody",
        "broker/cluster/peer_lease_check.py",
        "        return any(answers)\n",
        "        return False\n",
        "tests/unit/broker/replication/test_deposed_leader.py",
    ),
    Mutant(
        "reinstated_leader_forgets_its_proposal",
        "replication/roles.py",
        "return leading if epoch == leader_epoch else None",
        "return None",
        "tests/unit/broker/replication/test_deposed_leader.py",
    ),
    Mutant(
        "rejection_is_lost_while_the_leader_is_deposed",
        "broker/replication/isr_updates.py",
        "            queued.leading.rejected(queued.proposal)\n",
        "            pass\n",
        "tests/unit/broker/replication/test_deposed_leader.py",
    ),
    # The start of a log
    Mutant(
        "deletion_ignores_eligible_leaders",
        LEADING,
        "for member in (*self._maximal, *self._state.elr))",
        "for member in self._maximal)",
    ),
    Mutant(
        "follower_reports_a_start_it_has_not_stored",
        FOLLOWING,
        "            log.stored_start,\n",
        "            log.log_start_offset,\n",
    ),
    Mutant(
        "joins_without_what_was_deleted",
        LEADING,
        "            and max(fetched.log_start, Offset(0)) >= self.own_start\n",
        "",
    ),
    Mutant(
        "older_checkpoint_moves_the_start_back",
        "broker/storage/log_start_writer.py",
        "            async with self._lock:\n",
        "            async with asyncio.Lock():\n",
        "tests/unit/broker/storage/test_log_start_writer.py",
    ),
    Mutant(
        "truncation_forgets_the_start",
        "log/truncation.py",
        "        if log_start > 0:\n",
        "        if False:\n",
        "tests/unit/log/test_truncation.py",
    ),
    Mutant(
        "producers_of_a_snapshot_before_the_log_are_trusted",
        RECOVERY,
        "    if log.segments and log.segments[0].base_offset > scan_from:\n",
        "    if False:\n",
        "tests/unit/log/test_truncation.py",
    ),
    Mutant(
        "folder_of_a_truncation_does_not_say_whose_it_is",
        "log/truncation.py",
        "[*([] if metadata is None else [metadata]), self._log.start_file(self.offset)]",
        "[self._log.start_file(self.offset)]",
        "tests/unit/log/test_truncation.py",
    ),
    Mutant(
        "full_truncation_keeps_the_stored_start",
        LOG,
        "        self.stored_start = truncated.stored_start\n",
        "",
        "tests/unit/log/test_truncation.py",
    ),
    Mutant(
        "retention_passes_the_high_watermark",
        "log/retention.py",
        "        if segment.end_offset > policy.high_watermark or not (\n",
        "        if not (\n",
        "tests/unit/log/test_retention.py",
    ),
    Mutant(
        "followers_apply_retention",
        "broker/storage/retention.py",
        "CleanupPolicy.DELETE in config.cleanup_policy and partition.is_leader",
        "CleanupPolicy.DELETE in config.cleanup_policy",
    ),
    # A single broker and its disk
    Mutant(
        "failed_sync_is_believed_after_a_restart",
        RECOVERY,
        "            _rewrite(segment.file, position, batch)\n",
        "            pass\n",
        is_of_one_broker=True,
    ),
    Mutant(
        "folder_of_a_killed_process_is_believed",
        LOG,
        "        if not self.snapshots:\n",
        "        if False:\n",
        is_of_one_broker=True,
    ),
    Mutant(
        "full_disk_leaves_a_part_of_a_batch",
        LOG,
        "                segment.file.truncate(position)\n",
        "                segment.size_bytes = segment.file.size()\n",
        is_of_one_broker=True,
    ),
    Mutant(
        "tombstones_do_not_stay",
        CLEANER,
        "tombstone = LAST_TOMBSTONE if keeps_tombstones(header, horizons) else OBSOLETE",
        "tombstone = OBSOLETE",
        is_of_one_broker=True,
    ),
    Mutant(
        "records_that_are_not_safe_are_cleaned",
        "broker/storage/compaction.py",
        "        safe = safe_end(log, partition.last_stable_offset)\n",
        "        safe = log.log_end_offset\n",
        is_of_one_broker=True,
    ),
    Mutant(
        "decided_swap_is_forgotten",
        SWAP,
        """    for decided in _marks(disk.list_folder(folder)):
        _finish(disk, folder, decided)
""",
        "",
        is_of_one_broker=True,
    ),
    Mutant(
        "tombstone_goes_before_what_it_deletes",
        CLEANER,
        "groups = group_segments(job.segments, dirty_scan.end_offset, job.limits)",
        "groups = group_segments(job.segments, dirty_scan.end_offset, job.limits)[::-1]",
        is_of_one_broker=True,
    ),
    # Compaction
    Mutant(
        "swap_decides_before_its_files_are_durable",
        SWAP,
        """    disk.sync((), [folder])
    mark = """,
        "    mark = ",
        "tests/unit/log/compaction/test_compaction_crash.py",
    ),
    Mutant(
        "swap_mark_goes_before_names_are_durable",
        SWAP,
        "    disk.sync((), [taken.folder])\n",
        "",
        "tests/unit/log/compaction/test_compaction_crash.py",
    ),
    Mutant(
        "cleaned_segment_outlives_a_truncation",
        "broker/storage/compaction.py",
        "                if is_truncated() or not await self._swap(partition, step):\n",
        "                if not await self._swap(partition, step):\n",
        "tests/unit/broker/storage/test_cleaning_and_truncation.py",
    ),
    Mutant(
        "clean_offset_outlives_its_log",
        "log/compaction/cleaner_offsets.py",
        "0 <= rows[0][0] <= log_end_offset",
        "0 <= rows[0][0]",
        "tests/unit/log/compaction/test_cleaner_offsets.py",
    ),
    Mutant(
        "new_log_is_taken_for_clean",
        "log/truncation.py",
        "        forget_clean_to(disk, folder)\n",
        "",
        "tests/unit/log/compaction/test_cleaner_offsets.py",
    ),
    # The simulator itself
    Mutant(
        "job_of_a_killed_process_runs_again",
        "sim/interruptible_jobs.py",
        "        if job is not self._job:\n",
        "        if False:\n",
        "tests/unit/sim/test_interruptible_jobs.py",
    ),
    # Recovery
    Mutant(
        "recovery_checks_no_checksum",
        "log/reading/stored_batches.py",
        "        validate_stored_batch(chunk, header, at, where)\n",
        "",
    ),
    Mutant(
        "recovery_cuts_what_was_safe",
        RECOVERY,
        """        if log.log_end_offset < _required_end(log):
            raise
""",
        "        pass\n",
        "tests/unit/log/test_recovery.py",
    ),
    Mutant(
        "recovery_forgets_producers",
        RECOVERY,
        "replay=header.base_offset >= scan_from)",
        "replay=False)",
    ),
    # Settings
    Mutant(
        "leader_after_truncation_has_older_settings",
        MANAGER,
        """            topic, state = self._topic_and_state(partition)
            roles = self._roles(self._image_now())
""",
        """            topic, state = self._topic_and_state(partition)
            topic = Topic(topic.name, topic.id, False, 0, {"min.insync.replicas": "1"}, topic.partitions, 1)
            roles = self._roles(self._image_now())
""",
        "tests/unit/replication/test_replica_manager_roles.py",
    ),
    Mutant(
        "stricter_policy_flushes_with_the_next_batch",
        PARTITION,
        "if before is not self.flush_policy and self.flush_policy is BEFORE_ACK and self.log.is_dirty:",
        "if False:",
        "tests/unit/replication/test_partition.py",
    ),
    # Changes of the metadata
    Mutant(
        "subscriber_that_fails_is_passed_over",
        "broker/cluster/published_image.py",
        "                await subscriber(before, image)\n",
        "                try:\n                    await subscriber(before, image)\n"
        "                except Exception:\n                    pass\n",
        "tests/unit/broker/cluster/test_metadata_service.py",
    ),
    # Bounds
    Mutant(
        "lookup_by_time_opens_every_batch",
        "log/reading/time_lookup.py",
        "        if header.record_count > self._records_left:\n",
        "        if False:\n",
        "tests/unit/log/reading/test_time_lookup.py",
    ),
    Mutant(
        "newest_record_is_searched_without_the_index",
        "log/reading/time_lookup.py",
        "            if position >= first.position:\n",
        "            if False:\n",
        "tests/unit/log/reading/test_time_lookup.py",
    ),
    Mutant(
        "lookups_by_time_use_the_threads_of_fetches",
        "broker/broker.py",
        "self._lookup_reads = ColdReads(self._lookup_pool, storage.read_failed)",
        "self._lookup_reads = self._cold_reads",
        "tests/unit/broker/storage/test_cold_reads.py",
    ),
    Mutant(
        "lookup_by_time_does_not_start_over",
        "broker/data/timestamp_lookups.py",
        "                continue  # rule 2: planned again from the segments that the log has now\n",
        "                return None\n",
        "tests/unit/broker/data/test_timestamp_lookups.py",
    ),
    Mutant(
        "lookup_by_time_goes_on_in_another_file",
        "log/reading/time_lookup.py",
        "if expected is not None and header.base_offset != expected:",
        "if False:",
        "tests/unit/log/reading/test_time_lookup.py",
    ),
)
