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
