"""Check of a first batch that is run again: retention may have removed records that it was to read.

Spark records where its first batch ends, and not where that begins. So a first batch that is run again after
a crash begins where the topic begins by then, and no reader would notice what is missing. The checkpoint has
a note of where the topics began (`checkpoint.recorded_starts`). Later batches begin at a recorded position,
below which a task finds that records are missing.

`archive` has a check of its own, which also covers tables and counts what was lost (`archive_tasks.py`).
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.errors import CommandFailed
from penstock.spark.pipelines.common.checkpoint import is_new, recorded_starts
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.wire.cluster_client import EARLIEST

log = logging.getLogger("penstock.spark")


def check_first_batch(
    folder: Path, access: Mapping[str, str], topics: Sequence[str], *, allow_loss: bool
) -> None:
    """Raise CommandFailed, or log a warning with `allow_loss`, if records of the first batch are gone.

    The caller holds the lock of the run: another run must not record its own start.
    """
    if not topics:
        return
    with open_client(access) as client:
        partitions = fetch_partitions(client, topics, existed=True)
        found = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=False)
    now = {partition: int(offset) for partition, (offset, _) in found.items()}
    begun = recorded_starts(folder, now)
    # Before the first start of a query, nothing was promised. After the first batch, Spark has the position.
    if is_new(folder) or any((folder / "commits").glob("[0-9]*")):
        return
    for partition, offset in sorted(begun.items()):
        if now.get(partition, offset) <= offset:
            continue
        loss = (
            f"{partition} began at offset {offset} when this was first started and begins at "
            f"{now[partition]} now, and no batch was finished in between: retention removed records that "
            "were to be read"
        )
        if not allow_loss:
            raise CommandFailed(f"{loss}. To go on with what is there, give --allow-loss")
        log.warning("%s; going on, because of --allow-loss", loss)
