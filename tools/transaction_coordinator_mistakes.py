"""The mutants about the transaction coordinator."""

from collections.abc import Sequence

from tools.mutant import Mutant

ENDING = "transactions/ending.py"
INITIALISE = "transactions/initialise.py"
MARKERS = "transactions/markers.py"
STATE_MACHINE = "transactions/transaction_state_machine.py"

MODEL = "tests/model/test_transaction_coordinator.py"
TIMELINES = "tests/unit/transactions/test_transaction_timelines.py"

TRANSACTION_COORDINATOR_MISTAKES: Sequence[Mutant] = (
    Mutant(
        "late_acknowledgement_counts_for_the_next",
        MARKERS,
        "        if markers is self._markers:\n",
        "        if True:\n",
        MODEL,
    ),
    Mutant(
        "every_marker_aborts", MARKERS, "            prepared.is_committing,\n", "            False,\n", MODEL
    ),
    Mutant(
        "markers_do_not_wait_for_the_disk",
        STATE_MACHINE,
        "        return markers_reply(self._context.send_markers, markers)\n",
        "        self._context.send_markers(markers)\n"
        "        return markers_reply(lambda again: None, markers)\n",
        MODEL,
    ),
    Mutant(
        "first_acknowledgement_completes",
        STATE_MACHINE,
        "        if missing is not None and missing.partitions:\n",
        "        if False:\n",
        MODEL,
    ),
    Mutant(
        "new_coordinator_sends_no_markers",
        STATE_MACHINE,
        "                outcomes.append(CommandOutcome(replies=[self._markers_of(transaction)]))\n",
        "                continue\n",
        MODEL,
    ),
    Mutant(
        "new_coordinator_forgets_timeouts",
        STATE_MACHINE,
        "self._set_timer(transaction, min(max(remaining_ms, 0), transaction.timeout_ms), now)",
        "continue",
        MODEL,
    ),
    Mutant(
        "transactions_have_no_timeout",
        STATE_MACHINE,
        "            self._set_timer(after, after.timeout_ms, now)\n",
        "            pass\n",
        MODEL,
    ),
    Mutant(
        "read_only_view_writes",
        STATE_MACHINE,
        "            return CommandOutcome(replies=replies)\n        self._require_writable()\n",
        "            return CommandOutcome(replies=replies)\n",
        MODEL,
    ),
    Mutant(
        "replaced_producer_gets_the_identity_of_its_rival",
        INITIALISE,
        "    return _with_new_identity(before, expected or NO_IDENTITY, new_id)._replace(\n",
        "    return _with_new_identity(before, before.producer, new_id)._replace(\n",
        MODEL,
    ),
    Mutant(
        "replaced_producer_may_go_on",
        INITIALISE,
        "        _check_expected(before, expected)\n",
        "        pass\n",
        MODEL,
    ),
    Mutant(
        "reserved_epoch_is_given_away",
        INITIALISE,
        "    if epoch >= CLIENT_EPOCH_MAX:\n",
        "    if epoch > CLIENT_EPOCH_MAX:\n",
        MODEL,
    ),
    Mutant(
        "prepared_commit_can_be_aborted",
        ENDING,
        "    if before.status is not ONGOING:\n        return _repeated_end(",
        "    if before.status not in (ONGOING, PREPARE_COMMIT):\n        return _repeated_end(",
        MODEL,
    ),
    Mutant(
        "every_transaction_has_the_same_epoch",
        ENDING,
        "        producer=ProducerIdentity(before.producer.producer_id, before.producer.epoch + 1),\n",
        "        producer=before.producer,\n",
        TIMELINES,
    ),
    Mutant(
        "new_producer_id_is_lost_at_the_completion",
        ENDING,
        "        producer=before.next_producer,\n",
        "        producer=before.producer,\n",
        TIMELINES,
    ),
    Mutant(
        "timeout_fences_nothing",
        ENDING,
        "        producer=ProducerIdentity(producer_id, min(epoch + 1, EPOCH_MAX)),\n",
        "",
        "tests/unit/transactions/test_transaction_state_machine.py",
    ),
)
