"""What tests of every kind share, and how they are divided among the workers of a run.

The tests of a file run in one worker, so that its servers are started once. Long files begin first; short
ones are left for the end, where they keep all workers busy.
"""

import re
import zlib
from pathlib import Path
from typing import Any

import pytest

NAME_CHARACTERS_MAX = 200
HERE = Path(__file__).parent
FIRST = ("spark", "integration", "faults", "fuzz", "simulation", "model")
"""The folders of the long files, longest first."""
# Files that use the fixture `spark` run in two workers: one would be the last to end, and each more would
# start one more JVM.
SPARK_SESSIONS = {
    "first": ("archive", "detect", "insights", "payload", "sink"),
    "second": ("audit", "etl", "official_connector", "replay", "secure", "source", "stream_source"),
}
SESSION_OF_FILE = {
    f"tests/spark/test_{name}.py": session for session, names in SPARK_SESSIONS.items() for name in names
}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, so that tests can share a broker."""
    readable = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name.removeprefix("test_"))
    return f"{readable[:NAME_CHARACTERS_MAX]}-{zlib.crc32(request.node.nodeid.encode()):08x}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0] if HERE in item.path.parents else ""
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    items.sort(key=rank)


# In place of `--dist loadgroup`: that of pytest-xdist 3.8 has no effect with pytest 9.2, which ignores the
# ids that xdist gives to tests of a group.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            """The name of what runs in one worker."""
            path = nodeid.partition("::")[0]
            return SESSION_OF_FILE.get(path, path)

    config.option.loadscopereorder = False  # by the number of tests: few of ours are long
    return Scheduling(config, log)
