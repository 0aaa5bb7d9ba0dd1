"""What a test wants to be otherwise it passes as an argument.

A constant that is patched where it is imported ties the test to the place of the code: the patch breaks, or
does nothing any more, when the code moves.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")
BY_NAME = {"setattr", "delattr", "object"}
"""Functions of pytest's monkeypatch and unittest's patch, and Python's own, that take an owner and a name."""
BY_PATH = {*BY_NAME, "patch"}
BY_ITEM = {"setitem", "delitem"}
REMEDY = (
    "pass the limit as an argument whose default is the constant, together with others of the same part "
    "(as BrokerLimits, MemoryLimits)"
)


def wrong_patches(source: str) -> list[str]:
    """The names of penstock that are patched by a dotted path, and the constants that are patched at all."""
    return [name for node in ast.walk(ast.parse(source)) for name in _patched(node)]


def _patched(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        owned = [target.attr for target in node.targets if isinstance(target, ast.Attribute)]
        yield from filter(CONSTANT.fullmatch, owned)
    if not isinstance(node, ast.Call) or not node.args:
        return
    called, first = _last_name(node.func), node.args[0]
    if called in BY_PATH and (path := _text(first)).startswith("penstock."):
        yield path
    if called in BY_NAME and len(node.args) > 1 and CONSTANT.fullmatch(name := _text(node.args[1])):
        yield name
    if called in BY_ITEM and CONSTANT.fullmatch(name := _last_name(first)):
        yield name


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('monkeypatch.setattr("penstock.broker.router.tick", f)', "penstock.broker.router.tick"),
        ('monkeypatch.setattr(server, "SWEEP_MS", 1)', "SWEEP_MS"),
        ('monkeypatch.setattr(\n    regex, "_TURN_UNITS_MAX", 1\n)', "_TURN_UNITS_MAX"),
        ('patch.object(record_starts, "_LANES_MIN", 1)', "_LANES_MIN"),
        ('with patch("penstock.log.segment.Segment"): pass', "penstock.log.segment.Segment"),
        ('monkeypatch.setitem(table.FEW_FILES, "age", "0")', "FEW_FILES"),
        ("levels.NEWEST = 2", "NEWEST"),
    ],
)
def test_a_patch_of_a_constant_or_by_a_path_is_found(line: str, name: str) -> None:
    assert wrong_patches(line) == [name]


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(os, "fsync", failing)',
        'monkeypatch.setattr("os.getpid", lambda: 1)',
        'monkeypatch.setattr(subprocess, "Popen", start)',
        'monkeypatch.setattr(Partition, "advance", advance)',
        'monkeypatch.setitem(sys.modules, "uvloop", None)',
        "world.limits = GroupLimits(metadata_bytes_max=100)",
        "LIMIT = 5",
    ],
)
def test_other_patches_are_not(line: str) -> None:
    assert wrong_patches(line) == []


def test_no_test_patches_a_constant_or_a_path() -> None:
    found = {str(path.relative_to(ROOT)): wrong_patches(path.read_text()) for path in TESTS}
    assert {path: names for path, names in found.items() if names} == {}, REMEDY


OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
STILL_PRIVATE: dict[str, int] = {
    "tests/integration/clients/test_clients.py": 1,
    "tests/simulation/test_cluster_simulation.py": 3,
    "tests/spark/archive_driver.py": 2,
    "tests/unit/broker/apis/test_create_topics.py": 1,
    "tests/unit/broker/cluster/test_failure_detector.py": 1,
    "tests/unit/broker/cluster/test_store_identity.py": 1,
    "tests/unit/broker/groups/test_group_lag.py": 3,
    "tests/unit/broker/network/test_few_descriptors.py": 1,
    "tests/unit/broker/network/test_server.py": 1,
    "tests/unit/broker/storage/test_broker_compaction.py": 1,
    "tests/unit/broker/storage/test_partition_storage.py": 1,
    "tests/unit/broker/storage/test_process_cleaner.py": 2,
    "tests/unit/cli/local_cluster/test_local_cluster_processes.py": 1,
    "tests/unit/coordinator/test_shard.py": 1,
    "tests/unit/coordinator/test_timers.py": 1,
    "tests/unit/log/compaction/test_key_map.py": 1,
    "tests/unit/metadata/etcd/test_etcd_client.py": 2,
    "tests/unit/metadata/test_sqlite_store.py": 4,
    "tests/unit/replication/test_replica_manager_roles.py": 1,
    "tests/unit/sim/test_giving_up.py": 1,
    "tests/unit/spark/lake/test_lake_beside.py": 4,
    "tests/unit/spark/lake/test_lake_disk.py": 2,
    "tests/unit/spark/lake/test_lake_snapshots.py": 1,
    "tests/unit/spark/lake/test_lake_tables.py": 1,
    "tests/unit/spark/lake/test_task_files.py": 2,
    "tests/unit/spark/options/test_isolation.py": 1,
    "tests/unit/spark/pipelines/common/test_truncate_oversized.py": 1,
}
"""How many private names each of these files uses: it is older than this rule. Only lower the numbers."""


def private_uses(source: str) -> list[str]:
    """Private names of other classes and modules that a test uses. Its own it may have."""
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node)}
    used = [name for node in ast.walk(tree) for name in _private_names(node)]
    return [name for name in used if name not in own | OF_NAMED_TUPLES]


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _private_names(node: ast.AST) -> Iterator[str]:
    names: list[str] = []
    if isinstance(node, ast.Attribute) and not _is_own(node):
        names = [node.attr]
    elif isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.Call) and _last_name(node.func) in BY_NAME and len(node.args) > 1:
        names = [_text(node.args[1])]
    yield from (name for name in names if name.startswith("_") and not name.startswith("__"))


def test_a_private_name_of_another_class_is_found() -> None:
    lines = (
        "from penstock.a import _Part\n",
        "found = part._state._replace(a=self._own)\n",
        'monkeypatch.setattr(Part, "_step", fail)\n',
    )
    assert private_uses("".join(lines)) == ["_Part", "_step", "_state"]


def test_tests_use_no_private_names() -> None:
    """A test of private parts breaks with every change inside of a class, although nothing is wrong."""
    counts = {str(path.relative_to(ROOT)): len(private_uses(path.read_text())) for path in TESTS}
    more = {path: count for path, count in counts.items() if count > STILL_PRIVATE.get(path, 0)}
    assert more == {}, "pass it as an argument, or ask for it by a public name"
