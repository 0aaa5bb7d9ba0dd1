"""The mutants about damaged copies of partitions."""

from collections.abc import Sequence

from tools.mutant import Mutant

DAMAGED = "broker/replication/damaged_replicas.py"
ELECTIONS = "controller/elections.py"
MANAGER = "replication/replica_manager.py"

DAMAGE_MISTAKES: Sequence[Mutant] = (
    Mutant(
        "damaged_copy_stays_in_sync",
        DAMAGED,
        "            if decision.all_changes:\n",
        "            if False:\n",
    ),
    Mutant(
        "lookups_by_time_keep_damage_to_themselves",
        "broker/broker.py",
        "ColdReads(self._lookup_pool, storage.read_failed)",
        "ColdReads(self._lookup_pool, lambda partition, damage: partition.mark_damaged(str(damage)))",
        "tests/unit/broker/storage/test_cold_reads.py",
    ),
    Mutant(
        "copy_damaged_in_a_truncation_keeps_its_epoch",
        MANAGER,
        "        if found.log in self._waiting:\n            # The leader epoch",
        "        if False:\n            # The leader epoch",
        "tests/unit/replication/test_replica_manager_roles.py",
    ),
    Mutant(
        "damage_is_taken_for_what_a_producer_sent",
        "log/reading/first_record_time.py",
        '        validate_stored_batch(batch, header, 0, f"{self.segment.log_path} at {position}")\n',
        "",
        "tests/unit/log/reading/test_first_record_time.py",
    ),
    Mutant(
        "damaged_copy_leaves_under_the_same_epoch",
        ELECTIONS,
        "*compare_sessions(image, (broker_id,)), bumps_leader_epoch=True\n",
        "*compare_sessions(image, (broker_id,))\n",
        "tests/unit/broker/replication/test_damaged_replicas.py",
    ),
    Mutant(
        "damaged_partitions_wait_for_the_disk_of_others",
        DAMAGED,
        '''        await self._keep_doing(self._withdraw_all, self._withdrawals_due)

    async def replace(self) -> None:
        """The task that replaces damaged copies."""
        await self._keep_doing(self._replace_all, self._replacements_due)
''',
        """        async def both() -> list[str]:
            return [*await self._withdraw_all(), *await self._replace_all()]

        await self._keep_doing(both, self._replacements_due)

    async def replace(self) -> None:
        pass
""",
        "tests/unit/broker/replication/test_damaged_replicas.py",
    ),
    Mutant(
        "only_other_copy_is_trusted",
        "log/data_directory.py",
        "if room.others_in_sync < OTHERS_IN_SYNC_MIN or",
        "if",
        "tests/unit/broker/replication/test_damaged_replicas.py",
    ),
    Mutant(
        "last_copy_is_moved_at_the_start",
        MANAGER,
        "        partition.mark_damaged(reason)\n        return partition, LostPartition(reason)\n\n"
        "    def _may_be_elected",
        "        partition.mark_damaged(reason)\n"
        "        self._directory.move_damaged_to_strays(partition.name)\n"
        "        return partition, LostPartition(reason)\n\n    def _may_be_elected",
        "tests/unit/replication/test_replica_manager.py",
    ),
    Mutant(
        "leadership_of_a_damaged_copy_is_kept",
        DAMAGED,
        "        if self._known:\n",
        "        if False:\n",
        "tests/unit/broker/replication/test_damaged_replicas.py",
    ),
    Mutant(
        "restart_forgets_damage",
        MANAGER,
        "noted = self._directory.recorded_damage(name)",
        "noted = None",
        "tests/unit/replication/test_replica_manager.py",
    ),
    Mutant(
        "truncation_counts_as_damage",
        "broker/storage/cold_reads.py",
        "        if log.is_truncating:\n",
        "        if log.is_truncating and isinstance(outcome, CorruptData):\n"
        "            self.on_failure(partition, outcome)\n        if log.is_truncating:\n",
        "tests/unit/broker/storage/test_cold_reads.py",
    ),
    Mutant(
        "io_error_counts_as_damage",
        MANAGER,
        "        except CorruptData as damage:\n",
        "        except (CorruptData, StorageFailed) as damage:\n",
        "tests/unit/replication/test_replica_manager.py",
    ),
    Mutant(
        "unreadable_copy_is_kept",
        "broker/storage/partition_storage.py",
        "            self._read_failures.report(partition, problem)\n",
        "            pass\n",
        "tests/unit/broker/replication/test_read_failures.py",
    ),
    Mutant(
        "what_cannot_be_looked_at_is_gone",
        "host/os_disk.py",
        "            except (FileNotFoundError, NotADirectoryError):\n",
        "            except OSError:\n",
        "tests/unit/host/test_os_disk.py",
    ),
    Mutant(
        "empty_copy_leads",
        MANAGER,
        """        if roles.is_leader(state):
            return False
        self._make(topic, state, empty.log, None, roles)
""",
        "        self._make(topic, state, empty.log, None, roles)\n",
        "tests/unit/replication/test_replica_manager_roles.py",
    ),
    Mutant(
        "damage_found_by_the_cleaner_is_kept",
        "broker/storage/compaction.py",
        """        if isinstance(failure, CorruptData):
            self.postponed_cleanings.pop(partition.log, None)
            self._storage.damage(partition, failure)
            return
""",
        "",
        "tests/unit/broker/storage/test_damage_in_background.py",
    ),
    Mutant(
        "long_topic_names_leave_no_room_for_a_suffix",
        "log/data_directory.py",
        "    if len(name) <= STRAY_NAME_BYTES_MAX:\n",
        "    if True:\n",
        "tests/unit/log/test_data_directory.py",
    ),
)
