"""The mutants about transactions in one log."""

from collections.abc import Sequence

from tools.mutant import Mutant

PRODUCERS = "log/producer_state.py"
TRANSACTIONS = "log/transactions/log_transactions.py"
ABORTED_FILES = "log/transactions/aborted_files.py"
PRODUCER_TESTS = "tests/unit/log/test_producer_transactions.py"
LOG_TESTS = "tests/unit/log/transactions/test_log_transactions.py"
READER_TESTS = "tests/unit/broker/data/test_committed_fetches.py"

TRANSACTION_MISTAKES: Sequence[Mutant] = (
    Mutant(
        "stale_marker_ends_a_transaction",
        PRODUCERS,
        "is_stale = marker.producer_epoch < producer.epoch",
        "is_stale = False",
        PRODUCER_TESTS,
    ),
    Mutant(
        "marker_of_version_2_may_repeat_the_epoch",
        PRODUCERS,
        "if is_stale or (must_be_newer and is_same_epoch and producer.is_in_transaction):",
        "if is_stale:",
        PRODUCER_TESTS,
    ),
    Mutant(
        "replaced_coordinator_is_not_fenced",
        PRODUCERS,
        "if marker.coordinator_epoch < transaction.coordinator_epoch:",
        "if False:",
        PRODUCER_TESTS,
    ),
    Mutant(
        "open_transaction_is_evicted",
        PRODUCERS,
        "while (oldest := next(iter(self._by_id.values()))).is_in_transaction:",
        "while (oldest := next(iter(self._by_id.values()))) is None:",
        PRODUCER_TESTS,
    ),
    Mutant(
        "marker_of_the_same_epoch_forgets_the_sequence",
        PRODUCERS,
        "epoch, batches = before.epoch, before.batches\n",
        "epoch, batches = before.epoch, ()\n",
        PRODUCER_TESTS,
    ),
    Mutant(
        "ended_transaction_does_not_wait_for_its_marker",
        TRANSACTIONS,
        "(marker := next(iter(ended))) < high_watermark",
        "(marker := next(iter(ended))) <= high_watermark",
        LOG_TESTS,
    ),
    Mutant(
        "row_says_that_nothing_else_was_open",
        TRANSACTIONS,
        "stable = next(iter(self._open), Offset(last + 1))",
        "stable = Offset(last + 1)",
        LOG_TESTS,
    ),
    Mutant(
        "truncation_settles_what_was_not_committed",
        "log/partition_log.py",
        "        truncated.transactions.keep_ended(self.transactions, truncated.log_end_offset)\n",
        "",
        LOG_TESTS,
    ),
    Mutant(
        "rows_are_read_without_their_checksum",
        ABORTED_FILES,
        " or crc32c(data) != expected.checksum:",
        ":",
        LOG_TESTS,
    ),
    Mutant(
        "truncated_rows_count_again",
        ABORTED_FILES,
        "aborted.has_stored_sums = sums == aborted.sums",
        "aborted.has_stored_sums = sums is not None",
        LOG_TESTS,
    ),
    Mutant(
        "aborted_record_replaces_an_older_one",
        "log/compaction/cleaner.py",
        " or header.is_control or transactions.is_aborted(header):",
        " or header.is_control:",
        "tests/unit/log/compaction/test_cleaned_transactions.py",
    ),
    Mutant(
        "marker_goes_before_its_records",
        "log/compaction/cleaned_transactions.py",
        "has_batches = marker.producer_id in self._with_batches",
        "has_batches = False",
        "tests/unit/log/compaction/test_cleaned_transactions.py",
    ),
    Mutant(
        "committed_readers_get_open_transactions",
        "broker/data/fetch_reader.py",
        "            end = partition.last_stable_offset\n",
        "            pass\n",
        READER_TESTS,
    ),
    Mutant(
        "waiting_reader_misses_the_end_of_a_transaction",
        "broker/data/pending_fetch.py",
        "return has_failed or has_settled or",
        "return has_failed or",
        READER_TESTS,
    ),
    Mutant(
        "reader_is_told_of_transactions_that_ended_before",
        "log/transactions/aborted_index.py",
        "for number in range(bisect_left(lasts, start), len(lasts)):",
        "for number in range(len(lasts)):",
        LOG_TESTS,
    ),
)
