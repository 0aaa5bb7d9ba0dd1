"""The folder order is the record's path: a module imports only from layers to its left.

And the world is an argument: all layers up to `controller`, except `host`, `observability` and `wire`, are
pure. Nothing there touches time, disk, network or randomness except through the protocols in `host/`.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "penstock"

LAYERS = [
    "types",
    "errors",
    "limits",
    "chunks",
    "config",
    "host",
    "observability",
    "protocol",
    "wire",
    "security",
    "log",
    "metadata",
    "replication",
    "coordinator",
    "groups",
    "transactions",
    "controller",
    "broker",
    "http",
    "spark",
    "cli",
]
# A client of brokers that may be elsewhere: what a broker is made of is not for it.
REACHES = {"spark": {"types", "errors", "limits", "chunks", "config", "host", "protocol", "wire", "spark"}}
# Everything may be used here, and nothing may use these.
OUTSIDE = {"sim", "testing"}

# The seam between the code that decides and the world: these decide.
PURE = {
    "types",
    "errors",
    "limits",
    "chunks",
    "config",
    "protocol",
    "security",
    "log",
    "metadata",
    "replication",
    "coordinator",
    "groups",
    "transactions",
    "controller",
}
WORLD = {
    "asyncio",
    "atexit",
    "concurrent",
    "ctypes",
    "datetime",
    "faulthandler",
    "fcntl",
    "fileinput",
    "getpass",
    "glob",
    "http",
    "importlib",
    "io",
    "locale",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "platform",
    "posix",
    "pwd",
    "random",
    "resource",
    "sched",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "sys",
    "sysconfig",
    "syslog",
    "tempfile",
    "termios",
    "threading",
    "time",
    "timeit",
    "urllib.request",
    "uuid",
    "uvloop",
    "webbrowser",
    "zoneinfo",
}
# One file implements the metadata store's side of the seam on SQLite; nobody else opens databases.
SQLITE_USERS = {Path("metadata/sqlite_store.py")}
# Facts that do not change while a process lives.
ALLOWED = {Path("log/index/offset_index.py"): {"sys"}}  # the order of bytes in this machine's numbers
# Ways to the world that need no import.
CALLS = {"open", "input", "print", "breakpoint", "__import__"}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""
            if node.module != "penstock":  # whose names are its version
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_way_imports(layer: str, modules: list[str]) -> list[str]:
    """Imports of layers to the right of `layer`, or of what nobody may import."""
    allowed = REACHES.get(layer, set(LAYERS[: LAYERS.index(layer) + 1]))
    ours = {module.split(".")[1] for module in modules if module.startswith("penstock.")}
    return sorted(ours - allowed)


def test_a_wrong_way_import_is_found() -> None:
    assert wrong_way_imports("log", ["penstock.broker.router", "penstock.protocol.batches"]) == ["broker"]
    assert wrong_way_imports("broker", ["penstock.sim.disk"]) == ["sim"]
    assert wrong_way_imports("spark", ["penstock.log.segment", "penstock.wire.cluster_client"]) == ["log"]
    assert wrong_way_imports("wire", ["penstock.spark.pool"]) == ["spark"]


def test_imports_go_one_way() -> None:
    layered = [path for path in sources() if layer_of(path) not in OUTSIDE | {"__init__", "__main__"}]
    unknown = [path for path in layered if layer_of(path) not in LAYERS]
    assert unknown == [], "add them to LAYERS where the record passes them"
    wrong = {path: wrong_way_imports(layer_of(path), list(imported_modules(path))) for path in layered}
    assert {path: names for path, names in wrong.items() if names} == {}


def worldly(modules: Iterable[str]) -> set[str]:
    """Those that are, or lie in, a module through which the world is reached."""
    return {
        module
        for module in modules
        if any(module == world or module.startswith(f"{world}.") for world in WORLD)
    }


def is_program(statement: ast.stmt) -> bool:
    """What a module does when it is run by hand."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def test_a_way_to_the_world_is_found() -> None:
    modules = ["os.path", "datetime", "urllib.parse", "urllib.request", "struct", "iolib", "io"]
    assert worldly(modules) == {"os.path", "datetime", "urllib.request", "io"}


def test_what_decides_does_not_touch_the_world() -> None:
    found = {path: contacts(path) for path in sources() if layer_of(path) in PURE}
    assert {path: names for path, names in found.items() if names} == {}, "take it as an argument, from host/"


def contacts(path: Path) -> list[str]:
    """Modules and calls of a file that reach the world."""
    modules = set(imported_modules(path))
    name = path.relative_to(SOURCE)
    found = worldly(modules) - ALLOWED.get(name, set())
    if name not in SQLITE_USERS:
        found |= modules & {"sqlite3"}
    calls = {
        node.func.id
        for statement in ast.parse(path.read_text()).body
        if not is_program(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return sorted(found | (calls & CALLS))


def test_every_task_has_an_owner() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sources()
        if path.relative_to(SOURCE) != Path("host/tasks.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("create_task", "ensure_future")
    }
    assert sorted(found) == [], "start tasks with host.tasks.Tasks"
