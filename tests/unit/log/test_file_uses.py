"""Which uses of a log's files may overlap."""

import pytest

from penstock.log.file_uses import FileUse, FileUses

CHECKPOINT, START_FILE = FileUse.CHECKPOINT, FileUse.START_FILE
SWAP, TRUNCATION = FileUse.SWAP, FileUse.TRUNCATION
MAY_OVERLAP = {
    (CHECKPOINT, START_FILE),
    (CHECKPOINT, SWAP),
    (START_FILE, CHECKPOINT),
    (START_FILE, START_FILE),
    (START_FILE, SWAP),
    (SWAP, CHECKPOINT),
    (SWAP, START_FILE),
}


@pytest.mark.parametrize("under_way", FileUse)
@pytest.mark.parametrize("begins", FileUse)
def test_a_use_begins_only_during_those_that_it_cannot_harm(begins: FileUse, under_way: FileUse) -> None:
    uses = FileUses()
    uses.begin(under_way)
    assert uses.may_begin(begins) == ((begins, under_way) in MAY_OVERLAP)
    uses.end(under_way)
    uses.begin(begins)
    assert begins in uses


@pytest.mark.parametrize("use", FileUse)
def test_nothing_begins_after_the_log_is_closed_and_what_is_under_way_ends(use: FileUse) -> None:
    uses = FileUses()
    uses.begin(use)
    uses.close()
    uses.end(use)
    assert use not in uses
    with pytest.raises(AssertionError, match="cannot begin"):
        uses.begin(use)
