"""docs/tutorial/first-pipeline.md, typed as it stands there."""

from pathlib import Path

import pytest

from tests.integration.runbook import Reader, commands_of
from tools.documents import blocks

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first-pipeline.md"


@pytest.mark.timeout(900)
def test_the_first_pipeline(tmp_path: Path) -> None:
    reader = Reader(tmp_path, with_etcd=False, seconds_max=240)
    try:
        reader.type_section(PAGE, "A topic with something in it")
        archive, produce, describe, archive_again = commands_of(PAGE, "Archive it")
        reader.type(archive)
        assert "rows        5,000\n" in reader.output
        reader.type(produce)
        reader.type(describe)
        assert "behind: 5000 records" in reader.output
        reader.type(archive_again)
        assert "rows        5,000\n" in reader.output

        (program,) = [block.code for block in blocks(PAGE.read_text()) if block.language == "python"]
        reader.save("read_lake.py", program)
        reader.type_section(PAGE, "Read it with Spark")
        assert reader.output.count("|customer-") == 7
        reader.type_section(PAGE, "Audit it")
        assert "verdict                    clean" in reader.output
        reader.type_section(PAGE, "Replay it")
        assert "verdict" in reader.output
    finally:
        reader.close()
